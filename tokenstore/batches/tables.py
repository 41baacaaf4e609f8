"""Stores, sources and files as arrays that a kernel reads: a row for each, with the addresses of the mapped files.

A kernel that needs a file that is not mapped reports it and is called again. So most batches are one call, starting
costs nothing, and the number of maps is bounded for any number of shards.
"""

from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np

from tokenstore.batches.sources import Source
from tokenstore.errors import CorruptionError
from tokenstore.format.layout import BOUNDARIES_NAME, LENGTH_INDEX_NAME
from tokenstore.order.keys import as_bits, base_key
from tokenstore.order.lanes import SHAPE_WORDS
from tokenstore.store import Store
from tokenstore.store.maps import MAX_MAPS
from tokenstore.store.pin import Pace

# Columns of `stores`. FIRST_FILE: number of its boundaries file. INDEX_FILE: number of its length index, FIRST_MASK:
# number of its first mask file; -1 if there is none. P / Q: repeat factor. IN_SLICE: documents of its slice, or of the
# store; the others are the arguments of `slice_position`
NUM_TOKENS, NUM_DOCUMENTS, FIRST_FILE, NUM_SHARDS, TOKEN_BYTES, VOCAB_SIZE, INDEX_FILE, FIRST_MASK, P, Q = range(10)
IN_SLICE, SLICE_FIRST, SLICE_STEP, SLICE_P, SLICE_Q = range(10, 15)
STORE_COLUMNS = 15
# Columns of `sources`. STORE: its store, if it is not a pool. PACKING: row of `packings` used last. *_KEY: base keys.
# HAS_LANES: 1 if it has lanes; SHAPE: the first of SHAPE_WORDS columns, see `order.lanes`. SHORT_PLACE: the place of its last
# block on the line of epoch SHORT_EPOCH, the last one that was used
NUM_SEQUENCES, STORE, SEQUENCE_KEY, OFFSET_KEY, CLASS_KEY, ROW_KEY, BLOCK_KEY, PLACE_KEY, PACKING = range(9)
HAS_LANES, SHORT_EPOCH, SHORT_PLACE, SHAPE = range(9, 13)
SOURCE_COLUMNS = SHAPE + SHAPE_WORDS
_PURPOSES = ("sequence", "offset", "class", "row", "block", "place")
# Columns of `files`. The files of a store are its boundaries, its shards, its length index and the masks of its shards,
# in this order
ADDRESS, FIRST_TOKEN, FILE_TOKENS, LAST_USED, NUM_BYTES = range(5)
FILE_COLUMNS = 5
# Outcome of a kernel call, the first word of its report. The other words are, for NOT_MAPPED: file; BAD_ID: store,
# token, vocabulary size, id found; BAD_BOUNDARY: file, token, start and stop found; BAD_INDEX: file, 0, document and
# its tokens found (0: no such document); NOT_PACKED: source, epoch; NO_ROOM, for more spans than SPAN_ROOM, and ZEROS_READ,
# see `sigbus`: none
OK, NOT_MAPPED, BAD_ID, BAD_BOUNDARY, BAD_INDEX, NOT_PACKED, NO_ROOM, ZEROS_READ = range(8)
REPORT_SIZE = 5
# ADDRESS of a file at a URL that is not mapped; `remote_rows` replaces addresses from there on. No memory is there, and 8
# times such an address fits int64
VIRTUAL = 1 << 57


