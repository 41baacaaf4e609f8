"""Manifests that are refused before their fields are validated (FMT-5)."""

import json
import re

import pytest

from tests.support.stores.forge import seal
from tests.support.stores.manifests import BODY, MANIFEST, PLACE
from tokenstore.errors import CorruptionError, FormatError
from tokenstore.format.manifest_file import decode_manifest, encode_manifest


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "Expecting value"),
        (b"\n", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe{}\n", "can't decode byte 0xff"),
        (b"\xef\xbb\xbf{}\n", "BOM"),
        (b'{"a": 1, "a": 1}\n', "a key is repeated"),
        (b'{"x": [{"a": 1, "b": 2, "a": 3}]}\n', "a key is repeated"),
        (b'{"a": NaN}\n', "NaN is not allowed"),
        (b'{"a": -Infinity}\n', "-Infinity is not allowed"),
        (b'{"a": 1.5}\n', "1.5 is not allowed"),
        (b'{"a": 1e3}\n', "1e3 is not allowed"),
        (b'{"a": ' + b"9" * 5000 + b"}\n", "Exceeds the limit"),
        (b"[" * 100_000 + b"\n", "while decoding a JSON array"),
        (b'{"a":' * 100_000 + b"\n", "while decoding a JSON object"),
        (b"{} {}\n", "Extra data"),
        (encode_manifest(MANIFEST).replace(b"\n", b"\r", 1)[:-1], "a newline at its end"),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else None,
)
def test_json_that_is_not_strict_is_refused(data: bytes, found: str) -> None:
    """FMT-5: bad UTF-8, bad JSON, a repeated key, floats, deep nesting and truncation are damage; the message has
    the path.
    """
    with pytest.raises(CorruptionError, match=rf"manifest: expected .*{re.escape(found)}.*\({PLACE}\); copy or build"):
        decode_manifest(data, PLACE)


@pytest.mark.parametrize(
    ("data", "found"), [(b"[]\n", "list"), (b'"tokenstore"\n', "str"), (b"null\n", "NoneType"), (b"1\n", "int")]
)
def test_json_that_is_not_an_object_is_refused(data: bytes, found: str) -> None:
    """FMT-5: a manifest is one JSON object."""
    with pytest.raises(CorruptionError, match=rf"expected a JSON object, found {found} \({PLACE}\)"):
        decode_manifest(data, PLACE)


@pytest.mark.parametrize("name", ["litdata", None, 1, ["tokenstore"], "x" * 5000])
def test_another_format_is_not_a_store(name: object) -> None:
    """FMT-5: another tool's manifest.json is a FormatError that asks whether the path is right, in a short message."""
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
    """FMT-5: only the integer 1 is version 1; a newer one says what to install; this is checked first."""
    with pytest.raises(FormatError, match=rf"expected format version 1, found .*\({PLACE}\); {todo}") as refused:
        decode_manifest(seal({**BODY, "format_version": version, "unknown": "of the future"}), PLACE)
    assert len(str(refused.value)) < 400


def test_a_missing_version_is_refused() -> None:
    """FMT-5: a missing version is not version 1."""
    body = {key: value for key, value in BODY.items() if key != "format_version"}
    with pytest.raises(FormatError, match="expected format version 1, found None"):
        decode_manifest(seal(body), PLACE)


@pytest.mark.parametrize("checksum", ["0" * 64, None, 5, BODY["checksum"].upper()])
def test_a_wrong_checksum_is_refused(checksum: object) -> None:
    """FMT-5, P9: the checksum covers all other fields."""
    data = (json.dumps({**BODY, "checksum": checksum}) + "\n").encode()
    with pytest.raises(
        CorruptionError, match=rf"manifest checksum: expected the sha256 of its fields, found .*\({PLACE}\)"
    ):
        decode_manifest(data, PLACE)


def test_a_missing_checksum_is_refused() -> None:
    """FMT-5, P9: omitting the checksum does not disable it."""
    body = {key: value for key, value in BODY.items() if key != "checksum"}
    with pytest.raises(CorruptionError, match=r"manifest checksum: .*found None"):
        decode_manifest((json.dumps(body) + "\n").encode(), PLACE)


def test_every_nesting_depth_is_read_or_refused() -> None:
    """P9: options nested as deeply as the parser allows do not raise a RecursionError in the checksum."""
    for depth in [*range(1, 3000, 13), *range(900, 1000)]:
        for opened, closed in (('{"x":', "}"), ("[", "]")):
            options = opened * depth + "1" + closed * depth
            data = json.dumps({**BODY, "options": 0}).replace('"options": 0', f'"options": {options}') + "\n"
            with pytest.raises(CorruptionError, match=r"manifest"):
                decode_manifest(data.encode(), PLACE)


def test_a_wrong_digest_is_refused() -> None:
    """FMT-5: the digest is compared with the content, even if the checksum matches."""
    with pytest.raises(
        CorruptionError, match=rf"manifest digest: expected {BODY['digest']}, found {'0' * 64} \({PLACE}\)"
    ):
        decode_manifest(seal(BODY, digest="0" * 64), PLACE)
