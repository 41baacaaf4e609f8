"""The store format (FMT): names and sizes, the manifest to and fro, and every refusal of `decode_manifest`."""

import copy
import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenstore.format
from tests.forge import digest_of, seal, sha256
from tokenstore.errors import CorruptionError, FormatError
from tokenstore.format import FORMAT_VERSION
from tokenstore.format.layout import (
    LOOKUP_STRIDE,
    MAX_TOKENS,
    MAX_VOCAB,
    boundaries_bytes,
    is_plain_name,
    lookup_entries,
    num_lookup_entries,
    shard_name,
    token_dtype,
)
from tokenstore.format.manifest import (
    FileEntry,
    Manifest,
    ShardEntry,
    TokenizerEntry,
    canonical_json,
    decode_manifest,
    encode_manifest,
)
from tokenstore.store import open_store

PLACE = "/stores/web/manifest.json"
MANIFEST = Manifest(
    dtype="uint16",
    vocab_size=300,
    num_tokens=9000,
    num_documents=5,
    ends_with_eos=True,
    tokenizer=TokenizerEntry("huggingface", "tokenizer.json", "ab" * 32, 299, 1, None, "tokenizers", "0.21"),
    shards=(
        ShardEntry("tokens-00000.bin", 12000, 6000, 0, 3, 0, "0" * 32),
        ShardEntry("tokens-00001.bin", 6000, 3000, 6000, 2, 3, "1" * 32),
    ),
    files={
        "boundaries.bin": FileEntry(8 * (6 + 3), "2" * 32),
        "inputs.jsonl": FileEntry(77, "3" * 32),
        "tokenizer.json": FileEntry(1234, "4" * 32),
    },
    options={"text_field": "téxt ☃", "eos": True, "endings": [".txt", None, -3]},
    counts={"documents": 5, "empty": 0},
    versions={"tokenstore": "0.1.0"},
)
BODY = json.loads(encode_manifest(MANIFEST))

# ---- layout


def test_shard_names_count_from_zero_and_stay_plain_names() -> None:
    """FMT-1: shard files are tokens-00000.bin, ..., five digits or more, and each is a name a reader accepts."""
    assert [shard_name(i) for i in (0, 1, 99_999, 100_000)] == [
        "tokens-00000.bin",
        "tokens-00001.bin",
        "tokens-99999.bin",
        "tokens-100000.bin",
    ]
    assert all(is_plain_name(shard_name(i)) for i in (0, 12, 10**9))


@pytest.mark.parametrize("name", ["tokens-00000.bin", "a", "-", "_x.y", "A" * 100, "a..b", "a."])
def test_a_plain_name_is_accepted(name: str) -> None:
    """FMT-6: one path component of [A-Za-z0-9._-], at most 100 characters, not beginning with a dot."""
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a b",
        "a\n",
        "a\0",
        "é",
        "٣",
        "A" * 101,
        "a:b",
        "~",
    ],
)
def test_a_name_that_could_leave_the_directory_is_not_plain(name: str) -> None:
    """FMT-6: no separator, no leading dot, nothing but ASCII, nothing too long, no line end at the end."""
    assert not is_plain_name(name)


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(1, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (MAX_VOCAB, "uint32")],
)
def test_the_dtype_is_uint16_exactly_when_every_id_fits(vocab_size: int, name: str) -> None:
    """FMT-2: 65,536 ids fit in uint16, 65,537 need uint32; both little-endian."""
    dtype = token_dtype(vocab_size)
    assert dtype.name == name
    assert dtype.newbyteorder("<") == dtype
    assert vocab_size - 1 <= np.iinfo(dtype).max


@pytest.mark.parametrize(
    ("num_tokens", "entries"), [(1, 1), (4095, 1), (4096, 1), (4097, 2), (8192, 2), (MAX_TOKENS, 1 << 48)]
)
def test_the_lookup_has_an_entry_every_4096_tokens(num_tokens: int, entries: int) -> None:
    """FMT-3: lookup[j] stands for token 4096 j, j = 0 .. (T - 1) div 4096; boundaries.bin has D + 1 numbers before it."""
    assert LOOKUP_STRIDE == 4096
    assert num_lookup_entries(num_tokens) == (num_tokens - 1) // 4096 + 1 == entries
    assert boundaries_bytes(7, num_tokens) == 8 * (7 + 1 + entries)


