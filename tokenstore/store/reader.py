"""Open a store and read documents. Opening reads the manifest and sizes, maps lazily, never reads a shard."""

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.inputs import Origin
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    IDS_NAME,
    INPUTS_NAME,
    MAX_ID_BYTES,
    ORDER_NAME,
    ORIGINS_NAME,
    boundaries_bytes,
    id_starts_bytes,
    mask_bytes,
    mask_name,
    order_dtype,
    order_ids_bytes,
    version_of,
)
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.format.runs import are_runs
from tokenstore.store.files import MapCache, check_size
from tokenstore.store.inputs import Inputs
from tokenstore.store.manifests import BUILDING_SUFFIX as BUILDING_SUFFIX
from tokenstore.store.manifests import read_manifest

if TYPE_CHECKING:
    from tokenstore.tokenizer import Tokenizer

_INT64 = np.dtype("<i8")
_BYTE = np.dtype("u1")
_maps = MapCache()


def open_store(
    path: str | Path, check: str = "sizes", version: int | None = None, allow_links: str | Path | None = None
) -> "Store":
    """Open the store at `path` for reading.

    Args:
        path: the store's directory.
        check: "sizes" compares every file's size with the manifest now; "lazy" does so when a file is first mapped.
        version: which version of a store that has grown (FMT-13), from 1; left out: the newest.
        allow_links: a folder that symbolic links inside the store may lead to, for caches that consist of links; omitted:
            links must stay inside the store.

    Raises:
        FormatError: `path` is no store, an unfinished one, or of another format; or it has no such version.
        CorruptionError: a file is missing, of another size, a link to a place outside, or the manifest is damaged.
    """
    if check not in ("sizes", "lazy"):
        raise ValueError(f"check: expected 'sizes' or 'lazy', found {check!r}")
    links = None if allow_links is None else Path(allow_links).absolute()
    return Store(Path(path).absolute(), check, version if version is None else operator.index(version), links)


