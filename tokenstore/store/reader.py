"""Opens a store and reads documents. Opening reads the manifest and file sizes, maps files lazily, and never reads a shard."""

import hashlib
import itertools
import operator
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.input_lines import Origin
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    IDS_NAME,
    INPUTS_NAME,
    LENGTH_INDEX_NAME,
    MAX_ID_BYTES,
    ORIGINS_NAME,
    id_starts_bytes,
    length_index_dtype,
    length_index_numbers_bytes,
    mask_bytes,
    version_of,
)
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.format.runs import are_runs
from tokenstore.outside import MAX_TOKENIZER_BYTES
from tokenstore.store.files import read_bytes
from tokenstore.store.input_list import Inputs
from tokenstore.store.maps import MapCache
from tokenstore.store.notebook import store_html
from tokenstore.store.pin import Pace, Pin

if TYPE_CHECKING:
    from tokenstore.tokenizer import Tokenizer

_INT64 = np.dtype("<i8")
_BYTE = np.dtype("u1")
_maps = MapCache()
_owners = itertools.count()


def open_store(
    path: str | Path, check: str = "sizes", version: int | None = None, allow_links: str | Path | None = None
) -> "Store":
    """Open the store at `path` for reading.

    Args:
        path: the store's directory.
        check: "sizes" compares the size of every file with the manifest now; "lazy" does so when a file is first mapped.
        version: version of a store that has grown (FMT-13), from 1. Default: the newest.
        allow_links: a directory that symbolic links inside the store may lead to, for caches made of links. Default: links
            must stay inside the store.

    Raises:
        FormatError: `path` is not a store, is unfinished or of another format; or there is no such version.
        CorruptionError: a file is missing, has another size or is a link that leads elsewhere; or the manifest is damaged.

    Example:
        >>> store = open_store("stores/web")
        >>> store[0]                                # token ids of the first document
    """
    if check not in ("sizes", "lazy"):
        raise ValueError(f"check: expected 'sizes' or 'lazy', found {check!r}")
    links = None if allow_links is None else Path(allow_links).absolute()
    return Store(Path(path).absolute(), check, version if version is None else operator.index(version), links)


