"""Layer 4: a plan over stores. What a run reads at each step, answered by arithmetic and usable without torch.

config.py       PlanConfig: what the user asks for (plan.yaml)
checks.py       checks of its fields, and what is wrong with them in words
plan_file.py    plan.yaml -> fields; yaml_text.py parses the YAML
resolve.py      configuration and stores -> the sources of a run, each with its sequences per epoch
feasibility.py  a resolved run -> its schedule, or why it is not feasible
plan.py         Plan: the pure function batch = f(step, rank), and the questions it answers
history.py      history, fingerprint and state of a run (P10)
progress.py     how far a run is in each source; metrics.py: the same as a flat dict of numbers
find.py         every step in which a document appears
"""

from tokenstore.planning.config import PlanConfig, SourceConfig, StageConfig
from tokenstore.planning.find import Occurrence
from tokenstore.planning.plan import Piece, Plan

__all__ = ["Occurrence", "Piece", "Plan", "PlanConfig", "SourceConfig", "StageConfig"]
