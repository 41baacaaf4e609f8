"""Names, sizes and limits of a store's files (FMT-1..3, FMT-6, FMT-9..15), used by the reader and the writer."""

import re
from functools import lru_cache

import numpy as np

MANIFEST_NAME = "manifest.json"
BOUNDARIES_NAME = "boundaries.bin"
LENGTH_INDEX_NAME = "length_index.bin"
SHARD_PREFIX = "tokens-"
MASK_PREFIX = "mask-"
INPUTS_NAME = "inputs.jsonl"
ORIGINS_NAME = "origins.bin"
IDS_NAME = "ids.bin"
BLOCK_CHECKSUMS_NAME = "block_checksums.bin"
METADATA_NAME = "metadata.arrow"
DOCUMENT_INPUTS_NAME = "document_inputs.bin"
CONTENT_HASHES_NAME = "content_hashes.bin"
TEMPORARY_SUFFIX = ".tokenstore-tmp"  # of a file that is being written
SIDE_NAMES = (
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)  # files that tokenizer libraries look for next to the tokenizer's file
VERSIONED_NAMES = (
    BOUNDARIES_NAME,
    LENGTH_INDEX_NAME,
    INPUTS_NAME,
    ORIGINS_NAME,
    IDS_NAME,
    BLOCK_CHECKSUMS_NAME,
    METADATA_NAME,
    DOCUMENT_INPUTS_NAME,
    CONTENT_HASHES_NAME,
)  # files that depend on all documents (FMT-13)

LOOKUP_STRIDE = 4096  # tokens per lookup entry: 8 bytes per 4,096 tokens is 0.1 % of a uint16 store
CHECKSUM_BLOCK = 1 << 16  # bytes per block checksum: 8 bytes per 64 KiB are 0.012 % of a store
MOST_SHORT_NUMBERS = 1 << 32  # up to this many documents, numbers in `length_index.bin` are uint32
TOKENIZER_KINDS = ("bytes", "huggingface", "none", "sentencepiece", "tiktoken")
KINDS_WITHOUT_FILE = ("bytes", "none")  # `none`: ids whose tokenizer is not known
ADOPTED_NAME = "adopted.json"
FOREIGN_PREFIX = "foreign-"  # of the index files of another tool in an adopted store (FMT-14)
MAX_TOKENS = 1 << 60  # byte offsets of uint32 tokens stay below 2**63
MAX_VOCAB = 1 << 32
MAX_ID_BYTES = 65_535  # of UTF-8
MAX_METADATA_BYTES = 65_535  # of a document, as JSON
METADATA_BATCH = 8192  # documents per batch of the Arrow file (FMT-16)

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
MAX_VERSION = 999_999_999
_VERSION = re.compile(r"-v([1-9][0-9]{0,8})(?=\.)", re.ASCII)


def shard_name(index: int) -> str:
    """File name of shard `index` (from 0)."""
    return f"{SHARD_PREFIX}{index:05d}.bin"


def mask_name(index: int) -> str:
    """File name of the loss mask of shard `index` (FMT-10)."""
    return f"{MASK_PREFIX}{index:05d}.bin"


def mask_of(shard: str) -> str:
    """File name of the loss mask of the shard with this file name."""
    return MASK_PREFIX + shard.removeprefix(SHARD_PREFIX)


