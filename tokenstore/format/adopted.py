"""adopted.json (FMT-14): the token files of another tool that an adopted store was made over."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from tokenstore.errors import CorruptionError

FORMATS = ("megatron", "datatrove", "dolma", "nanogpt", "llmc")
CUTS = ("index", "eos", "both", "file")
EOS_PLACES = ("end", "start", "none")
_MAX_NUMBER = (1 << 64) - 1
_MAX_INDEX_FILES = 4  # per shard


@dataclass(frozen=True)
class AdoptedFile:
    """A shard, the foreign index files that belong to it, and the identity of the linked file; None for a copy."""

    shard: str
    index: tuple[str, ...]
    device: int | None
    inode: int | None
    modified: int | None


@dataclass(frozen=True)
class Adopted:
    """How an adopted store was made: the foreign format, what divides documents, and the files (FMT-14)."""

    format: str
    cut: str
    eos_at: str
    eos_id: int | None
    files: tuple[AdoptedFile, ...]


def max_adopted_bytes(num_shards: int) -> int:
    """The largest size in bytes of an adopted.json."""
    return 1024 * (1 + num_shards)


def encode_adopted(adopted: Adopted) -> bytes:
    """The bytes of adopted.json."""
    return json.dumps(asdict(adopted), sort_keys=True, indent=1).encode() + b"\n"


def decode_adopted(data: bytes, place: str) -> Adopted:
    """Decode and validate an adopted.json.

    Args:
        data: the bytes of the file.
        place: path of the file, for messages.

    Raises:
        CorruptionError: it is damaged.
    """

    def fail(expected: str, found: object) -> NoReturn:
        shown = str(found)[:120]
        raise CorruptionError(f"adopted: expected {expected}, found {shown} ({place}); adopt the files again")

    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        fail("JSON", error)
    _check_fields(body, Adopted, fail)
    for field, allowed in (("format", FORMATS), ("cut", CUTS), ("eos_at", EOS_PLACES)):
        if body[field] not in allowed:
            fail(f"{field} to be one of {', '.join(allowed)}", repr(body[field]))
    if not _is_number(body["eos_id"]):
        fail("an id or null as eos_id", repr(body["eos_id"]))
    if not isinstance(body["files"], list):
        fail("a list of files", type(body["files"]).__name__)
    return Adopted(**{**body, "files": tuple(_decode_file(each, fail) for each in body["files"])})


def _decode_file(body: Any, fail: Any) -> AdoptedFile:
    _check_fields(body, AdoptedFile, fail)
    names = body["index"]
    if not isinstance(body["shard"], str) or not isinstance(names, list) or len(names) > _MAX_INDEX_FILES:
        fail("the name of a shard and a list of index files", repr(body))
    if not all(isinstance(name, str) for name in names):
        fail("names of index files", repr(names))
    if not all(_is_number(body[field]) for field in ("device", "inode", "modified")):
        fail("numbers or null as device, inode and modified", repr(body))
    return AdoptedFile(**{**body, "index": tuple(names)})


def _check_fields(body: Any, cls: type, fail: Any) -> None:
    names = {field.name for field in fields(cls)}
    if not isinstance(body, dict) or set(body) != names:
        fail(f"the fields {sorted(names)}", sorted(body) if isinstance(body, dict) else type(body).__name__)


def _is_number(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value <= _MAX_NUMBER)
