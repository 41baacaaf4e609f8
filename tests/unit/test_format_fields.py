"""Validation of a manifest's fields (FMT-5), with a matching checksum and digest."""

import copy
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.forge import seal
from tests.support.stores.manifests import BODY, PLACE
from tokenstore.errors import CorruptionError, FormatError
from tokenstore.format.layout import MAX_TOKENS, MAX_VOCAB
from tokenstore.format.manifest_file import decode_manifest


def _set(*path: str | int, to: object) -> Callable[[dict], None]:
    def edit(body: dict) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = to

    return edit


def _delete(*path: str | int) -> Callable[[dict], None]:
    def edit(body: dict) -> None:
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return edit


def _rename(old: str, new: str) -> Callable[[dict], None]:
    def edit(body: dict) -> None:
        body["files"][new] = body["files"].pop(old)

    return edit


NOT_NUMBERS: tuple[object, ...] = (-1, -(2**63), 2**63, 10**30, True, False, "5", None, [], {})
FIELDS: list[tuple[Callable[[dict], None], str]] = [
    (_delete("counts"), "fields: expected the fields"),
    (_set("colour", to="red"), "fields: expected the fields"),
    *(
        (_set(key, to=[]), f"{key}: expected an object, found list")
        for key in ("options", "counts", "package_versions", "files")
    ),
    (_set("counts", to={"documents": "5"}), "counts[documents]: expected an integer"),
    (_set("counts", to={"documents": -1}), "counts[documents]: expected an integer"),
    (_set("package_versions", to={"numpy": 2}), "package_versions[numpy]: expected a string, found 2"),
    (_set("shards", to={}), "shards: expected a list, found dict"),
    (_set("shards", to=None), "shards: expected a list, found NoneType"),
    *((_set("ends_with_eos", to=v), f"ends_with_eos: expected true or false, found {v!r}") for v in (1, "true", None)),
    (
        _set("tokenizer", "eos_id", to=None),
        "tokenizer.eos_id: expected an id, because ends_with_eos is true, found None",
    ),
    *(
        (_set(key, to=v), f"{key}: expected an integer in 1..")
        for key in ("vocab_size", "num_tokens", "num_documents")
        for v in (0, *NOT_NUMBERS)
    ),
    (_set("vocab_size", to=MAX_VOCAB + 1), f"vocab_size: expected an integer in 1..{MAX_VOCAB}"),
    (_set("num_tokens", to=MAX_TOKENS + 1), f"num_tokens: expected an integer in 1..{MAX_TOKENS}"),
    # shards
    (_set("shards", 1, to=[]), "shards[1]: expected an object, found list"),
    (_delete("shards", 1, "checksum"), "shards[1]: expected the fields"),
    (_set("shards", 0, "offset", to=0), "shards[0]: expected the fields"),
    *(
        (_set("shards", 1, "file", to=name), "shards[1].file: expected a plain file name inside the store")
        for name in ("../x", "/etc/passwd", "a/b", ".hidden", "..", "", "a\0b", "x" * 101, 5, None, ["a"])
    ),
    *((_set("shards", 1, "checksum", to=v), "shards[1].checksum: expected a string") for v in (None, 5, ["a"])),
    *(
        (_set("shards", 0, key, to=v), f"shards[0].{key}: expected an integer in 0..")
        for key in ("num_bytes", "first_byte", "num_tokens", "first_token", "num_documents", "first_document")
        for v in NOT_NUMBERS
    ),
    # side files
    *(
        (_rename("inputs.jsonl", name), "files: expected a plain file name")
        for name in ("../x", "/etc/passwd", "a/b", ".x", "")
    ),
    (_set("files", "inputs.jsonl", to=7), "files[inputs.jsonl]: expected an object, found int"),
    (_delete("files", "inputs.jsonl", "checksum"), "files[inputs.jsonl]: expected the fields"),
    *(
        (_set("files", "inputs.jsonl", "num_bytes", to=v), "files[inputs.jsonl].num_bytes: expected an integer")
        for v in NOT_NUMBERS
    ),
    (_set("files", "inputs.jsonl", "checksum", to=None), "files[inputs.jsonl].checksum: expected a string"),
    # the tokenizer
    (_set("tokenizer", to=None), "tokenizer: expected an object, found NoneType"),
    (_delete("tokenizer", "pad_id"), "tokenizer: expected the fields"),
    *(
        (_set("tokenizer", key, to=5), f"tokenizer.{key}: expected a string, found 5")
        for key in ("kind", "engine", "engine_version")
    ),
    *((_set("tokenizer", "sha256", to=v), "tokenizer.sha256: expected a string") for v in (5, [], {"a": 1})),
    *(
        (_set("tokenizer", "file", to=v), "tokenizer.file: expected a plain file name")
        for v in ("../tokenizer.json", "/x", "", 5)
    ),
    (_set("tokenizer", "file", to="other.json"), "tokenizer.file: expected one of"),
    *(
        (_set("tokenizer", key, to=v), f"tokenizer.{key}: expected an integer in 0..299")
        for key in ("eos_id", "bos_id", "pad_id")
        for v in (300, -1, True, "1", 2**70)
    ),
    # counts that follow from others
    *(
        (_set("dtype", to=v), "dtype: expected uint16 for 300 ids")
        for v in ("uint32", "int16", "", "<u2", 16, None, [], {})
    ),
    (_set("vocab_size", to=65_537), "dtype: expected uint32 for 65537 ids, found uint16"),
    (
        _set("shards", 0, "first_token", to=1),
        "shards[0]: expected first_token, first_document, num_bytes = (0, 0, 12000)",
    ),
    (_set("shards", 1, "first_token", to=5999), "shards[1]: expected first_token"),
    (_set("shards", 1, "first_token", to=6001), "shards[1]: expected first_token"),
    (_set("shards", 1, "first_document", to=2), "shards[1]: expected first_token"),
    (_set("shards", 1, "num_bytes", to=6002), "shards[1]: expected first_token"),
    (_set("shards", 1, "num_documents", to=0), "shards[1]: expected 1..3000 documents, found 0"),
    (_set("shards", 1, "num_documents", to=3001), "shards[1]: expected 1..3000 documents, found 3001"),
    (_set("shards", to=[]), "totals: expected 9000 tokens in 5 documents, found 0 in 0"),
    (_set("num_tokens", to=9001), "totals: expected 9001 tokens in 5 documents, found 9000 in 5"),
    (_set("num_documents", to=6), "totals: expected 9000 tokens in 6 documents, found 9000 in 5"),
    (_set("shards", 1, "num_documents", to=1), "totals: expected 9000 tokens in 5 documents, found 9000 in 4"),
    *(
        (_set("shards", 1, "file", to=name), f"shards[1].file: expected tokens-00001.bin, found {name}")
        for name in ("tokens-00000.bin", "boundaries.bin", "length_index.bin.tokenstore-tmp", "manifest-v1.json", "x")
    ),
    *(
        (_set("files", name, to={"num_bytes": 1, "checksum": ""}), "files: expected no reserved name")
        for name in ("manifest.json", "manifest-v1.json", "tokens-00002.bin", "length_index.bin.tokenstore-tmp")
    ),
    (_delete("files", "boundaries.bin"), "files[boundaries.bin]: expected 72 bytes, found None"),
    (_set("files", "boundaries.bin", "num_bytes", to=64), "files[boundaries.bin]: expected 72 bytes"),
    (_set("files", "boundaries.bin", "num_bytes", to=0), "files[boundaries.bin]: expected 72 bytes"),
]


