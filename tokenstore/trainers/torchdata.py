"""TokenNode: a TokenLoader as a source node of `torchdata.nodes`."""

import copy
from collections.abc import Iterator
from typing import Any

from tokenstore.errors import how_to_install
from tokenstore.torch_data.loader import TokenLoader

try:
    from torchdata.nodes import BaseNode
except ImportError as error:
    raise ImportError(f"torchdata is not installed; {how_to_install('torchdata')}") from error


class TokenNode(BaseNode[dict[str, Any]]):
    """The microbatches of a TokenLoader as a node.

    Its state is that of the loader. So a run resumes with any number of ranks, and without reading earlier batches. As usual
    in torchdata, each new `iter()` of a `Loader` starts again: at the position that the loader had when the node was made,
    unless a state has been loaded. The node uses a copy of the loader.

    Example:
        >>> loader = torchdata.nodes.Loader(Prefetcher(TokenNode(TokenLoader(plan, microbatch_size=8)), 2))
        >>> for batch in loader:
        ...     batch["input_ids"]  # int64[8, sequence_length]
    """

    def __init__(self, loader: TokenLoader[Any]):
        """Make a node. Nothing is read yet."""
        super().__init__()
        self._loader = self._current = loader
        self._batches: Iterator[dict[str, Any]] = iter(())

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Start at a state, or at the beginning. Raises: the errors of TokenLoader.load_state_dict."""
        super().reset(initial_state)
        self._current = copy.copy(self._loader)
        if initial_state is not None:
            self._current.load_state_dict(initial_state)
        self._batches = iter(self._current)

    def next(self) -> dict[str, Any]:
        """The next microbatch, in the format of the loader. Raises: StopIteration: the plan has ended."""
        return next(self._batches)

    def get_state(self) -> dict[str, int | str]:
        """The state after the microbatches so far, the same on every rank."""
        return self._current.state_dict()
