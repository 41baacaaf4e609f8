"""Floor 3: a plan over stores -> batches as numpy arrays. Usable without torch.

config.py    PlanConfig: what the user asks for (plan.yaml)
plan_file.py plan.yaml -> fields, and what is wrong with them in words
plan.py      Plan: the pure function batch = f(step, rank), and the questions it answers
layout.py    configuration and stores -> the laid-out run, or why it cannot be had
identity.py  past, fingerprint and state of a run (P10)
tables.py    stores and maps as arrays a kernel reads
spans.py     a sequence -> its runs of tokens, each inside one document
sampler.py   rows of a step -> filled arrays
gather.py    runs -> batch: the hot kernel
"""

from tokenstore.sampling.config import PlanConfig, SourceConfig, StageConfig
from tokenstore.sampling.plan import Piece, Plan

__all__ = ["Piece", "Plan", "PlanConfig", "SourceConfig", "StageConfig"]