def mask_bytes(num_tokens: int) -> int:
    """Size in bytes of the loss mask of a shard: one bit per token."""
    return -(-num_tokens // 8)


def versioned(name: str, version: int) -> str:
    """The name in version `version` of a file that depends on all documents: `boundaries-v2.bin` (FMT-13)."""
    stem, _, ending = name.partition(".")
    return name if version == 1 else f"{stem}-v{version}.{ending}"


@lru_cache(maxsize=256)  # most stores have files of the same names
def version_of(name: str) -> int | None:
    """The version that `name` belongs to if it is a file that depends on all documents; None for any other file."""
    found = _VERSION.search(name)
    version = int(found[1]) if found else 1
    return version if any(versioned(each, version) == name for each in VERSIONED_NAMES) else None


def is_shard_name(name: str, index: int, version: int) -> bool:
    """Whether a version of a store may give shard `index` this name: that of version 1, or of a later one up to it (FMT-19)."""
    found = _VERSION.search(name)
    made = int(found[1]) if found else 1
    return made <= version and name == versioned(shard_name(index), made)


def manifest_name(version: int) -> str:
    """Name of the manifest of a version that is no longer the newest (FMT-13)."""
    return f"manifest-v{version}.json"


def manifest_version(name: str) -> int | None:
    """The version whose older manifest has this name; None for any other file."""
    found = _VERSION.search(name)
    return int(found[1]) if found and manifest_name(int(found[1])) == name else None


def is_store_name(name: str) -> bool:
    """Whether writers use this name for a file of a store. Names of other files (the tokenizer's) are only in the manifest."""
    numbered = re.fullmatch(r"(tokens|mask)-[0-9]{5,}(-v[0-9]+)?\.bin", name, re.ASCII)
    return bool(numbered or version_of(name) or manifest_version(name)) or name == MANIFEST_NAME


def is_of_adoption(name: str) -> bool:
    """Whether `name` is that of adopted.json or of an index file of another tool (FMT-14)."""
    return name == ADOPTED_NAME or name.startswith(FOREIGN_PREFIX)


def is_taken_name(name: str) -> bool:
    """Whether `name` is reserved and cannot be listed in a manifest's `files`: a writer would replace such a file."""
    is_shard = re.fullmatch(r"tokens-[0-9]{5,}(-v[0-9]+)?\.bin", name, re.ASCII)
    return bool(is_shard or manifest_version(name)) or name == MANIFEST_NAME or name.endswith(TEMPORARY_SUFFIX)


def is_plain_name(name: str) -> bool:
    """Whether `name` is one path component that cannot leave its directory (FMT-6)."""
    return _NAME.fullmatch(name) is not None


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 if every id below `vocab_size` fits, otherwise uint32 (FMT-2)."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def num_lookup_entries(num_tokens: int) -> int:
    """Number of entries of the lookup table for `num_tokens` tokens (FMT-3)."""
    return -(-num_tokens // LOOKUP_STRIDE)


def boundaries_bytes(num_documents: int, num_tokens: int) -> int:
    """Size of `boundaries.bin` in bytes."""
    return 8 * (num_documents + 1 + num_lookup_entries(num_tokens))


def length_index_dtype(num_documents: int) -> np.dtype:
    """The dtype of a document number in `length_index.bin` (FMT-9)."""
    return np.dtype("<u4") if num_documents <= MOST_SHORT_NUMBERS else np.dtype("<i8")


def length_index_numbers_bytes(num_documents: int) -> int:
    """Bytes of the document numbers in `length_index.bin`, padded to a multiple of 8. The runs begin there."""
    return -(-num_documents * length_index_dtype(num_documents).itemsize // 8) * 8


def can_hold_length_index(num_documents: int, num_tokens: int, num_bytes: int) -> bool:
    """Whether a `length_index.bin` can have `num_bytes` bytes (FMT-9).

    r different lengths are at least 1, 2, .., r, and every other document has at least one token. So r is below about
    sqrt(2 * num_tokens), and a file of an impossible size is rejected before it is read.
    """
    runs, rest = divmod(num_bytes - length_index_numbers_bytes(num_documents), 16)
    return rest == 0 and 1 <= runs <= num_documents and runs * (runs - 1) // 2 + num_documents <= num_tokens


def can_hold_origins(num_documents: int, num_tokens: int, num_bytes: int) -> bool:
    """Whether an `origins.bin` can have `num_bytes` bytes (FMT-11)."""
    return num_bytes == 8 * num_documents


def can_hold_content_hashes(num_documents: int, num_tokens: int, num_bytes: int) -> bool:
    """Whether a `content_hashes.bin` can have `num_bytes` bytes (FMT-18)."""
    return num_bytes == 16 * num_documents


def id_starts_bytes(num_documents: int) -> int:
    """Bytes of the starts in `ids.bin`. The text begins there."""
    return 8 * (num_documents + 1)


def can_hold_ids(num_documents: int, num_tokens: int, num_bytes: int) -> bool:
    """Whether an `ids.bin` can have `num_bytes` bytes (FMT-12)."""
    return 0 <= num_bytes - id_starts_bytes(num_documents) <= MAX_ID_BYTES * num_documents


def can_hold_metadata(num_documents: int, num_tokens: int, num_bytes: int) -> bool:
    """Whether a `metadata.arrow` can have `num_bytes` bytes (FMT-16): an Arrow file begins and ends with its mark."""
    return num_bytes > len("ARROW1\0\0ARROW1")


def lookup_entries(starts: np.ndarray, first: int, stop: int, first_document: int) -> np.ndarray:
    """The lookup entries for tokens in [first, stop), a range that consists of whole documents.

    Args:
        starts: int64[n], first token of each of these documents, increasing, starts[0] == first.
        first, stop: stream positions.
        first_document: number of the first of these documents.

    Returns:
        int64[entries], document numbers.
    """
    marks = np.arange(-(-first // LOOKUP_STRIDE), -(-stop // LOOKUP_STRIDE), dtype=np.int64)
    return np.searchsorted(starts, marks * LOOKUP_STRIDE, side="right") - 1 + first_document
