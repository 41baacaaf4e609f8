"""Encodes and decodes manifest.json (FMT-5). `decode_manifest` is the only validation of a manifest: every field, once."""

import json
from dataclasses import asdict, fields
from functools import cache
from typing import Any, NoReturn

from tokenstore.errors import CorruptionError, FormatError
from tokenstore.format import FORMAT_VERSION
from tokenstore.format.adopted import max_adopted_bytes
from tokenstore.format.block_checksums import block_checksums_bytes
from tokenstore.format.layout import (
    ADOPTED_NAME,
    BLOCK_CHECKSUMS_NAME,
    BOUNDARIES_NAME,
    CONTENT_HASHES_NAME,
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    INPUTS_NAME,
    KINDS_WITHOUT_FILE,
    LENGTH_INDEX_NAME,
    MASK_PREFIX,
    MAX_TOKENS,
    MAX_VOCAB,
    METADATA_NAME,
    ORIGINS_NAME,
    SIDE_NAMES,
    TOKENIZER_KINDS,
    boundaries_bytes,
    can_hold_content_hashes,
    can_hold_ids,
    can_hold_length_index,
    can_hold_metadata,
    can_hold_origins,
    is_plain_name,
    is_shard_name,
    is_taken_name,
    mask_bytes,
    mask_of,
    shard_name,
    token_dtype,
    version_of,
)
from tokenstore.format.manifest import (
    FileEntry,
    Manifest,
    ShardEntry,
    TokenizerEntry,
    is_boundaries,
    sha256_of,
)
from tokenstore.outside import MAX_SIDE_FILE_BYTES, MAX_TOKENIZER_BYTES

