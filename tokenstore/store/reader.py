"""Opens a store and reads documents. Opening reads the manifest and file sizes, maps files lazily, and never reads a shard."""

import hashlib
import operator
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.input_lines import Origin
from tokenstore.format.layout import (
    BOUNDARIES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    MAX_ID_BYTES,
    ORIGINS_NAME,
    mask_bytes,
)
from tokenstore.outside import MAX_TOKENIZER_BYTES
from tokenstore.store.files import read_bytes
from tokenstore.store.notebook import store_html
from tokenstore.store.remote.index_files import RemoteFiles
from tokenstore.store.remote.location import Location, is_url, refuse_url_as_path
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.store_files import StoreFiles

_ID_BLOCK = 4096  # ids that are read at once: at most 256 MiB

if TYPE_CHECKING:
    from tokenstore.tokenizer import Tokenizer


def open_store(
    path: str | Path,
    check: str = "sizes",
    version: int | None = None,
    allow_links: str | Path | None = None,
    remote: RemoteOptions | None = None,
) -> "Store":
    """Open the store at `path` for reading.

    Args:
        path: the store's directory, or its URL: s3://bucket/path, gs://, az:// or http(s)://.
        check: "sizes" compares the size of every file with the manifest now; "lazy" does so when a file is first mapped.
        version: version of a store that has grown (FMT-13), from 1. Default: the newest.
        allow_links: a directory that symbolic links inside the store may lead to, for caches made of links. Default: links
            must stay inside the store.
        remote: where to keep the index files of a store at a URL, and how its tokens travel. Default: from the environment.

    Raises:
        FormatError: `path` is not a store, is unfinished or of another format; or there is no such version.
        CorruptionError: a file is missing, has another size or is a link that leads elsewhere; or the manifest is damaged.
        RemoteError: an object of a store at a URL cannot be read.

    Example:
        >>> store = open_store("stores/web")
        >>> store[0]                                # token ids of the first document
        >>> store = open_store("s3://bucket/web")   # reads only what is used
    """
    if check not in ("sizes", "lazy"):
        raise ValueError(f"check: expected 'sizes' or 'lazy', found {check!r}")
    links = None if allow_links is None else Path(allow_links).absolute()
    version = None if version is None else operator.index(version)
    if is_url(path):
        files = RemoteFiles(Location.of(str(path)), version, check, remote)
        return Store(files.folder, check, None, None, files)
    refuse_url_as_path(Path(path))
    return Store(Path(path).absolute(), check, version, links)