@given(
    st.lists(st.one_of(st.integers(1, 30), st.integers(1, 9000), st.sampled_from([4095, 4096, 4097])), min_size=1),
    st.data(),
)
def test_lookup_entries_of_runs_are_those_found_by_looking_at_every_token(
    lengths: list[int], data: st.DataObject
) -> None:
    """FMT-3: however documents come in runs, the entries together are the documents that hold tokens 0, 4096, ..."""
    owner = [document for document, length in enumerate(lengths) for _ in range(length)]  # of every token
    cuts = sorted(data.draw(st.sets(st.integers(1, len(lengths)))) | {0, len(lengths)})
    ends = np.cumsum([0, *lengths])
    found: list[int] = []
    for first, stop in itertools.pairwise(cuts):
        starts = ends[first:stop].astype(np.int64)
        found += lookup_entries(starts, int(ends[first]), int(ends[stop]), first).tolist()
    assert found == owner[::4096]
    assert len(found) == num_lookup_entries(len(owner))


# ---- the worked example


def test_the_worked_example_of_the_specification_comes_out_byte_for_byte(make_store: Callable[..., Path]) -> None:
    """FMT: the files of documents [7, 1] and [5, 5, 1] hold the bytes that stand in the docstring."""
    text = tokenstore.format.__doc__ or ""
    written = re.search(r"tokens-00000\.bin  ((?:[0-9a-f]{2} )*[0-9a-f]{2})\n", text)
    assert written is not None
    assert "0, 2, 5 then lookup [0]" in text
    store = make_store("example", [[7, 1], [5, 5, 1]], vocab_size=8)
    assert (store / "tokens-00000.bin").read_bytes() == bytes.fromhex(written[1])
    assert bytes.fromhex(written[1]) == b"\7\0\1\0\5\0\5\0\1\0"
    assert (store / "boundaries.bin").read_bytes() == b"".join(n.to_bytes(8, "little") for n in (0, 2, 5, 0))
    assert np.memmap(store / "tokens-00000.bin", "<u2", "r").tolist() == [7, 1, 5, 5, 1]


# ---- the manifest to and fro


def test_a_manifest_comes_back_as_it_was() -> None:
    """FMT-5: decode is the inverse of encode, and encoding again gives the same bytes."""
    data = encode_manifest(MANIFEST)
    decoded = decode_manifest(data, PLACE)
    assert decoded == MANIFEST
    assert encode_manifest(decoded) == data


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text())
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.dictionaries(st.text(), _VALUES))
def test_any_options_without_floats_come_back(options: dict) -> None:
    """FMT-5: options are any JSON without floats, lone surrogates and control characters included."""
    manifest = dataclasses.replace(MANIFEST, options=options)
    assert decode_manifest(encode_manifest(manifest), PLACE) == manifest


def test_the_manifest_is_ascii_with_sorted_keys_and_ends_in_a_newline() -> None:
    """FMT-5: the bytes are one JSON object with sorted keys; a person can read it."""
    data = encode_manifest(MANIFEST)
    assert data.isascii()
    assert data.endswith(b"}\n")
    assert list(BODY) == sorted(BODY)
    assert (BODY["format"], BODY["format_version"]) == ("tokenstore", FORMAT_VERSION) == ("tokenstore", 1)


def test_digest_and_checksum_are_what_the_specification_says() -> None:
    """FMT-5: both are the sha256 of canonical JSON that a plain twin makes from the specification alone."""
    rest = {key: value for key, value in BODY.items() if key != "checksum"}
    assert BODY["checksum"] == sha256(rest)
    assert BODY["digest"] == MANIFEST.digest == digest_of(BODY)
    assert seal(BODY) == encode_manifest(MANIFEST)


