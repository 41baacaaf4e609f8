"""Floor 4: plans as torch tensors; the only folder that imports torch.

ranks.py      DataRank: which part of the data a process is given; found out by the process that iterates
formats.py    what a batch looks like, for whom
batches.py    located rows -> a batch of tensors
position.py   where a rank is in the plan: step, and sequences of it given
accelerated.py  datasets that Accelerate would split or shuffle again are refused
loader.py     TokenLoader: what a training loop iterates, with its state
dataset.py    TokenDataset: the same for torch's DataLoader
sequences.py  SequenceDataset: every sequence by its number, for samplers of one's own
trainers.py   what the adapters of trainers share; each of these imports its own trainer, and none is imported here:
    lightning.py, huggingface.py, torchdata_nodes.py, grain_source.py
"""

from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.ranks import DataRank
from tokenstore.torch_data.sequences import SequenceDataset
from tokenstore.torch_data.tensors import Batch

__all__ = ["Batch", "DataRank", "SequenceDataset", "TokenDataset", "TokenLoader"]
