"""Layer 5: batches as torch tensors. Only this folder and `trainers` import torch.

ranks.py       DataRank: which part of the data a process loads; determined by the process that iterates
position.py    where a rank is in the plan: the step, and how many of its sequences were used
formats.py     the fields of a batch, per format
tensors.py     located rows -> a batch of tensors
prefetch.py    pages and batches prepared in advance
loader.py      TokenLoader: what a training loop iterates, with its state
dataset.py     TokenDataset: the same for torch's DataLoader
sequences.py   SequenceDataset: every sequence by its number, for custom samplers
resharding.py  refuses datasets that Accelerate would split or shuffle a second time
"""

from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.sequences import SequenceDataset
from tokenstore.torch_data.tensors import Batch

__all__ = ["Batch", "DataRank", "SequenceDataset", "TokenDataset", "TokenLoader"]
