"""The contents of manifest.json (FMT-5) as frozen dataclasses."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenstore.format.layout import (
    ADOPTED_NAME,
    BOUNDARIES_NAME,
    CONTENT_HASHES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    MASK_PREFIX,
    METADATA_NAME,
    ORIGINS_NAME,
    mask_of,
    version_of,
    versioned,
)


@dataclass(frozen=True)
class FileEntry:
    """A side file: size in bytes, and xxh3-128 of its contents, in hex."""

    num_bytes: int
    checksum: str


@dataclass(frozen=True)
class ShardEntry:
    """A shard: its file, and the range of the stream and of the documents that it contains.

    The tokens begin at `first_byte`, after the header of another format in an adopted store (FMT-14).
    """

    file: str
    num_bytes: int
    num_tokens: int
    first_token: int
    num_documents: int
    first_document: int
    checksum: str
    first_byte: int = 0


@dataclass(frozen=True)
class TokenizerEntry:
    """Identity of a tokenizer: kind (`bytes`, `huggingface`, ...), its file in the store with sha256, special ids, engine."""

    kind: str
    file: str | None
    sha256: str | None
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    engine: str
    engine_version: str


@dataclass(frozen=True)
class Manifest:
    """Description of a store (FMT-5). `options`, `counts` and `package_versions` are informational: how the store was built."""

    dtype: str
    vocab_size: int
    num_tokens: int
    num_documents: int
    ends_with_eos: bool
    tokenizer: TokenizerEntry
    shards: tuple[ShardEntry, ...]
    files: dict[str, FileEntry]
    options: dict[str, Any]
    counts: dict[str, int]
    package_versions: dict[str, str]

    @property
    def has_masks(self) -> bool:
        """Whether the store has loss masks (FMT-10). All shards have one, or none."""
        return any(name.startswith(MASK_PREFIX) for name in self.files)

    @property
    def has_origins(self) -> bool:
        """Whether every document has the number of its record (FMT-11)."""
        return self.name_of(ORIGINS_NAME) in self.files

    @property
    def has_ids(self) -> bool:
        """Whether every document has an id (FMT-12)."""
        return self.name_of(IDS_NAME) in self.files

    @property
    def is_adopted(self) -> bool:
        """Whether the store was made over token files of another tool (FMT-14)."""
        return ADOPTED_NAME in self.files

    @property
    def has_metadata(self) -> bool:
        """Whether there are columns of metadata (FMT-16)."""
        return self.name_of(METADATA_NAME) in self.files

    @property
    def has_document_inputs(self) -> bool:
        """Whether documents are in another order than their inputs, with the number of its input for each (FMT-17)."""
        return self.name_of(DOCUMENT_INPUTS_NAME) in self.files

    @property
    def has_content_hashes(self) -> bool:
        """Whether there are hashes of the documents' contents (FMT-18)."""
        return self.name_of(CONTENT_HASHES_NAME) in self.files

    @cached_property
    def version(self) -> int:
        """Version of the store, from 1 (FMT-13). It is part of the name of the boundaries file."""
        return next((version_of(name) or 1 for name in self.files if is_boundaries(name)), 1)

    @property
    def num_bytes(self) -> int:
        """Total size in bytes of all files of the store except the manifest."""
        return sum(file.num_bytes for file in self.files.values()) + sum(shard.num_bytes for shard in self.shards)

    def name_of(self, name: str) -> str:
        """The name in this version of a file that depends on all documents, for example `boundaries-v2.bin`."""
        return versioned(name, self.version)

    @cached_property
    def digest(self) -> str:
        """Identity of the content (FMT-5): tokens, masks, boundaries, tokenizer, vocabulary and shard sizes."""
        content = {
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": [self.tokenizer.kind, self.tokenizer.sha256],
            "shards": [[shard.num_tokens, shard.checksum] for shard in self.shards],
            "boundaries": self.files[self.name_of(BOUNDARIES_NAME)].checksum,
        }
        if self.has_masks:
            content["masks"] = [self.files[mask_of(shard.file)].checksum for shard in self.shards]
        return sha256_of(content)


def is_boundaries(name: str) -> bool:
    """Whether `name` is the name of a boundaries file, of any version."""
    version = version_of(name)
    return version is not None and name == versioned(BOUNDARIES_NAME, version)


def canonical_json(value: Any) -> str:
    """The canonical JSON text of `value`: sorted keys, no white space, ASCII. ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_of(value: Any) -> str:
    """sha256, hex, of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
