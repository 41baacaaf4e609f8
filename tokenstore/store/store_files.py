"""The files of a store, mapped when they are first used, and checked again while they are in use."""

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import numpy as np

from tokenstore.errors import CorruptionError
from tokenstore.format.block_checksums import checksummed_files
from tokenstore.format.layout import (
    BLOCK_CHECKSUMS_NAME,
    BOUNDARIES_NAME,
    CONTENT_HASHES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    INPUTS_NAME,
    LENGTH_INDEX_NAME,
    MAX_ID_BYTES,
    METADATA_NAME,
    ORIGINS_NAME,
    id_starts_bytes,
    length_index_dtype,
    length_index_numbers_bytes,
    version_of,
)
from tokenstore.format.manifest import FileEntry, ShardEntry
from tokenstore.format.runs import are_runs
from tokenstore.store.find_manifest import versions
from tokenstore.store.input_list import Inputs
from tokenstore.store.maps import MapCache
from tokenstore.store.metadata import MetadataReader
from tokenstore.store.pin import Pace, Pin
from tokenstore.store.remote.array import RemoteArray
from tokenstore.store.remote.index_files import RemoteFiles
from tokenstore.store.remote.token_files import TokenFiles

_INT64 = np.dtype("<i8")
_BYTE = np.dtype("u1")
_UINT64 = np.dtype("<u8")
_maps = MapCache()
_owners = itertools.count()