class Store(StoreFiles, Sequence[np.ndarray]):
    """A corpus on disk: `store[i]` is the token ids of document i. Can be pickled (by path) and shared among threads.

    A Store remains the store that was opened. If another store is put at its path, or one of its files is damaged, reading raises a
    CorruptionError. Changes are detected when a file is mapped, and at the next read after 0.2 seconds (FMT-8). `tokenstore
    append` and `tokenstore index` do not affect an open store.

    Attributes:
        path: the store's directory. Of a store at a URL, the directory in the cache that has its index files.
        url: the URL of the store; None for a store on a disk.
        place: the URL or the directory, for messages.
        remote: the store's objects; None for a store on a disk.
        manifest: description of the contents (FMT-5).
        version: 1, plus one for every append (FMT-13).
        allow_links: as in `open_store`, absolute.
    """

    def __init__(
        self,
        path: Path,
        check: str,
        version: int | None = None,
        allow_links: Path | None = None,
        remote: RemoteFiles | None = None,
    ):
        super().__init__(path, check, version, allow_links, remote)
        self._first_documents = [shard.first_document for shard in self.manifest.shards]
        self._tokenizer: Tokenizer | None = None
        self._loading = threading.Lock()
        if remote is None:
            self._check_ends(self.boundaries())

    def _check_ends(self, boundaries: np.ndarray) -> None:
        first, last = int(boundaries[0]), int(boundaries[len(self)])
        if (first, last) != (0, self.num_tokens):
            self._corrupt(BOUNDARIES_NAME, "ends", f"0 and {self.num_tokens}", f"{first} and {last}")

    def map(self, number: int) -> np.ndarray:
        """Like `array`, in a new map that is not cached. A shard or mask of a store at a URL is read into memory."""
        array = super().map(number)
        if self.remote is not None and number == self._boundaries:
            self._check_ends(array)
        return array

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[Any, ...]]:
        options = None if self.remote is None else self.remote.given_options
        return _reopen, (self.place, self._check, self.version, self.allow_links, self.digest, options)

    def __repr__(self) -> str:
        return f"Store({self.place!r}, {len(self)} documents, {self.num_tokens} tokens, {self.dtype})"

    def _repr_html_(self) -> str:
        return store_html(self.place, self.manifest)

    def __len__(self) -> int:
        return self.manifest.num_documents

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]  # a slice is refused
        """Token ids of document `index`: a read-only uint16/uint32[n] view, n >= 1. No copy; valid while it is held.

        Raises:
            IndexError: there is no such document. A negative index counts from the end.
            CorruptionError: the boundaries are damaged, or an id is not in the vocabulary.
        """
        i = self._document(index)
        number, start, stop = self._place(i)
        shard, tokens = self.manifest.shards[number], self.part(number)[start:stop]
        if int(tokens.max()) >= self.vocab_size:
            self._corrupt(shard.file, f"document {i}", f"token ids below {self.vocab_size}", f"{tokens.max()}")
        return tokens

    def _document(self, index: int) -> int:
        """The number of document `index`, which counts from the end if it is negative."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"document: expected an integer, found {type(index).__name__}")
        i = int(index) + len(self) if index < 0 else int(index)
        if not 0 <= i < len(self):
            raise IndexError(f"document: expected one of {len(self)}, found {index} ({self.place})")
        return i

    def _place(self, document: int) -> tuple[int, int, int]:
        """(shard, start, stop) of a document; start and stop are positions in the shard."""
        start, stop = (int(x) for x in self.part(self._boundaries)[document : document + 2])
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
        mask = self.part(self.mask_number(number))[start // 8 : mask_bytes(stop)]
        bits = np.unpackbits(mask, bitorder="little")
        return bits[start % 8 :][: stop - start].astype(np.bool_)

    def origin(self, index: int) -> Origin | None:
        """Where document `index` came from; None in a store without origins (FMT-11). CorruptionError if they are damaged."""
        i = self._document(index)
        if not self.has_origins:
            return None
        record = int(self.part(self.number_of(ORIGINS_NAME))[i : i + 1][0])
        if record < 1:
            self._corrupt(ORIGINS_NAME, f"document {i}", "the number of a record, from 1", f"{record}")
        inputs = self.inputs()
        if not self.manifest.has_document_inputs:
            return Origin(inputs.file_of(i), record)
        number = int(self.part(self.number_of(DOCUMENT_INPUTS_NAME))[i : i + 1][0])
        if not 0 <= number < len(inputs):
            self._corrupt(DOCUMENT_INPUTS_NAME, f"document {i}", f"one of {len(inputs)} inputs", f"{number}")
        return Origin(inputs.name(number), record)

    def metadata(self, index: int) -> dict[str, Any] | None:
        """The metadata of document `index`: a value or None for each column; None in a store without metadata (FMT-16).

        Raises:
            IndexError: there is no such document. A negative index counts from the end.
            CorruptionError: the metadata are damaged.

        Example:
            >>> store.metadata(0)
            {'meta.url': 'https://example.org/a', 'meta.score': 0.9}
        """
        i = self._document(index)
        return self._metadata_reader().row(i) if self.has_metadata else None

    def id(self, index: int) -> str | None:
        """The id of document `index`, which may be empty; None in a store without ids (FMT-12). CorruptionError if damaged."""
        i = self._document(index)
        if not self.has_ids:
            return None
        start, stop, num_bytes, text = self._id_bytes(i)
        if not 0 <= start <= stop <= min(num_bytes, start + MAX_ID_BYTES):
            rule = f"at most {MAX_ID_BYTES} of bytes 0..{num_bytes}"
            self._corrupt(IDS_NAME, f"id of document {i}", rule, f"{start}..{stop}")
        try:
            return text.tobytes().decode()
        except UnicodeDecodeError:
            self._corrupt(IDS_NAME, f"id of document {i}", "UTF-8", ascii(text[:60].tobytes()))

    def ids_between(self, first: int, stop: int) -> list[str]:
        """The ids of documents [first, stop), 0 <= first <= stop <= len(self), of a store that has ids (FMT-12).

        They are read block by block, many times as fast as with `id`.

        Raises:
            CorruptionError: an id is damaged.
        """
        found: list[str] = []
        for begin in range(first, stop, _ID_BLOCK):
            end = min(begin + _ID_BLOCK, stop)
            try:
                found += self._ids_of_block(begin, end)
            except ValueError:
                found += [self.id(i) or "" for i in range(begin, end)]  # raises the error that names the document
        return found

    def _ids_of_block(self, first: int, stop: int) -> list[str]:
        """The ids of documents [first, stop). ValueError if one has an impossible place, or is not UTF-8."""
        all_starts, text = self.ids()
        starts = all_starts[first : stop + 1]
        sizes = np.diff(starts)
        if not (0 <= starts[0] <= starts[-1] <= text.size and sizes.min() >= 0 and sizes.max() <= MAX_ID_BYTES):
            raise ValueError("ids")
        data = text[int(starts[0]) : int(starts[-1])].tobytes()
        return [data[start:end].decode() for start, end in pairwise((starts - starts[0]).tolist())]

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
        tokenizer = load_tokenizer(
            spec,
            eos_id=entry.eos_id,
            allow_links=self.allow_links,
            listed=self.manifest.files,
            vocab_size=self.vocab_size if entry.kind == "none" else None,
        )
        self._pin.check(kept)  # it may have been replaced while it was read
        if tokenizer.kind != entry.kind:
            self._corrupt(str(entry.file), "tokenizer", f"one of the kind {entry.kind}", f"one of {tokenizer.kind}")
        return tokenizer

    def check_tokenizer(self) -> list[int]:
        """The numbers of the tokenizer's files. CorruptionError if a checksum, or the sha256 in the digest, differs."""
        kept = [self._pin.number_of(name) for name in self._pin.small_files]
        self._fetch(kept)
        for number in kept:
            self._pin.check_content(number)
        entry = self.manifest.tokenizer
        if entry.file is not None:
            data = read_bytes(self.path / entry.file, MAX_TOKENIZER_BYTES, self.allow_links)
            if (found := hashlib.sha256(data).hexdigest()) != entry.sha256:
                self._corrupt(entry.file, "tokenizer", f"the sha256 {entry.sha256}", found)
        return kept

    def close(self) -> None:
        """Release the maps and the tokenizer. Arrays still held stay valid; reading again maps again."""
        self._release_maps()
        with self._loading:
            self._tokenizer = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _reopen(
    path: str,
    check: str,
    version: int,
    allow_links: Path | None,
    digest: str,
    remote: RemoteOptions | None,
) -> Store:
    """Unpickle a store; its content must be the same."""
    store = open_store(path, check, version, allow_links, remote)
    if store.digest != digest:
        raise CorruptionError(
            f"store: expected the digest {digest}, as when it was pickled, found {store.digest} ({path});"
            " it was replaced since: restore the old store, or restart the run"
        )
    return store