def test_canonical_json_is_one_text() -> None:
    """FMT-5: sorted keys, no spaces, ASCII; so equal values have one text."""
    assert (
        canonical_json({"b": [1, None, True], "a": {"d": "é\n", "c": -0}})
        == r'{"a":{"c":0,"d":"\u00e9\n"},"b":[1,null,true]}'
    )
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_canonical_json_has_no_nan(value: float) -> None:
    """FMT-5: what is no JSON is refused where it is made."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": [value]})


# ---- identity


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"other": 1}},
        {"versions": {"tokenstore": "9.9"}},
        {"counts": {"documents": 6}},
        {"files": {**MANIFEST.files, "inputs.jsonl": FileEntry(1, "9" * 32), "more.txt": FileEntry(5, "8" * 32)}},
        {"tokenizer": dataclasses.replace(MANIFEST.tokenizer, file=None, engine="other", engine_version="2", pad_id=7)},
        {"shards": tuple(dataclasses.replace(s, file="x" + s.file) for s in MANIFEST.shards)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_digest_does_not_change_with_what_is_not_content(changes: dict[str, Any]) -> None:
    """FMT-5: versions, options, counts, names and side files are not part of a store's identity."""
    assert dataclasses.replace(MANIFEST, **changes).digest == MANIFEST.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "uint32"},
        {"vocab_size": 301},
        {"tokenizer": dataclasses.replace(MANIFEST.tokenizer, kind="bytes")},
        {"tokenizer": dataclasses.replace(MANIFEST.tokenizer, sha256=None)},
        {"shards": (dataclasses.replace(MANIFEST.shards[0], checksum="f" * 32), MANIFEST.shards[1])},
        {"shards": (dataclasses.replace(MANIFEST.shards[0], num_tokens=5999), MANIFEST.shards[1])},
        {"shards": MANIFEST.shards[::-1]},
        {"files": {**MANIFEST.files, "boundaries.bin": FileEntry(72, "f" * 32)}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_digest_changes_with_content(changes: dict[str, Any]) -> None:
    """FMT-5: dtype, vocabulary, tokenizer, tokens, their order and the boundaries are a store's identity."""
    assert dataclasses.replace(MANIFEST, **changes).digest != MANIFEST.digest


def test_stores_of_other_tokens_boundaries_or_vocabulary_have_other_digests(make_store: Callable[..., Path]) -> None:
    """FMT-5: on real stores: the same content twice is one digest, every change of content another."""
    stores = {
        "same": ([[7, 1], [5, 5, 1]], 8),
        "token": ([[7, 1], [5, 6, 1]], 8),
        "boundary": ([[7, 1, 5], [5, 1]], 8),
        "order": ([[5, 5, 1], [7, 1]], 8),
        "vocabulary": ([[7, 1], [5, 5, 1]], 9),
        "wide": ([[7, 1], [5, 5, 1]], 65_537),
    }
    digests = {
        name: open_store(make_store(name, documents, vocab_size=v)).digest for name, (documents, v) in stores.items()
    }
    assert len(set(digests.values())) == len(stores)
    assert open_store(make_store("again", [[7, 1], [5, 5, 1]], vocab_size=8)).digest == digests["same"]


# ---- refusals before the fields are looked at


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "Expecting value"),
        (b"\n", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe{}\n", "can't decode byte 0xff"),
        (b"\xef\xbb\xbf{}\n", "BOM"),
        (b'{"a": 1, "a": 1}\n', "a key stands twice"),
        (b'{"x": [{"a": 1, "b": 2, "a": 3}]}\n', "a key stands twice"),
        (b'{"a": NaN}\n', "NaN is not allowed"),
        (b'{"a": -Infinity}\n', "-Infinity is not allowed"),
        (b'{"a": 1.5}\n', "1.5 is not allowed"),
        (b'{"a": 1e3}\n', "1e3 is not allowed"),
        (b'{"a": ' + b"9" * 5000 + b"}\n", "Exceeds the limit"),
        (b"[" * 100_000 + b"\n", "recursion"),
        (b'{"a":' * 100_000 + b"\n", "recursion"),
        (b"{} {}\n", "Extra data"),
        (encode_manifest(MANIFEST).replace(b"\n", b"\r", 1)[:-1], "a newline at its end"),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else None,
)
def test_what_is_not_strict_json_is_refused(data: bytes, found: str) -> None:
    """FMT-5: bad UTF-8, bad JSON, a key twice, floats, endless nesting and a lost end are damage, told with the path."""
    with pytest.raises(CorruptionError, match=rf"manifest: expected .*{re.escape(found)}.*\({PLACE}\); copy or build"):
        decode_manifest(data, PLACE)


@pytest.mark.parametrize(
    ("data", "found"), [(b"[]\n", "list"), (b'"tokenstore"\n', "str"), (b"null\n", "NoneType"), (b"1\n", "int")]
)
def test_json_that_is_no_object_is_refused(data: bytes, found: str) -> None:
    """FMT-5: a manifest is one JSON object."""
    with pytest.raises(CorruptionError, match=rf"expected a JSON object, found {found} \({PLACE}\)"):
        decode_manifest(data, PLACE)


