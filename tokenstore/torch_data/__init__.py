"""Layer 5: batches as torch tensors. Only this folder and `trainers` import torch.

ranks.py       DataRank: the part of the data that a process loads, determined in the process that iterates
position.py    the position of a rank in the plan: a step and the number of its sequences already returned
states.py      loading a state: whose it is, and one that was saved inside a step
formats.py     the formats of a batch and their fields
row_fields.py  fields that Python computes: borders of pieces, ids, costs and weights
options.py     arguments of loaders and datasets, and the check of those that decide what a batch contains
tensors.py     located rows -> a batch of tensors
devices.py     batches on a device, copied while the batch before is in use
prefetch.py    pages read ahead, and batches made ahead in a thread
loader.py      TokenLoader: the iterator for training loops, with its state
dataset.py     TokenDataset: the same batches through a DataLoader
evaluation.py  Evaluation: every token of a plan once, on any number of ranks
losses.py      sums of losses and targets, per source
sequences.py   SequenceDataset: sequences by number, for custom samplers
resharding.py  errors for datasets that Accelerate would split or shuffle again
"""

from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.losses import EvaluationResult
from tokenstore.torch_data.position import BatchInfo
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.sequences import SequenceDataset
from tokenstore.torch_data.tensors import Batch

__all__ = [
    "Batch",
    "BatchInfo",
    "DataRank",
    "Evaluation",
    "EvaluationResult",
    "SequenceDataset",
    "TokenDataset",
    "TokenLoader",
]