class Store(Sequence[np.ndarray]):
    """A corpus on disk: `store[i]` are the tokens of document i. Safe to pickle (by path) and to share among threads.

    Attributes:
        path: its directory.
        manifest: what it holds; `manifest_path`: where that stands.
        version: 1, and one more for every time that documents were added (FMT-13).
        allow_links: as in `open_store`, absolute.
    """

    def __init__(self, path: Path, check: str, version: int | None = None, allow_links: Path | None = None):
        self.path = path
        self.allow_links = allow_links
        _maps.forget(path)  # of another store that had this name
        self.manifest_path, self.manifest = read_manifest(path, version, allow_links)
        self.version = self.manifest.version
        self._check = check
        self._first_documents = [shard.first_document for shard in self.manifest.shards]
        self._boundaries = self.file(BOUNDARIES_NAME)
        self._inputs: Inputs | None = None
        if check == "sizes":
            for name, entry in self.manifest.files.items():
                check_size(path / name, entry.num_bytes, allow_links)
            for shard in self.manifest.shards:
                check_size(path / shard.file, shard.num_bytes, allow_links)
        starts = self.boundaries()[: len(self) + 1]
        if starts[0] != 0 or starts[-1] != self.num_tokens:
            self._corrupt(BOUNDARIES_NAME, "ends", f"0 and {self.num_tokens}", f"{starts[0]} and {starts[-1]}")

    def __reduce__(self) -> tuple:
        return open_store, (str(self.path), self._check, self.version, self.allow_links)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {len(self)} documents, {self.num_tokens} tokens, {self.dtype})"

    def __len__(self) -> int:
        return self.manifest.num_documents

    num_tokens = property(lambda self: self.manifest.num_tokens, doc="Tokens of all documents, EOS included.")
    vocab_size = property(lambda self: self.manifest.vocab_size, doc="One more than the largest id allowed.")
    digest = property(lambda self: self.manifest.digest, doc="Identity of the content, hex (FMT-5).")

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.manifest.dtype).newbyteorder("<")

    def __getitem__(self, index: int) -> np.ndarray:
        """Read-only uint16/uint32[n] view of document `index`, n >= 1; no copy; valid as long as it is held."""
        i = self._document(index)
        number, start, stop = self._place(i)
        shard, tokens = self.manifest.shards[number], self.shard(number)[start:stop]
        if int(tokens.max()) >= self.vocab_size:
            self._corrupt(shard.file, f"document {i}", f"ids below {self.vocab_size}", f"{tokens.max()}")
        return tokens

    def _document(self, index: int) -> int:
        """The number of document `index`, counted from the end where negative."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"document: expected an integer, found {type(index).__name__}")
        i = int(index) + len(self) if index < 0 else int(index)
        if not 0 <= i < len(self):
            raise IndexError(f"document: expected one of {len(self)}, found {index} ({self.path})")
        return i

    def _place(self, document: int) -> tuple[int, int, int]:
        """(shard, start, stop) of a document, in tokens of the shard."""
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
        """bool[n], which tokens of document `index` are to be learned; all, in a store without masks (FMT-10)."""
        number, start, stop = self._place(self._document(index))
        if not self.manifest.has_masks:
            return np.ones(stop - start, np.bool_)
        bits = np.unpackbits(self.mask(number)[start // 8 : mask_bytes(stop)], bitorder="little")
        return bits[start % 8 :][: stop - start].astype(np.bool_)

    def mask(self, number: int) -> np.ndarray:
        """uint8[ceil(num_tokens / 8)], read-only: the loss mask of a shard, a bit a token, mapped."""
        name = mask_name(number)
        return self._map(self.path / name, _BYTE, self.manifest.files[name].num_bytes)

    def origin(self, index: int) -> Origin | None:
        """Where document `index` came from; None in a store that does not say (FMT-11).

        Raises: CorruptionError: the origins or the list of inputs are damaged.
        """
        i = self._document(index)
        if not self.has_origins:
            return None
        record = int(self.origins()[i])
        if record < 1:
            self._corrupt(ORIGINS_NAME, f"document {i}", "the number of a record, from 1", f"{record}")
        return Origin(self.inputs().file_of(i), record)

    def id(self, index: int) -> str | None:
        """The id of document `index`, which may be empty; None in a store without ids (FMT-12).

        Raises: CorruptionError: the ids are damaged.
        """
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
        """Text of document `index`, special tokens shown."""
        return self.tokenizer.decode(self[index])

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that made this store, from its own copy of the file."""
        from tokenstore.tokenizer import load_tokenizer

        entry = self.manifest.tokenizer
        spec = str(self.path / entry.file) if entry.file else entry.kind
        tokenizer = load_tokenizer(spec, eos_id=entry.eos_id, allow_links=self.allow_links)
        if tokenizer.kind != entry.kind:
            self._corrupt(str(entry.file), "tokenizer", f"one of the kind {entry.kind}", f"one of {tokenizer.kind}")
        return tokenizer

    def boundaries(self) -> np.ndarray:
        """int64[D + 1 + lookup entries], read-only: first token of each document, the end, then the lookup (FMT-3)."""
        return self._map(self._boundaries, _INT64, boundaries_bytes(len(self), self.num_tokens) // 8)

    @property
    def has_order(self) -> bool:
        """Whether there is an order file; `tokenstore index` gives a store one."""
        return self.entry(ORDER_NAME) is not None

    has_origins = property(
        lambda self: self.manifest.has_origins, doc="Whether `origin` knows where documents are from."
    )
    has_ids = property(lambda self: self.manifest.has_ids, doc="Whether every document has an id.")

    def file(self, name: str) -> Path:
        """Where a file that depends on all documents stands in this version, by its name in version 1 (FMT-13)."""
        return self.path / self.manifest.name_of(name)

    def entry(self, name: str) -> FileEntry | None:
        """Size and checksum of such a file; None where there is none."""
        return self.manifest.files.get(self.manifest.name_of(name))

    def origins(self) -> np.ndarray:
        """int64[D], read-only: the number of each document's record in its input file (FMT-11). Unchecked."""
        return self._map(self.file(ORIGINS_NAME), _INT64, len(self))

    def inputs(self) -> Inputs:
        """The input files, read once; CorruptionError where their documents do not add up to those of the store."""
        if self._inputs is None:
            path, num_bytes = self.file(INPUTS_NAME), self.entry(INPUTS_NAME).num_bytes
            check_size(path, num_bytes, self.allow_links)
            self._inputs = Inputs(path, len(self), self.allow_links)
        return self._inputs

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """int64[D + 1], where each id begins, and the end; uint8[n], all ids. Read-only, unchecked (FMT-12)."""
        data = self._map(self.file(IDS_NAME), _BYTE, self.entry(IDS_NAME).num_bytes)
        return data[: id_starts_bytes(len(self))].view(_INT64), data[id_starts_bytes(len(self)) :]

    def order(self) -> np.ndarray:
        """uint32[D] (int64 above 2**32 documents), read-only: numbers by (tokens, number) (FMT-9). Unchecked."""
        return self._order_bytes()[: len(self) * order_dtype(len(self)).itemsize].view(order_dtype(len(self)))

    def runs(self) -> np.ndarray:
        """int64[runs, 2], read-only: every length that occurs, and the place in `order()` of its first document.

        Raises: CorruptionError: they do not add up to the documents and tokens of the store.
        """
        runs = self._order_bytes()[order_ids_bytes(len(self)) :].view(_INT64).reshape(-1, 2)
        if not are_runs(runs, len(self), self.num_tokens):
            total = f"{len(self)} documents of {self.num_tokens} tokens"
            self._corrupt(ORDER_NAME, "runs", f"rising lengths of {total}", "others")
        return runs

    def _map(self, path: Path, dtype: np.dtype, count: int) -> np.ndarray:
        return _maps.get(path, dtype, count, self.allow_links)

    def _order_bytes(self) -> np.ndarray:
        return self._map(self.file(ORDER_NAME), _BYTE, self.entry(ORDER_NAME).num_bytes)

    def shard(self, number: int) -> np.ndarray:
        """uint16/uint32[num_tokens], read-only: all tokens of a shard, mapped."""
        entry = self.manifest.shards[number]
        return self._map(self.path / entry.file, self.dtype, entry.num_tokens)

    def shards(self) -> tuple[ShardEntry, ...]:
        return self.manifest.shards

    def close(self) -> None:
        """Forget the maps. Arrays still held stay valid; reading again maps again."""
        _maps.forget(self.path)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _corrupt(self, file: str, place: str, expected: str, found: str) -> NoReturn:
        path = self.path / (file if version_of(file) is None else self.manifest.name_of(file))
        raise CorruptionError(
            f"{place}: expected {expected}, found {found} ({path}); run `tokenstore verify {self.path}`"
        )
