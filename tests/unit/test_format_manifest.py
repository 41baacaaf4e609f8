"""Encoding and decoding manifests, their checksum and digest (FMT-5)."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.forge import digest_of, seal, sha256
from tests.support.stores.manifests import BODY, MANIFEST, PLACE
from tokenstore.format import FORMAT_VERSION
from tokenstore.format.manifest import canonical_json
from tokenstore.format.manifest_file import decode_manifest, encode_manifest


def test_decoding_inverts_encoding() -> None:
    """FMT-5: encoding again gives the same bytes."""
    data = encode_manifest(MANIFEST)
    decoded = decode_manifest(data, PLACE)
    assert decoded == MANIFEST
    assert encode_manifest(decoded) == data


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text())
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.dictionaries(st.text(), _VALUES))
def test_any_options_without_floats_come_back(options: dict) -> None:
    """FMT-5: options are any JSON without floats, including lone surrogates and control characters."""
    manifest = dataclasses.replace(MANIFEST, options=options)
    assert decode_manifest(encode_manifest(manifest), PLACE) == manifest


def test_the_manifest_is_ascii_with_sorted_keys_and_ends_in_a_newline() -> None:
    """FMT-5: the bytes are one JSON object with sorted keys, readable by people."""
    data = encode_manifest(MANIFEST)
    assert data.isascii()
    assert data.endswith(b"}\n")
    assert list(BODY) == sorted(BODY)
    assert (BODY["format"], BODY["format_version"]) == ("tokenstore", FORMAT_VERSION) == ("tokenstore", 1)


def test_digest_and_checksum_are_what_the_specification_says() -> None:
    """FMT-5: both are the sha256 of canonical JSON, computed by a plain twin from the specification alone."""
    rest = {key: value for key, value in BODY.items() if key != "checksum"}
    assert BODY["checksum"] == sha256(rest)
    assert BODY["digest"] == MANIFEST.digest == digest_of(BODY)
    assert seal(BODY) == encode_manifest(MANIFEST)


def test_canonical_json_is_one_text() -> None:
    """FMT-5: sorted keys, no spaces, ASCII: equal values have one text."""
    assert (
        canonical_json({"b": [1, None, True], "a": {"d": "é\n", "c": -0}})
        == r'{"a":{"c":0,"d":"\u00e9\n"},"b":[1,null,true]}'
    )
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_canonical_json_has_no_nan(value: float) -> None:
    """FMT-5: values that are not JSON are refused."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": [value]})
