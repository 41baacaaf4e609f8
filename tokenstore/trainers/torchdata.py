"""TokenNode: a TokenLoader as a source of `torchdata.nodes`."""

import copy
from collections.abc import Iterator
from typing import Any

from tokenstore.torch_data.loader import TokenLoader

try:
    from torchdata.nodes import BaseNode
except ImportError as error:
    raise ImportError("torchdata: expected the package, found none; pip install 'torchdata>=0.11'") from error


class TokenNode(BaseNode[dict[str, Any]]):
    """Microbatches of a loader as a node: `Loader(Prefetcher(TokenNode(loader), 2))`.

    Its state is the loader's, so it goes on with any number of ranks, and without reading what was given. As torchdata
    has it, each new `iter()` of a `Loader` begins again: where the loader was when the node was made, unless a state has
    been loaded. The loader itself is only copied.
    """

    def __init__(self, loader: TokenLoader[Any]):
        """Make a node; nothing is read yet."""
        super().__init__()
        self._loader = self._current = loader
        self._batches: Iterator[dict[str, Any]] = iter(())

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Go to a state, or to the beginning. Raises: StateMismatchError, ConfigError: as TokenLoader.load_state_dict."""
        super().reset(initial_state)
        self._current = copy.copy(self._loader)
        if initial_state is not None:
            self._current.load_state_dict(initial_state)
        self._batches = iter(self._current)

    def next(self) -> dict[str, Any]:
        """The next microbatch."""
        return next(self._batches)

    def get_state(self) -> dict[str, int | str]:
        """The state after the microbatches given, the same on every rank."""
        return self._current.state_dict()