class Store(Sequence[np.ndarray]):
    """A corpus on disk: `store[i]` is the token ids of document i. Can be pickled (by path) and shared among threads.

    A Store remains the store that was opened. If another store is put at its path, or one of its files is damaged, reading raises a
    CorruptionError. Changes are detected when a file is mapped, and at the next read after 0.2 seconds (FMT-8). `tokenstore
    append` and `tokenstore index` do not affect an open store.

    Attributes:
        path: the store's directory.
        manifest: description of the contents (FMT-5).
        version: 1, plus one for every append (FMT-13).
        allow_links: as in `open_store`, absolute.
    """

    def __init__(self, path: Path, check: str, version: int | None = None, allow_links: Path | None = None):
        self.path = path
        self.allow_links = allow_links
        self._pin = Pin(path, version, check == "sizes", allow_links)
        self.manifest = self._pin.manifest
        self.version = self.manifest.version
        self._check = check
        self._first_documents = [shard.first_document for shard in self.manifest.shards]
        self._boundaries = self.number_of(BOUNDARIES_NAME)
        self._inputs: Inputs | None = None
        self._pace = Pace()
        self._owner = next(_owners)
        weakref.finalize(self, _maps.forget, self._owner).atexit = False
        self._tokenizer: Tokenizer | None = None
        self._loading = threading.Lock()
        starts = self.boundaries()[: len(self) + 1]
        if starts[0] != 0 or starts[-1] != self.num_tokens:
            self._corrupt(BOUNDARIES_NAME, "ends", f"0 and {self.num_tokens}", f"{starts[0]} and {starts[-1]}")

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[Any, ...]]:
        return _reopen, (str(self.path), self._check, self.version, self.allow_links, self.digest)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {len(self)} documents, {self.num_tokens} tokens, {self.dtype})"

    def _repr_html_(self) -> str:
        return store_html(self.path, self.manifest)

    def __len__(self) -> int:
        return self.manifest.num_documents

    @property
    def num_tokens(self) -> int:
        """Total number of tokens, including end-of-text tokens."""
        return self.manifest.num_tokens

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; every token id is smaller."""
        return self.manifest.vocab_size

    @property
    def digest(self) -> str:
        """Identity of the content: sha256, hex (FMT-5)."""
        return self.manifest.digest

    @property
    def manifest_path(self) -> Path:
        """The file that contains the manifest."""
        return self._pin.manifest_path

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the token ids: little-endian uint16 or uint32."""
        return np.dtype(self.manifest.dtype).newbyteorder("<")

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]  # a slice is refused
        """Token ids of document `index`: a read-only uint16/uint32[n] view, n >= 1. No copy; valid while it is held.

        Raises:
            IndexError: there is no such document. A negative index counts from the end.
            CorruptionError: the boundaries are damaged, or an id is not in the vocabulary.
        """
        i = self._document(index)
        number, start, stop = self._place(i)
        shard, tokens = self.manifest.shards[number], self.shard(number)[start:stop]
        if int(tokens.max()) >= self.vocab_size:
            self._corrupt(shard.file, f"document {i}", f"token ids below {self.vocab_size}", f"{tokens.max()}")
        return tokens

    def _document(self, index: int) -> int:
        """The number of document `index`, which counts from the end if it is negative."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"document: expected an integer, found {type(index).__name__}")
        i = int(index) + len(self) if index < 0 else int(index)
        if not 0 <= i < len(self):
            raise IndexError(f"document: expected one of {len(self)}, found {index} ({self.path})")
        return i

    def _place(self, document: int) -> tuple[int, int, int]:
        """(shard, start, stop) of a document; start and stop are positions in the shard."""
        start, stop = (int(x) for x in self.boundaries()[document : document + 2])
        number = bisect_right(self._first_documents, document) - 1
        shard = self.manifest.shards[number]
        end = shard.first_token + shard.num_tokens
        if not shard.first_token <= start < stop <= end:
            rule = f"a part of tokens {shard.first_token}..{end}"
            self._corrupt(BOUNDARIES_NAME, f"document {document}", rule, f"{start}..{stop}")
        return number, start - shard.first_token, stop - shard.first_token

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def loss_mask(self, index: int) -> np.ndarray:
        """bool[n], which tokens of document `index` are in the loss. All are, in a store without masks (FMT-10)."""
        number, start, stop = self._place(self._document(index))
        if not self.manifest.has_masks:
            return np.ones(stop - start, np.bool_)
        bits = np.unpackbits(self.mask(number)[start // 8 : mask_bytes(stop)], bitorder="little")
        return bits[start % 8 :][: stop - start].astype(np.bool_)

    def mask(self, number: int) -> np.ndarray:
        """The loss mask of a shard: uint8[ceil(num_tokens / 8)], read-only, one bit per token, mapped."""
        return self.array(self.mask_number(number))

    def origin(self, index: int) -> Origin | None:
        """Where document `index` came from; None in a store without origins (FMT-11). CorruptionError if they are damaged."""
        i = self._document(index)
        if not self.has_origins:
            return None
        record = int(self.origins()[i])
        if record < 1:
            self._corrupt(ORIGINS_NAME, f"document {i}", "the number of a record, from 1", f"{record}")
        return Origin(self.inputs().file_of(i), record)

    def id(self, index: int) -> str | None:
        """The id of document `index`, which may be empty; None in a store without ids (FMT-12). CorruptionError if damaged."""
        i = self._document(index)
        if not self.has_ids:
            return None
        starts, text = self.ids()
        start, stop = (int(x) for x in starts[i : i + 2])
        if not 0 <= start <= stop <= min(text.size, start + MAX_ID_BYTES):
            rule = f"at most {MAX_ID_BYTES} of bytes 0..{text.size}"
            self._corrupt(IDS_NAME, f"id of document {i}", rule, f"{start}..{stop}")
        try:
            return text[start:stop].tobytes().decode()
        except UnicodeDecodeError:
            self._corrupt(IDS_NAME, f"id of document {i}", "UTF-8", ascii(text[start:stop][:60].tobytes()))

    def decode(self, index: int) -> str:
        """Text of document `index`, including special tokens."""
        return self.tokenizer.decode(self[index])

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that the store was built with, loaded from the store's copy of its file and kept until `close`."""
        with self._loading:  # load once, also with several threads
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return self._tokenizer

    def _load_tokenizer(self) -> "Tokenizer":
        from tokenstore.tokenizer import load_tokenizer

        entry = self.manifest.tokenizer
        kept = self.check_tokenizer()
        spec = str(self.path / entry.file) if entry.file else entry.kind
        tokenizer = load_tokenizer(spec, eos_id=entry.eos_id, allow_links=self.allow_links, listed=self.manifest.files)
        self._pin.check(kept)  # it may have been replaced while it was read
        if tokenizer.kind != entry.kind:
            self._corrupt(str(entry.file), "tokenizer", f"one of the kind {entry.kind}", f"one of {tokenizer.kind}")
        return tokenizer

    def check_tokenizer(self) -> list[int]:
        """The numbers of the tokenizer's files. CorruptionError if a checksum, or the sha256 in the digest, differs."""
        kept = [self._pin.number_of(name) for name in self._pin.small_files]
        for number in kept:
            self._pin.check_content(number)
        entry = self.manifest.tokenizer
        if entry.file is not None:
            data = read_bytes(self.path / entry.file, MAX_TOKENIZER_BYTES, self.allow_links)
            if (found := hashlib.sha256(data).hexdigest()) != entry.sha256:
                self._corrupt(entry.file, "tokenizer", f"the sha256 {entry.sha256}", found)
        return kept

    def boundaries(self) -> np.ndarray:
        """int64[D + 1 + lookup entries], read-only: first token of each document, the end, then the lookup table (FMT-3)."""
        return self.array(self._boundaries)

    @property
    def has_length_index(self) -> bool:
        """Whether the store has a length index. `tokenstore index` adds one."""
        return self.has_file(LENGTH_INDEX_NAME)

    @property
    def has_origins(self) -> bool:
        """Whether the store records where its documents came from."""
        return self.manifest.has_origins

    @property
    def has_ids(self) -> bool:
        """Whether every document has an id."""
        return self.manifest.has_ids

    def file(self, name: str) -> Path:
        """Path in this version of a file that depends on all documents, by its name in version 1 (FMT-13)."""
        return self.path / self.manifest.name_of(name)

    def has_file(self, name: str) -> bool:
        """Whether this version has such a file."""
        return self.manifest.name_of(name) in self.manifest.files

    def entry(self, name: str) -> FileEntry:
        """Size and checksum of such a file; KeyError if this version has none."""
        return self.manifest.files[self.manifest.name_of(name)]

    def origins(self) -> np.ndarray:
        """int64[D], read-only: the number of each document's record in its input file (FMT-11). The values are not checked."""
        return self.array(self.number_of(ORIGINS_NAME))

    def inputs(self) -> Inputs:
        """The input files, read once. CorruptionError if their documents do not add up to those of the store."""
        if self._inputs is None:
            path, number = self.file(INPUTS_NAME), self.number_of(INPUTS_NAME)
            self._pin.check([number])
            inputs = Inputs(path, len(self), self.allow_links, check=lambda: self._pin.check([number]))
            self._pin.check_checksum(number, inputs.checksum)
            self._inputs = inputs
        return self._inputs

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """int64[D + 1], where each id begins, and the end; uint8[n], all ids. Read-only; the values are not checked (FMT-12)."""
        data = self.array(self.number_of(IDS_NAME))
        return data[: id_starts_bytes(len(self))].view(_INT64), data[id_starts_bytes(len(self)) :]

    def length_index(self) -> np.ndarray:
        """uint32[D] (int64 above 2**32 documents), read-only: document numbers sorted by (tokens, number) (FMT-9). Not checked."""
        return self._length_index_bytes()[: len(self) * length_index_dtype(len(self)).itemsize].view(
            length_index_dtype(len(self))
        )

    def runs(self) -> np.ndarray:
        """int64[runs, 2], read-only: each length that occurs, and the index in `length_index()` of its first document.

        Raises:
            CorruptionError: they do not add up to the documents and tokens of the store.
        """
        runs = self._length_index_bytes()[length_index_numbers_bytes(len(self)) :].view(_INT64).reshape(-1, 2)
        if not are_runs(runs, len(self), self.num_tokens):
            total = f"{len(self)} documents of {self.num_tokens} tokens"
            self._corrupt(LENGTH_INDEX_NAME, "runs", f"rising lengths of {total}", "others")
        return runs

    def _length_index_bytes(self) -> np.ndarray:
        return self.array(self.number_of(LENGTH_INDEX_NAME))

    def shard(self, number: int) -> np.ndarray:
        """uint16/uint32[num_tokens], read-only: all tokens of a shard, mapped."""
        return self.array(number)

    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards in stream order, as in the manifest."""
        return self.manifest.shards

    # ---- files by number: the shards are 0, 1, ...

    def mask_number(self, shard: int) -> int:
        """Number of the file with the loss mask of a shard."""
        return self._pin.mask_number(shard)

    def number_of(self, name: str) -> int:
        """Number of a file that depends on all documents, by its name in version 1 (FMT-13)."""
        return self._pin.number_of(self.manifest.name_of(name))

    def array(self, number: int) -> np.ndarray:
        """A whole file, mapped, read-only: tokens of a shard, int64 boundaries and origins, bytes of any other file.

        Raises:
            CorruptionError: the store or the file is no longer what was opened.
        """
        if self._pace.is_due():
            began = monotonic()
            self.check_files(_maps.files(self._owner))
            self._pace.checked(began)
        array = _maps.get(self._owner, number)
        return _maps.put(self._owner, number, self.map(number)) if array is None else array

    def map(self, number: int) -> np.ndarray:
        """Like `array`, in a new map that is not cached."""
        name = self._pin.entry(number)[0]
        numbers = self.file(BOUNDARIES_NAME).name, self.file(ORIGINS_NAME).name
        dtype = self.dtype if number < len(self.manifest.shards) else _INT64 if name in numbers else _BYTE
        return self._pin.map(number, dtype)

    def check_files(self, numbers: Sequence[int] = ()) -> None:
        """CorruptionError, naming the file, if the manifest or one of these files is no longer what was opened."""
        self._pin.check([*numbers])

    def check_content(self, number: int) -> None:
        """Read a file completely. TokenStoreError if it cannot be read or is not the file that was opened."""
        self._pin.check_content(number)

    def close(self) -> None:
        """Release the maps and the tokenizer. Arrays still held stay valid; reading again maps again."""
        _maps.forget(self._owner)
        with self._loading:
            self._tokenizer = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _corrupt(self, file: str, place: str, expected: str, found: str) -> NoReturn:
        path = self.path / (file if version_of(file) is None else self.manifest.name_of(file))
        raise CorruptionError(
            f"{place}: expected {expected}, found {found} ({path}); run `tokenstore verify {self.path}`"
        )


def _reopen(path: str, check: str, version: int, allow_links: Path | None, digest: str) -> Store:
    """Unpickle a store; its content must be the same."""
    store = open_store(path, check, version, allow_links)
    if store.digest != digest:
        raise CorruptionError(
            f"store: expected the digest {digest}, as when it was pickled, found {store.digest} ({path});"
            " it was replaced since: restore the old store, or restart the run"
        )
    return store
