"""Floor 3: a plan over stores -> batches as numpy arrays. Usable without torch.

config.py    PlanConfig: what the user asks for (plan.yaml)
plan_file.py plan.yaml -> fields, and what is wrong with them in words
plan.py      Plan: the pure function batch = f(step, rank), and the questions it answers
streams.py   sources and pools: the stores each draws from, its sequences an epoch
layout.py    configuration and stores -> the laid-out run, or why it cannot be had
identity.py  past, fingerprint and state of a run (P10)
tables.py    stores, sources and maps as arrays a kernel reads
spans.py     what a sequence is made of: runs of tokens, each inside one document
concat_spans.py, packed_spans.py   sequences -> spans
packings.py  the packings of the epochs at hand
sampler.py   rows of a step -> filled arrays
gather.py    spans -> batch: the hot kernel
progress.py  how far a run is in each source
metrics.py   the same as a flat dict of numbers, for a run's log
find.py      when a document comes by
"""

from tokenstore.sampling.config import PlanConfig, SourceConfig, StageConfig
from tokenstore.sampling.find import Occurrence
from tokenstore.sampling.plan import Piece, Plan

__all__ = ["Occurrence", "Piece", "Plan", "PlanConfig", "SourceConfig", "StageConfig"]