class StoreFiles:
    """The files of one version of a store, as arrays. Files have numbers: the shards are 0, 1, ...; then their masks, then all others.

    Attributes:
        path: the store's directory. Of a store at a URL, the directory in the cache that has its index files.
        url: the URL of the store; None for a store on a disk.
        place: the URL or the directory, for messages.
        remote: the store's objects; None for a store on a disk.
        manifest: description of the contents (FMT-5).
        version: 1, plus one for every append (FMT-13).
        allow_links: as in `open_store`, absolute.
        token_files: the shards and masks of a store at a URL; None if they are files in the store's directory.
    """

    def __init__(
        self,
        path: Path,
        check: str,
        version: int | None = None,
        allow_links: Path | None = None,
        remote: RemoteFiles | None = None,
    ):
        self.path = path
        self.allow_links = allow_links
        self.remote = remote
        self.url = None if remote is None else remote.url
        self.place = str(path) if remote is None else remote.url
        began, looks_now = monotonic(), check == "sizes" and remote is None
        self._pin = Pin(path, version, looks_now, allow_links)
        self.manifest = self._pin.manifest
        self.version = self.manifest.version
        self.token_files: TokenFiles | None = None
        if remote is not None:
            known, options = remote.infos.known, remote.options
            self.token_files = TokenFiles(remote.client, self.manifest, known, options, self.block_checksums)
        self._check = check
        self._boundaries = self.number_of(BOUNDARIES_NAME)
        self._inputs: Inputs | None = None
        self._block_starts: np.ndarray | None = None  # of each file in the block checksums
        self._metadata: MetadataReader | None = None
        self._pace = Pace()
        if looks_now:
            self._pace.checked(began)
        self._owner = next(_owners)
        weakref.finalize(self, _maps.forget, self._owner).atexit = False

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

    def shard(self, number: int) -> np.ndarray:
        """uint16/uint32[num_tokens], read-only: all tokens of a shard, mapped."""
        return self.array(number)

    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards in stream order, as in the manifest."""
        return self.manifest.shards

    def mask(self, number: int) -> np.ndarray:
        """The loss mask of a shard: uint8[ceil(num_tokens / 8)], read-only, one bit per token, mapped."""
        return self.array(self.mask_number(number))

    def boundaries(self) -> np.ndarray:
        """int64[D + 1 + lookup entries], read-only: first token of each document, the end, then the lookup table (FMT-3)."""
        return self.array(self._boundaries)

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """int64[D + 1], where each id begins, and the end; uint8[n], all ids. Read-only; the values are not checked (FMT-12)."""
        data, starts = self.array(self.number_of(IDS_NAME)), id_starts_bytes(self.manifest.num_documents)
        return data[:starts].view(_INT64), data[starts:]

    def _id_bytes(self, document: int) -> tuple[int, int, int, np.ndarray]:
        """Start and end of a document's id, the size of all ids, and the bytes of the id if start and end are possible."""
        data, first = self.part(self.number_of(IDS_NAME)), id_starts_bytes(self.manifest.num_documents)
        start, stop = (int(x) for x in data[8 * document : 8 * document + 16].view(_INT64))
        fits = 0 <= start <= stop <= min(data.size - first, start + MAX_ID_BYTES)
        return start, stop, data.size - first, data[first + start : first + stop] if fits else data[:0]

    def length_index(self) -> np.ndarray:
        """uint32[D] (int64 above 2**32 documents), read-only: document numbers sorted by (tokens, number) (FMT-9). Not checked."""
        documents = self.manifest.num_documents
        dtype = length_index_dtype(documents)
        return self._length_index_bytes()[: documents * dtype.itemsize].view(dtype)

    def runs(self) -> np.ndarray:
        """int64[runs, 2], read-only: each length that occurs, and the index in `length_index()` of its first document.

        Raises:
            CorruptionError: they do not add up to the documents and tokens of the store.
        """
        documents = self.manifest.num_documents
        data = self.part(self.number_of(LENGTH_INDEX_NAME))
        runs = data[length_index_numbers_bytes(documents) :].view(_INT64).reshape(-1, 2)
        if not are_runs(runs, documents, self.num_tokens):
            total = f"{documents} documents of {self.num_tokens} tokens"
            self._corrupt(LENGTH_INDEX_NAME, "runs", f"rising lengths of {total}", "others")
        return runs

    def _length_index_bytes(self) -> np.ndarray:
        return self.array(self.number_of(LENGTH_INDEX_NAME))

    def block_checksums(self, number: int) -> np.ndarray | None:
        """uint64[blocks], read-only: the XXH3-64 of each block of 64 KiB of a shard or mask; None if there are none (FMT-15)."""
        if not self.has_block_checksums:
            return None
        if self._block_starts is None:
            counts = [count for _, count in checksummed_files(self.manifest)]
            self._block_starts = np.cumsum([0, *counts])
        shards = len(self.manifest.shards)
        place = number if not self.manifest.has_masks else 2 * (number % shards) + number // shards
        start, stop = self._block_starts[place : place + 2]
        return self.array(self.number_of(BLOCK_CHECKSUMS_NAME)).view(_UINT64)[start:stop]

    @property
    def has_block_checksums(self) -> bool:
        """Whether the store has checksums of blocks. `tokenstore index` adds them."""
        return self.has_file(BLOCK_CHECKSUMS_NAME)

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

    def versions(self) -> list[int]:
        """The versions of this store that can be opened, in rising order (FMT-13)."""
        return versions(self.path, self.allow_links) if self.remote is None else self.remote.versions

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
            self._fetch([number])
            self._pin.check([number])
            inputs = Inputs(
                path, self.manifest.num_documents, self.allow_links, check=lambda: self._pin.check([number])
            )
            self._pin.check_checksum(number, inputs.checksum)
            self._inputs = inputs
        return self._inputs

    def document_inputs(self) -> np.ndarray:
        """int64[D], read-only: the line of each document's input in inputs.jsonl, from 0 (FMT-17). The values are not checked."""
        return self.array(self.number_of(DOCUMENT_INPUTS_NAME))

    def content_hashes(self) -> np.ndarray:
        """uint64[D, 2], read-only: a hash of each document's content, the low word first (FMT-18)."""
        return self.array(self.number_of(CONTENT_HASHES_NAME)).view("<u8").reshape(-1, 2)

    @property
    def has_metadata(self) -> bool:
        """Whether documents have metadata."""
        return self.manifest.has_metadata

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """Names of the columns of metadata; () if there are none. CorruptionError if the file is damaged."""
        return self._metadata_reader().columns if self.has_metadata else ()

    def metadata_rows(self) -> Iterator[list[list[Any]]]:
        """The metadata of all documents, in blocks of rows, each a list of values. CorruptionError if the file is damaged."""
        return self._metadata_reader().rows()

    def _metadata_reader(self) -> MetadataReader:
        """The reader of the metadata. The map is checked again at every call, like every map."""
        data = self.array(self.number_of(METADATA_NAME))
        if self._metadata is None:
            self._metadata = MetadataReader(data, self.manifest.num_documents, self.file(METADATA_NAME))
        return self._metadata

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
        if self.remote is not None and number < self._num_token_files:
            return self.map(number)  # not cached: it is in memory
        array = _maps.get(self._owner, number)
        return _maps.put(self._owner, number, self.map(number)) if array is None else array

    def part(self, number: int) -> "np.ndarray | RemoteArray":
        """Like `array`, to take slices of: of a store at a URL only what a slice needs is fetched, if the file is not cached."""
        if self.remote is None or (number >= self._num_token_files and self.remote.has(self._pin.entry(number)[0])):
            return self.array(number)
        read, dtype = partial(self._read, number), self._dtype_of(number)
        first, stop = self._byte_range(number)
        return RemoteArray(read, dtype, first, (stop - first) // dtype.itemsize)

    def _read(self, number: int, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start], bytes of a file of a store at a URL."""
        assert self.remote is not None
        if self.token_files is not None and number < self._num_token_files:
            return self.token_files.read(number, start, stop)
        name = self._pin.entry(number)[0]
        return self.remote.client.get(name, start, stop, self.remote.infos[name]).data

    def _byte_range(self, number: int) -> tuple[int, int]:
        """Where the array of a file begins and ends in it."""
        entry = self._pin.entry(number)[1]
        return (entry.first_byte if isinstance(entry, ShardEntry) else 0), entry.num_bytes

    @property
    def _num_token_files(self) -> int:
        """Number of shards and masks."""
        return len(self.manifest.shards) * (2 if self.manifest.has_masks else 1)

    def _fetch(self, numbers: Iterable[int]) -> None:
        """Make sure that index files of a store at a URL are in the cache."""
        if self.remote is not None:
            for number in numbers:
                self.remote.fetch(self._pin.entry(number)[0])

    def map(self, number: int) -> np.ndarray:
        """Like `array`, in a new map that is not cached. A shard or mask of a store at a URL is read into memory."""
        if self.remote is not None and number < self._num_token_files:
            return self.part(number)[:]
        self._fetch([number])
        return self._pin.map(number, self._dtype_of(number))

    def _dtype_of(self, number: int) -> np.dtype:
        if number < len(self.manifest.shards):
            return self.dtype
        name = self._pin.entry(number)[0]
        numbers = map(self.manifest.name_of, (BOUNDARIES_NAME, ORIGINS_NAME, DOCUMENT_INPUTS_NAME))
        return _INT64 if name in numbers else _BYTE

    def file_of(self, number: int) -> tuple[Path, FileEntry | ShardEntry]:
        """The path of a file by its number, and its size and checksum."""
        name, entry = self._pin.entry(number)
        return self.path / name, entry

    def check_files(self, numbers: Sequence[int] = ()) -> None:
        """CorruptionError, naming the file, if the manifest or one of these files is no longer what was opened."""
        if self.remote is None:
            self._pin.check([*numbers])
            return
        try:
            self._pin.check([number for number in numbers if number >= self._num_token_files])
        except CorruptionError as error:
            raise CorruptionError(
                f"cache: the index files of {self.place} were changed or removed while in use ({error}); start again, and do"
                " not clear the cache of a run"
            ) from error

    def check_content(self, number: int) -> None:
        """Read a file completely. TokenStoreError if it cannot be read or is not the file that was opened."""
        self._pin.check_content(number)

    def _release_maps(self) -> None:
        self._metadata = None
        _maps.forget(self._owner)

    def _corrupt(self, file: str, place: str, expected: str, found: str) -> NoReturn:
        path = f"{self.place}/{file if version_of(file) is None else self.manifest.name_of(file)}"
        raise CorruptionError(
            f"{place}: expected {expected}, found {found} ({path}); run `tokenstore verify {self.place}`"
        )