_FORMAT = "tokenstore"
_MOST_NESTED = 20  # a build's options are nested 3 deep; Python's JSON encoder handles some hundreds
_DTYPES = {"uint16": 2, "uint32": 4}


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json. `decode_manifest` is the inverse."""
    body = {"format": _FORMAT, "format_version": FORMAT_VERSION, **asdict(manifest), "digest": manifest.digest}
    text = json.dumps({**body, "checksum": sha256_of(body)}, sort_keys=True, indent=1, ensure_ascii=True)
    return text.encode() + b"\n"


def decode_manifest(data: bytes, place: str) -> Manifest:
    """Decode and validate a manifest: every field, and every count that follows from others.

    Args:
        data: the bytes of the file.
        place: path of the file, for messages.

    Raises:
        FormatError: not a manifest of a token store, or of another format version.
        CorruptionError: a manifest that is damaged or contradicts itself.
    """
    body = _parse(data, place)
    if body.get("format") != _FORMAT:
        raise FormatError(
            f"manifest: expected the format {_FORMAT!r}, found {_short(repr(body.get('format')))} ({place});"
            " is this path a token store?"
        )
    version = body.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        todo = "install a newer tokenstore" if newer else "build the store again"
        raise FormatError(
            f"manifest: expected format version {FORMAT_VERSION}, found {_short(repr(version))} ({place}); {todo}"
        )
    checksum = body.pop("checksum", None)
    if checksum != _checksum(body, place):
        raise CorruptionError(
            f"manifest checksum: expected the sha256 of its fields, found {_short(repr(checksum))} ({place});"
            " copy or build the store again"
        )
    check = _Checker(place)
    manifest = check.manifest({key: body[key] for key in body if key not in ("format", "format_version", "digest")})
    check.counts(manifest)
    if body.get("digest") != manifest.digest:
        check.fail("digest", manifest.digest, body.get("digest"))
    return manifest


def _checksum(body: dict[str, Any], place: str) -> str:
    try:
        return sha256_of(body)
    except RecursionError as error:  # the parser handles one level more than the encoder
        raise CorruptionError(
            f"manifest: expected JSON, found {_short(error)} ({place}); copy or build the store again"
        ) from error


def _parse(data: bytes, place: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key is repeated")
        return found

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not allowed")

    try:
        body = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse, parse_float=refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"manifest: expected JSON, found {_short(error)} ({place}); copy or build the store again"
        ) from error
    if not isinstance(body, dict):
        raise CorruptionError(
            f"manifest: expected a JSON object, found {type(body).__name__} ({place}); copy or build the store again"
        )
    if not data.endswith(b"\n"):  # the only truncation that leaves valid JSON
        raise CorruptionError(
            f"manifest: expected a newline at its end, found none ({place}); copy or build the store again"
        )
    return body


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _is_nested_at_most(value: Any, levels: int) -> bool:
    """Whether lists and objects in a JSON value are nested at most `levels` deep."""
    if not isinstance(value, (dict, list)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_nested_at_most(part, levels - 1) for part in parts)


_SIZED = {
    LENGTH_INDEX_NAME: can_hold_length_index,
    ORIGINS_NAME: can_hold_origins,
    DOCUMENT_INPUTS_NAME: can_hold_origins,
    CONTENT_HASHES_NAME: can_hold_content_hashes,
    IDS_NAME: can_hold_ids,
    METADATA_NAME: can_hold_metadata,
}


@cache
def _names_of(cls: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls))


class _Checker:
    """Validates one manifest. Each error names the file and the field."""

    def __init__(self, place: str):
        self.place = place

    def fail(self, field: str, expected: object, found: object) -> NoReturn:
        raise CorruptionError(
            f"manifest {field}: expected {_short(expected)}, found {_short(found)} ({self.place});"
            " copy or build the store again"
        )

    def record(self, cls: type, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(field, "an object", type(value).__name__)
        names = _names_of(cls)
        if set(value) != names:
            self.fail(field, f"the fields {sorted(names)}", sorted(value))
        return value

    def number(self, value: Any, field: str, low: int = 0, high: int = MAX_TOKENS * 4) -> None:
        if type(value) is not int or not low <= value <= high:
            self.fail(field, f"an integer in {low}..{high}", repr(value))

    def text(self, value: Any, field: str) -> None:
        if not isinstance(value, str):
            self.fail(field, "a string", repr(value))

    def name(self, value: Any, field: str) -> None:
        if not isinstance(value, str) or not is_plain_name(value):
            self.fail(field, "a plain file name inside the store", repr(value))

    def manifest(self, body: dict[str, Any]) -> Manifest:
        self.record(Manifest, body, "fields")
        for field in ("options", "counts", "package_versions", "files"):
            if not isinstance(body[field], dict):
                self.fail(field, "an object", type(body[field]).__name__)
        if not isinstance(body["shards"], list):
            self.fail("shards", "a list", type(body["shards"]).__name__)
        if not _is_nested_at_most(body["options"], _MOST_NESTED):
            self.fail("options", f"values nested at most {_MOST_NESTED} deep", "deeper ones")
        for name, count in body["counts"].items():
            self.number(count, f"counts[{_short(name)}]")
        for name, version in body["package_versions"].items():
            self.text(version, f"package_versions[{_short(name)}]")
        if type(body["ends_with_eos"]) is not bool:
            self.fail("ends_with_eos", "true or false", repr(body["ends_with_eos"]))
        self.number(body["vocab_size"], "vocab_size", 1, MAX_VOCAB)
        self.number(body["num_tokens"], "num_tokens", 1, MAX_TOKENS)
        self.number(body["num_documents"], "num_documents", 1, MAX_TOKENS)
        shards = tuple(self.shard(shard, f"shards[{i}]") for i, shard in enumerate(body["shards"]))
        files = {name: self.file(name, entry) for name, entry in body["files"].items()}
        tokenizer = self.tokenizer(body["tokenizer"], body["vocab_size"])
        if body["ends_with_eos"] and tokenizer.eos_id is None:
            self.fail("tokenizer.eos_id", "an id, because ends_with_eos is true", None)
        return Manifest(**{**body, "shards": shards, "files": files, "tokenizer": tokenizer})

    def shard(self, value: Any, field: str) -> ShardEntry:
        value = self.record(ShardEntry, value, field)
        self.name(value["file"], f"{field}.file")
        self.text(value["checksum"], f"{field}.checksum")
        for key in ("num_bytes", "first_byte", "num_tokens", "first_token", "num_documents", "first_document"):
            self.number(value[key], f"{field}.{key}")
        return ShardEntry(**value)

    def file(self, name: str, value: Any) -> FileEntry:
        self.name(name, "files")
        value = self.record(FileEntry, value, f"files[{name}]")
        self.number(value["num_bytes"], f"files[{name}].num_bytes")
        self.text(value["checksum"], f"files[{name}].checksum")
        return FileEntry(**value)

    def tokenizer(self, value: Any, vocab_size: int) -> TokenizerEntry:
        value = self.record(TokenizerEntry, value, "tokenizer")
        for key in ("kind", "engine", "engine_version"):
            self.text(value[key], f"tokenizer.{key}")
        if value["kind"] not in TOKENIZER_KINDS:
            self.fail("tokenizer.kind", f"one of {', '.join(TOKENIZER_KINDS)}", repr(value["kind"]))
        without_file = value["kind"] in KINDS_WITHOUT_FILE
        if (value["file"] is None) != without_file:
            rule = "null" if without_file else "the name of its file"
            self.fail("tokenizer.file", f"{rule} for the kind {value['kind']}", repr(value["file"]))
        if value["sha256"] is not None:
            self.text(value["sha256"], "tokenizer.sha256")
        if (value["sha256"] is None) != without_file:
            self.fail(
                "tokenizer.sha256",
                f"the sha256 of its file, or null for {' and '.join(KINDS_WITHOUT_FILE)}",
                repr(value["sha256"]),
            )
        if value["file"] is not None:
            self.name(value["file"], "tokenizer.file")
        for key in ("eos_id", "bos_id", "pad_id"):
            if value[key] is not None:
                self.number(value[key], f"tokenizer.{key}", 0, vocab_size - 1)
        return TokenizerEntry(**value)

    def counts(self, manifest: Manifest) -> None:
        """Check every count that follows from others (FMT-5)."""
        self.dtype(manifest)
        size = _DTYPES[manifest.dtype]
        token, document = 0, 0
        for i, shard in enumerate(manifest.shards):
            if not is_shard_name(shard.file, i, manifest.version):
                self.fail(f"shards[{i}].file", shard_name(i), shard.file)
            found = (shard.first_token, shard.first_document, shard.num_bytes)
            expected = (token, document, shard.first_byte + shard.num_tokens * size)
            if found != expected:
                self.fail(f"shards[{i}]", f"first_token, first_document, num_bytes = {expected}", found)
            if shard.first_byte % size or (shard.first_byte and not manifest.is_adopted):
                rule = f"a multiple of {size}" if manifest.is_adopted else "0, because the store is not adopted"
                self.fail(f"shards[{i}].first_byte", rule, shard.first_byte)
            if not 1 <= shard.num_documents <= shard.num_tokens:
                self.fail(f"shards[{i}]", f"1..{shard.num_tokens} documents", shard.num_documents)
            token, document = token + shard.num_tokens, document + shard.num_documents
        if (token, document) != (manifest.num_tokens, manifest.num_documents):
            self.fail(
                "totals",
                f"{manifest.num_tokens} tokens in {manifest.num_documents} documents",
                f"{token} in {document} in the shards",
            )
        if taken := sorted(name for name in manifest.files if is_taken_name(name)):
            self.fail("files", "no reserved name (of a manifest, a shard or a temporary file)", taken)
        self.version_names(manifest)
        masks = {name for name in manifest.files if name.startswith(MASK_PREFIX)}
        if masks and len(masks) > len(manifest.shards):
            self.fail("files", f"one mask for each of {len(manifest.shards)} shards", sorted(masks))
        for shard in manifest.shards if masks else ():
            mask = manifest.files.get(mask_of(shard.file))
            if mask is None or mask.num_bytes != mask_bytes(shard.num_tokens):
                self.fail(f"files[{mask_of(shard.file)}]", f"{mask_bytes(shard.num_tokens)} bytes", mask)
        self.documents(manifest)
        self.small_files(manifest)

    def dtype(self, manifest: Manifest) -> None:
        """Check the dtype against the vocabulary (FMT-2). An adopted store may have a larger one than it needs (FMT-14)."""
        needed = token_dtype(manifest.vocab_size).name
        if manifest.dtype != needed and not (manifest.is_adopted and manifest.dtype == "uint32"):
            self.fail("dtype", f"{needed} for {manifest.vocab_size} ids", manifest.dtype)

    def small_files(self, manifest: Manifest) -> None:
        """Check that the tokenizer's file is listed, and the size of each file that is read as a whole."""
        own = manifest.tokenizer.file
        if own is not None and own not in manifest.files:
            self.fail("tokenizer.file", f"one of {sorted(manifest.files)}", own)
        limits = [(own, MAX_TOKENIZER_BYTES), *((name, MAX_SIDE_FILE_BYTES) for name in SIDE_NAMES)]
        for name, most in [*limits, (ADOPTED_NAME, max_adopted_bytes(len(manifest.shards)))]:
            if name in manifest.files and manifest.files[name].num_bytes > most:
                self.fail(f"files[{name}].num_bytes", f"at most {most}", manifest.files[name].num_bytes)

    def version_names(self, manifest: Manifest) -> None:
        """Check that all files that depend on all documents belong to one version (FMT-13)."""
        names = sorted(name for name in manifest.files if version_of(name) is not None)
        if len({version_of(name) for name in names}) > 1 or sum(map(is_boundaries, names)) > 1:
            self.fail("files", "files of one version", names)

    def documents(self, manifest: Manifest) -> None:
        """Check the sizes of the files that have an entry per document."""
        number = manifest.num_documents
        entry = manifest.files.get(name := manifest.name_of(BOUNDARIES_NAME))
        size = boundaries_bytes(number, manifest.num_tokens)
        if entry is None or entry.num_bytes != size:
            self.fail(f"files[{name}]", f"{size} bytes", entry)
        for each, fits in _SIZED.items():
            entry = manifest.files.get(name := manifest.name_of(each))
            if entry is not None and not fits(number, manifest.num_tokens, entry.num_bytes):
                self.fail(f"files[{name}]", f"a size for {number} documents and {manifest.num_tokens} tokens", entry)
        entry = manifest.files.get(name := manifest.name_of(BLOCK_CHECKSUMS_NAME))
        if entry is not None and entry.num_bytes != (size := block_checksums_bytes(manifest)):
            self.fail(f"files[{name}]", f"{size} bytes", entry)
        if manifest.has_origins and manifest.name_of(INPUTS_NAME) not in manifest.files:
            self.fail("files", f"{manifest.name_of(INPUTS_NAME)}, because there are origins", sorted(manifest.files))
        if manifest.has_document_inputs and not manifest.has_origins:
            self.fail(
                "files",
                f"{manifest.name_of(ORIGINS_NAME)}, because there are inputs of documents",
                sorted(manifest.files),
            )