@pytest.mark.parametrize(
    ("edit", "message"), FIELDS, ids=[f"{i}-{message[:40]}" for i, (_, message) in enumerate(FIELDS)]
)
def test_an_invalid_field_is_refused_by_name(edit: Callable[[dict], None], message: str) -> None:
    """P9: the message has the field, the path and what to do, although the checksums match."""
    body = copy.deepcopy(BODY)
    edit(body)
    with pytest.raises(CorruptionError) as refused:
        decode_manifest(seal(body), PLACE)
    pattern = rf"manifest {re.escape(message)}.* \({PLACE}\); copy or build the store again"
    assert re.fullmatch(pattern, str(refused.value))
    assert ": expected " in str(refused.value)
    assert ", found " in str(refused.value)


def test_a_message_stays_short_whatever_was_found() -> None:
    """P9: a huge value in a damaged manifest does not flood the terminal."""
    for edit in (_set("dtype", to="x" * 10**6), _set("vocab_size", to="9" * 10**6), _set("y" * 10**6, to=1)):
        body = copy.deepcopy(BODY)
        edit(body)
        with pytest.raises(CorruptionError) as refused:
            decode_manifest(seal(body), PLACE)
        assert len(str(refused.value)) < 600


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)

_PLACES = [
    *((key,) for key in BODY if key != "checksum"),
    *(("shards", i) for i in range(2)),
    *(("shards", 1, key) for key in BODY["shards"][1]),
    *(("files", name) for name in BODY["files"]),
    *(("files", "boundaries.bin", key) for key in ("num_bytes", "checksum")),
    *(("tokenizer", key) for key in BODY["tokenizer"]),
]


@given(st.sampled_from(_PLACES), _JSON)
def test_any_value_is_decoded_or_refused(path: tuple, value: object) -> None:
    """P9: no value in any field makes the decoder raise anything but its two errors."""
    body = copy.deepcopy(BODY)
    _set(*path, to=value)(body)
    message = PLACE
    try:
        manifest = decode_manifest(seal(body), PLACE)
        hash((manifest.tokenizer.kind, manifest.tokenizer.sha256, manifest.vocab_size, manifest.digest))
    except (CorruptionError, FormatError) as error:
        message = str(error)
    assert PLACE in message
