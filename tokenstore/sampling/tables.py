"""Stores as arrays a kernel reads: one row a source, one row a file, and the addresses of the files that are mapped.

A kernel that needs a file which is not mapped says so and is called again. So the usual batch is one call, a start costs
nothing, and the number of maps is bounded whatever the number of shards.
"""

from collections.abc import Sequence

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.layout import BOUNDARIES_NAME
from tokenstore.order.keys import as_bits, base_key
from tokenstore.store import Store
from tokenstore.store.files import max_maps

# Columns of `sources`
NUM_TOKENS, NUM_DOCUMENTS, NUM_SEQUENCES, SEQUENCE_KEY, OFFSET_KEY, FIRST_FILE, NUM_SHARDS, ITEM_BYTES, VOCAB_SIZE = (
    range(9)
)
# Columns of `files`; a source's boundaries come first, then its shards
ADDRESS, FIRST_TOKEN, FILE_TOKENS, LAST_USED = range(4)
# What a kernel says in `report[0]`. report[1:] is then: NOT_MAPPED file; BAD_ID source, token, vocabulary, id found;
# BAD_BOUNDARY file, token, start and stop found
OK, NOT_MAPPED, BAD_ID, BAD_BOUNDARY = range(4)
REPORT_SIZE = 5


class Tables:
    """Arrays over the stores of a plan.

    Attributes:
        sources: int64[num_sources, 9], see the columns above.
        files: int64[num_files, 4]; ADDRESS is 0 for a file that is not mapped.
    """

    def __init__(self, stores: Sequence[Store], names: Sequence[str], num_sequences: Sequence[int], seed: int):
        self.stores = stores
        self._owners: list[tuple[int, int]] = []  # of each file: source, and shard or -1 for the boundaries
        files = []
        self.sources = np.zeros((len(stores), 9), np.int64)
        for number, (store, name, sequences) in enumerate(zip(stores, names, num_sequences, strict=True)):
            keys = (as_bits(base_key(seed, purpose, name)) for purpose in ("sequence", "offset"))
            shards = store.shards()
            sizes = (store.num_tokens, len(store), sequences, *keys, len(files), len(shards))
            self.sources[number] = (*sizes, store.dtype.itemsize, store.vocab_size)
            files += [(0, 0, store.num_tokens, 0), *((0, shard.first_token, shard.num_tokens, 0) for shard in shards)]
            self._owners += [(number, shard) for shard in range(-1, len(shards))]
        self.files = np.array(files, np.int64)
        self._held: dict[int, np.ndarray] = {}
        self._most_held = max_maps()

    def resolve(self, report: np.ndarray, clock: int) -> None:
        """Do what a kernel asked for in `report`: map a file; or raise for the damage it met."""
        if report[0] == BAD_ID:
            self._refuse_id(*(int(x) for x in report[1:5]))
        file = int(report[1])
        number, shard = self._owners[file]
        store = self.stores[number]
        if report[0] == NOT_MAPPED:
            self._make_room(clock)
            array = store.boundaries() if shard < 0 else store.shard(shard)
            self._held[file] = array
            self.files[file, ADDRESS] = array.ctypes.data
            self.files[file, LAST_USED] = clock  # not to go before the kernel has come back for it
            return
        token, start, stop = (int(x) for x in report[2:5])
        raise CorruptionError(
            f"document of token {token}: expected boundaries that rise around it, found {start}..{stop}"
            f" ({store.path / BOUNDARIES_NAME}); run `tokenstore verify {store.path}`"
        )

    def _refuse_id(self, number: int, token: int, vocab_size: int, found: int) -> None:
        store = self.stores[number]
        shard = next(shard for shard in store.shards() if token < shard.first_token + shard.num_tokens)
        raise CorruptionError(
            f"tokens from {token - shard.first_token} on: expected ids below {vocab_size}, found {found}"
            f" ({store.path / shard.file}); run `tokenstore verify {store.path}`"
        )

    def _make_room(self, clock: int) -> None:
        """Let go of the maps used longest ago, but of none that the batch under way has used."""
        while len(self._held) >= self._most_held:
            oldest = min(self._held, key=lambda file: self.files[file, LAST_USED])
            if self.files[oldest, LAST_USED] == clock:
                return
            self.files[oldest, ADDRESS] = 0
            del self._held[oldest]
