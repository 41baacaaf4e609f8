"""Layer 4: a plan over stores. It computes what a run reads at each step, by arithmetic and without torch.

config.py       PlanConfig: what the user asks for (plan.yaml)
plan_fields.py  its fields; source_config.py, locality.py, stage_config.py, row_fields.py: those of its parts
checks.py       validation of a field, and the messages for invalid ones
contradictions.py  fields that contradict each other
plan_file.py    reads the fields of plan.yaml; yaml_text.py parses the YAML
resolve.py      configuration and stores -> the sources of a run, each with its sequences per epoch
stages.py       the stages of the run: weights and batch sizes
feasibility.py  sources -> the schedule of the run, or why it is not feasible
amend.py        other steps after some step, with the same history before it
timeline.py     Timeline: the steps of a plan, states and histories of its runs
step_rows.py    StepRows: the pure function batch = f(step, rank), and the documents of its rows
pieces.py       Piece and SequenceInfo: documents in the sequences of a run
plan.py         Plan: both of these, and how far a run is and where documents appear
history.py      history, fingerprint and state of a run (P10)
notebook.py     the table of a plan in a notebook
progress.py     how far a run is in each source, also as metrics for a log
find.py         every step in which a document appears
"""

from tokenstore.planning.config import PlanConfig
from tokenstore.planning.find import Occurrence
from tokenstore.planning.pieces import Piece, SequenceInfo
from tokenstore.planning.plan import Plan
from tokenstore.planning.source_config import SourceConfig
from tokenstore.planning.stage_config import StageConfig

__all__ = ["Occurrence", "Piece", "Plan", "PlanConfig", "SequenceInfo", "SourceConfig", "StageConfig"]