@pytest.mark.parametrize("name", ["litdata", None, 1, ["tokenstore"], "x" * 5000])
def test_another_format_is_refused_as_no_store(name: object) -> None:
    """FMT-5: the manifest.json of another tool is a FormatError that asks whether the path is right, in a short message."""
    with pytest.raises(
        FormatError, match=rf"expected the format 'tokenstore', found .*\({PLACE}\); is this path a token store"
    ) as refused:
        decode_manifest(seal({**BODY, "format": name}), PLACE)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("version", "todo"),
    [
        (2, "install a newer tokenstore"),
        (10**30, "install a newer tokenstore"),
        (10**4000, "install a newer tokenstore"),
        (0, "build the store again"),
        (-1, "build the store again"),
        ("1", "build the store again"),
        (True, "build the store again"),
        (None, "build the store again"),
        ([1], "build the store again"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_another_version_is_refused(version: object, todo: str) -> None:
    """FMT-5: only the integer 1 is version 1; a newer one says what to install; checked before anything else is read."""
    with pytest.raises(FormatError, match=rf"expected format version 1, found .*\({PLACE}\); {todo}") as refused:
        decode_manifest(seal({**BODY, "format_version": version, "unknown": "of the future"}), PLACE)
    assert len(str(refused.value)) < 400


def test_a_missing_version_is_refused() -> None:
    """FMT-5: no version is not version 1."""
    body = {key: value for key, value in BODY.items() if key != "format_version"}
    with pytest.raises(FormatError, match="expected format version 1, found None"):
        decode_manifest(seal(body), PLACE)


@pytest.mark.parametrize("checksum", ["0" * 64, None, 5, BODY["checksum"].upper()])
def test_a_checksum_that_does_not_fit_is_refused(checksum: object) -> None:
    """FMT-5, P9: the checksum covers every other field."""
    data = (json.dumps({**BODY, "checksum": checksum}) + "\n").encode()
    with pytest.raises(
        CorruptionError, match=rf"manifest checksum: expected the sha256 of its fields, found .*\({PLACE}\)"
    ):
        decode_manifest(data, PLACE)


def test_a_missing_checksum_is_refused() -> None:
    """FMT-5, P9: leaving the checksum out does not turn it off."""
    body = {key: value for key, value in BODY.items() if key != "checksum"}
    with pytest.raises(CorruptionError, match=r"manifest checksum: .*found None"):
        decode_manifest((json.dumps(body) + "\n").encode(), PLACE)


def test_every_nesting_depth_is_read_or_refused() -> None:
    """P9: options nested as deep as the parser can follow do not run the checksum into the recursion limit."""
    for depth in [*range(1, 3000, 13), *range(900, 1000)]:
        for opened, closed in (('{"x":', "}"), ("[", "]")):
            options = opened * depth + "1" + closed * depth
            data = json.dumps({**BODY, "options": 0}).replace('"options": 0', f'"options": {options}') + "\n"
            with pytest.raises(CorruptionError, match=r"manifest"):
                decode_manifest(data.encode(), PLACE)


def test_a_digest_that_does_not_fit_is_refused() -> None:
    """FMT-5: the digest is checked against the content it stands for, though the checksum fits."""
    with pytest.raises(
        CorruptionError, match=rf"manifest digest: expected {BODY['digest']}, found {'0' * 64} \({PLACE}\)"
    ):
        decode_manifest(seal(BODY, digest="0" * 64), PLACE)


# ---- refusals of fields, with a checksum and digest that fit


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
        for key in ("options", "counts", "versions", "files")
    ),
    (_set("counts", to={"documents": "5"}), "counts[documents]: expected an integer"),
    (_set("counts", to={"documents": -1}), "counts[documents]: expected an integer"),
    (_set("versions", to={"numpy": 2}), "versions[numpy]: expected a string, found 2"),
    (_set("shards", to={}), "shards: expected a list, found dict"),
    (_set("shards", to=None), "shards: expected a list, found NoneType"),
    *((_set("ends_with_eos", to=v), f"ends_with_eos: expected true or false, found {v!r}") for v in (1, "true", None)),
    (_set("tokenizer", "eos_id", to=None), "tokenizer.eos_id: expected an id, as documents end with it, found None"),
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
        for key in ("num_bytes", "num_tokens", "first_token", "num_documents", "first_document")
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
    (
        _set("shards", 1, "file", to="tokens-00000.bin"),
        "files: expected every file once, found a name that stands twice",
    ),
    (_set("shards", 1, "file", to="boundaries.bin"), "files: expected every file once"),
    (_delete("files", "boundaries.bin"), "files[boundaries.bin]: expected 72 bytes, found None"),
    (_set("files", "boundaries.bin", "num_bytes", to=64), "files[boundaries.bin]: expected 72 bytes"),
    (_set("files", "boundaries.bin", "num_bytes", to=0), "files[boundaries.bin]: expected 72 bytes"),
]


@pytest.mark.parametrize(
    ("edit", "message"), FIELDS, ids=[f"{i}-{message[:40]}" for i, (_, message) in enumerate(FIELDS)]
)
def test_a_wrong_field_is_refused_by_name(edit: Callable[[dict], None], message: str) -> None:
    """P9: a manifest whose checksums fit but whose fields cannot be is refused with the field, the path and a way out."""
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
def test_any_value_anywhere_is_a_manifest_or_a_refusal(path: tuple, value: object) -> None:
    """P9: no value in any field makes the decoder raise anything but its own two errors."""
    body = copy.deepcopy(BODY)
    _set(*path, to=value)(body)
    message = PLACE
    try:
        manifest = decode_manifest(seal(body), PLACE)
        hash((manifest.tokenizer.kind, manifest.tokenizer.sha256, manifest.vocab_size, manifest.digest))
    except (CorruptionError, FormatError) as error:
        message = str(error)
    assert PLACE in message