class Tables:
    """The stores, sources and files of a plan as arrays, and the maps of the files.

    Attributes:
        stores: int64[num_stores, STORE_COLUMNS], see the columns above.
        sources: int64[num_sources, SOURCE_COLUMNS].
        files: int64[num_files, FILE_COLUMNS]; ADDRESS is 0 for a file that is not mapped.
        lost: clock of the latest use of any map that has been released.
        pace: decides when `check_files` is due.
        open_stores: the stores.
        has_remote: whether a store has its tokens at a URL.
    """

    def __init__(self, stores: Mapping[str, Store], sources: Sequence[Source], seed: int):
        self.open_stores = self._stores = list(stores.values())
        self.has_remote = any(store.token_files is not None for store in self._stores)
        self._owners: list[tuple[int, int]] = []  # for each file: its store, and its number there
        self.stores = np.zeros((len(stores), STORE_COLUMNS), np.int64)
        files: list[tuple[int, ...]] = []
        for number, store in enumerate(self._stores):
            shards = store.shards()
            owners = [store.number_of(BOUNDARIES_NAME), *range(len(shards))]
            owners += [store.number_of(LENGTH_INDEX_NAME)] if store.has_length_index else []
            order = len(files) + len(shards) + 1 if store.has_length_index else -1
            masks = [store.mask_number(shard) for shard in range(len(shards))] if store.manifest.has_masks else []
            first_mask = len(files) + len(owners) if masks else -1
            sizes = (store.num_tokens, len(store), len(files), len(shards), store.dtype.itemsize, store.vocab_size)
            self.stores[number] = (*sizes, order, first_mask, 1, 1, len(store), 0, 1, 1, 1)
            self._owners += [(number, owner) for owner in owners + masks]
            files += [(0, 0, store.num_tokens, 0, 0)]
            files += [(0, shard.first_token, shard.num_tokens, 0, 0) for shard in shards]
            files += [(0, 0, 0, 0, 0)] * (len(self._owners) - len(files))
        self.files = np.array(files, np.int64)
        self.sources = np.zeros((len(sources), SOURCE_COLUMNS), np.int64)
        numbers = {name: number for number, name in enumerate(stores)}
        for number, source in enumerate(sources):
            keys = (as_bits(base_key(seed, purpose, source.name)) for purpose in _PURPOSES)
            row = self.sources[number]
            row[:HAS_LANES] = source.num_sequences, numbers[source.members[0].name], *keys, 0
            row[HAS_LANES], row[SHORT_EPOCH] = source.lanes is not None, -1
            if source.lanes is not None:
                row[SHAPE:] = source.lanes.shape
            for member in source.members:
                row = self.stores[numbers[member.name]]
                row[P : Q + 1] = member.repeat.numerator, member.repeat.denominator
                chosen = member.chosen
                row[IN_SLICE:] = chosen.num_documents, chosen.first + chosen.i, chosen.n, chosen.p, chosen.q
        self._held: dict[int, np.ndarray] = {}
        self._most_held = MAX_MAPS
        self._all_used = -1
        self.lost = 0  # the latest use, by clock, of any map that has been released
        self.pace = Pace()

    def check_files(self) -> None:
        """Check that no store was replaced, and no mapped file changed, truncated or removed since it was opened.

        Raises: TokenStoreError: one was.
        """
        began = monotonic()
        held: list[list[int]] = [[] for _ in self._stores]
        for number, file in map(self._owners.__getitem__, self._held):
            if not self._is_remote(number, file):  # of those, the manifest and the ETag of every answer are checked
                held[number].append(file)
        for store, files in zip(self._stores, held, strict=True):
            store.check_files(files)
        self.pace.checked(began)

    def refuse_cut_file(self, address: int, clock: int) -> None:
        """Release all maps, because one has a page of zeros at `address`, and report what is wrong with its file.

        Raises: TokenStoreError: the file is truncated or cannot be read. If it is complete again, nothing is raised.
        """
        starts = self.files[:, ADDRESS]
        (file,) = np.flatnonzero((starts <= address) & (address < starts + self.files[:, NUM_BYTES]) & (starts > 0))
        self.lost = clock
        starts[:] = 0
        self._held.clear()
        number, file_in_store = self._owners[int(file)]
        remote = self._stores[number].token_files
        if remote is not None and self._is_remote(number, file_in_store):
            remote.refuse_cut(file_in_store)
        self._stores[number].check_content(file_in_store)

    def _is_remote(self, number: int, file_in_store: int) -> bool:
        """Whether a file has its tokens or masks at a URL."""
        files = self._stores[number].token_files
        return files is not None and file_in_store < len(files.num_bytes)

    def _map(self, number: int, file_in_store: int) -> np.ndarray | None:
        """A file in a map of our own, because a `Guard` may put zeros into it. None if it is at a URL and has no mirror."""
        store = self._stores[number]
        if store.token_files is None or not self._is_remote(number, file_in_store):
            return store.map(file_in_store)
        array = store.token_files.map(file_in_store)
        shards = store.shards()
        return array if array is None or file_in_store >= len(shards) else array[shards[file_in_store].first_byte :]

    def resolve(self, report: np.ndarray, clock: int) -> None:
        """Map the file that a kernel requested in `report`, or raise an error for the damage that it found.

        Args:
            report: int64[REPORT_SIZE].
            clock: number of the current call.

        Raises: CorruptionError: an id, a boundary or the length index is damaged.
        """
        if report[0] == BAD_ID:
            self._refuse_id(*(int(x) for x in report[1:5]))
        file = int(report[1])
        number, file_in_store = self._owners[file]
        store = self._stores[number]
        if report[0] == NOT_MAPPED:
            self._make_room(clock)
            if (array := self._map(number, file_in_store)) is None:
                self.files[file, ADDRESS] = VIRTUAL
                return
            self._held[file] = array
            self.files[file, NUM_BYTES] = array.nbytes
            self.files[file, ADDRESS] = array.ctypes.data
            self.files[file, LAST_USED] = clock  # so that it is not released before the kernel runs again
            return
        token, start, stop = (int(x) for x in report[2:5])
        if report[0] == BAD_INDEX:
            found = f"document {start} of {stop} tokens" if stop else f"document {start} of {len(store)}"
            raise CorruptionError(
                f"documents by length: expected equal lengths next to each other, found {found} in between"
                f" ({store.file(LENGTH_INDEX_NAME)}, or {BOUNDARIES_NAME} next to it);"
                f" run `tokenstore verify {store.place}`"
            )
        raise CorruptionError(
            f"document of token {token}: expected rising boundaries around it, found {start}..{stop}"
            f" ({store.file(BOUNDARIES_NAME)}); run `tokenstore verify {store.place}`"
        )

    def _refuse_id(self, number: int, token: int, vocab_size: int, found: int) -> None:
        store = self._stores[number]
        shard = next(shard for shard in store.shards() if token < shard.first_token + shard.num_tokens)
        raise CorruptionError(
            f"tokens from {token - shard.first_token} on: expected token ids below {vocab_size}, found {found}"
            f" ({store.place}/{shard.file}); run `tokenstore verify {store.place}`"
        )

    def _make_room(self, clock: int) -> None:
        """Release the maps used longest ago, but none that the current batch has used."""
        while len(self._held) >= self._most_held and self._all_used != clock:
            oldest = min(self._held, key=lambda file: self.files[file, LAST_USED])
            if self.files[oldest, LAST_USED] == clock:
                self._all_used = clock  # not tried again for the rest of this batch
                return
            self.lost = max(self.lost, int(self.files[oldest, LAST_USED]))
            self.files[oldest, ADDRESS] = 0
            del self._held[oldest]
