"""Floor 4: plans as torch tensors; the only folder that imports torch.

batches.py   located rows -> a dict of tensors: fields and formats
position.py  where a rank is in the plan: step, and sequences of it given
loader.py    TokenLoader: what a training loop iterates, with its state
dataset.py   TokenDataset: the same for torch's DataLoader
"""

from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.loader import TokenLoader

__all__ = ["TokenDataset", "TokenLoader"]
