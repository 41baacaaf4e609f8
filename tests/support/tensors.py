"""Whether two values of a batch are the same."""

from typing import Any

import torch


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type or dtype."""
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and one == other
    return one.dtype == other.dtype and torch.equal(one, other)
