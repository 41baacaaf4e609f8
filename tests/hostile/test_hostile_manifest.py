"""Damaged and forged manifests (P9): refused at open with the file's name and what to do."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenstore
from tests.conftest import write_store
from tests.support.stores.forge import forge, overwrite, replace, seal
from tests.support.stores.hostile_stores import check_message, flips, make_small, refused
from tokenstore.errors import CorruptionError, FormatError, TokenStoreError
from tokenstore.outside import MANIFEST_BYTES, MANIFEST_BYTES_PER_FILE
from tokenstore.store import open_store, verify

pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit


def test_every_truncation_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """P9: however short manifest.json was cut, opening reports it and names the file."""
    path = make_small(tmp_path / "s")
    sound = (path / "manifest.json").read_bytes()
    for size in range(len(sound)):
        replace(path / "manifest.json", sound[:size])
        with pytest.raises(CorruptionError) as caught:
            open_store(path)
        check_message(caught.value, path / "manifest.json", "copy or build the store again")
    replace(path / "manifest.json", sound)
    assert verify(path) == []


def flip_manifest(path: Path, all_bits: bool) -> None:
    for content in list(flips(path, "manifest.json", all_bits)):
        overwrite(path / "manifest.json", content)
        with pytest.raises(TokenStoreError) as caught:
            open_store(path)
        check_message(caught.value, path / "manifest.json")


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """P9, FMT-5: any flipped bit of the manifest is detected at open."""
    flip_manifest(make_small(tmp_path / "s"), all_bits=False)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_flipped_bit_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """P9, FMT-5: all bits, one by one."""
    flip_manifest(make_small(tmp_path / "s"), all_bits=True)


@given(st.binary(max_size=60), st.integers(0, 5000), st.integers(0, 30))
def test_a_partly_overwritten_manifest_is_refused(data: bytes, at: int, cut: int) -> None:
    """P9: any bytes replaced by any others give the same manifest, or a TokenStoreError that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_store(Path(folder) / "s", [[1, 2], [3]])
        sound = (path / "manifest.json").read_bytes()
        at %= len(sound) + 1
        changed = sound[:at] + data + sound[at + cut :]
        replace(path / "manifest.json", changed)
        try:
            assert [document.tolist() for document in open_store(path)] == [[1, 2], [3]]
            assert json.loads(changed) == json.loads(sound)
        except TokenStoreError as error:
            check_message(error, path / "manifest.json")


def shard(**changes: object) -> Callable[[dict], None]:
    return lambda body: body["shards"][1].update(changes)


FORGERIES: dict[str, Callable[[dict], object]] = {
    **{
        f"shard named {name!r}": shard(file=name)
        for name in ("../x", "/etc/passwd", "a/b", ".hidden", "..", ".", "", "x\0")
    },
    **{
        f"side file named {name!r}": lambda body, name=name: body["files"].update({name: body["files"]["inputs.jsonl"]})
        for name in ("../x", "/etc/passwd", ".hidden", "")
    },
    **{
        f"tokenizer named {name!r}": lambda body, name=name: body["tokenizer"].update(file=name)
        for name in ("../x", "/etc/passwd")
    },
    **{
        f"shard {key} {value!r:.30}": shard(**{key: value})
        for key in ("num_bytes", "first_byte", "num_tokens", "first_token", "num_documents", "first_document")
        for value in (-1, -(2**63), 2**62, 2**63, 10**300, True, "5", None, [5])
    },
    **{
        f"{key} {value!r:.30}": lambda body, key=key, value=value: body.update({key: value})
        for key in ("num_tokens", "num_documents", "vocab_size")
        for value in (0, -1, 2**63, 10**300, True, "5", None)
    },
    "shards overlap": shard(first_token=0, first_document=0),
    "a gap between shards": shard(first_token=91),
    "shards swapped": lambda body: body["shards"].reverse(),
    "one shard twice": lambda body: body["shards"].append(body["shards"][-1]),
    "a shard less": lambda body: body["shards"].pop(),
    "no shards": lambda body: body["shards"].clear(),
    "more tokens": lambda body: body.update(num_tokens=body["num_tokens"] + 1),
    "fewer documents": lambda body: body.update(num_documents=body["num_documents"] - 1),
    "dtype uint32": lambda body: body.update(dtype="uint32"),
    "dtype object": lambda body: body.update(dtype="O"),
    "dtype list": lambda body: body.update(dtype=["uint16"]),
    "vocabulary for uint32": lambda body: body.update(vocab_size=70_000),
    "boundaries of another size": lambda body: body["files"]["boundaries.bin"].update(num_bytes=248),
    "no boundaries": lambda body: body["files"].pop("boundaries.bin"),
    "unhashable tokenizer": lambda body: body["tokenizer"].update(sha256=[]),
}


@pytest.mark.parametrize("edit", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_manifest_is_refused_at_open(tmp_path: Path, edit: Callable[[dict], object]) -> None:
    """P9: checksum and digest match but the fields do not: refused before a file they name is opened."""
    path = make_small(tmp_path / "s")
    for lure in (tmp_path / "x", path / ".hidden"):  # what a reader that trusts the names would find
        lure.write_bytes((path / "tokens-00001.bin").read_bytes())
    error = refused(forge(path, edit), path / "manifest.json")
    assert isinstance(error, CorruptionError)


RAW = {
    "duplicate keys": lambda text: text.replace(b'"counts": {}', b'"counts": {}, "counts": {}'),
    "NaN": lambda text: text.replace(b'"num_tokens": 288', b'"num_tokens": NaN'),
    "a float": lambda text: text.replace(b'"num_tokens": 288', b'"num_tokens": 288.0'),
    "an exponent": lambda text: text.replace(b'"num_tokens": 288', b'"num_tokens": 2.88e2'),
    "100,000 brackets": lambda text: b"[" * 100_000,
    "100,000 objects": lambda text: b'{"a":' * 100_000,
    "brackets that close": lambda text: b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "nested options": lambda text: text.replace(b'"options": {}', b'"options": {"a":' + b"[" * 970 + b"]" * 970 + b"}"),
    "a number of 10,000 digits": lambda text: text.replace(b"288", b"2" * 10_000),
    "not UTF-8": lambda text: text.replace(b"tests", b"t\xffsts"),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "zeros": lambda text: bytes(len(text)),
    "empty": lambda text: b"",
    "two manifests": lambda text: text + text,
    "another tool's": lambda text: b'{"chunks": [], "config": {"data_format": ["int"]}}\n',
    "version 2": lambda text: seal({**json.loads(text), "format_version": 2}),
    "version '1'": lambda text: seal({**json.loads(text), "format_version": "1"}),
    "version 0": lambda text: seal({**json.loads(text), "format_version": 0}),
    "version true": lambda text: seal({**json.loads(text), "format_version": True}),
    "version missing": lambda text: seal({k: v for k, v in json.loads(text).items() if k != "format_version"}),
    "another format": lambda text: seal({**json.loads(text), "format": "zarr"}),
}


@pytest.mark.parametrize("edit", RAW.values(), ids=RAW)
def test_a_manifest_of_hostile_bytes_is_refused_at_open(tmp_path: Path, edit: Callable[[bytes], bytes]) -> None:
    """P9: bytes that our writer never produces are refused with the manifest's path, without exhausting stack or
    time.
    """
    path = make_small(tmp_path / "s")
    sound = (path / "manifest.json").read_bytes()
    changed = edit(sound)
    assert changed != sound
    replace(path / "manifest.json", changed)
    refused(path, path / "manifest.json")


def test_a_newer_version_says_what_to_install(tmp_path: Path) -> None:
    """P9: a store of a future version is not called damaged: the FormatError asks for a newer tokenstore."""
    path = make_small(tmp_path / "s")
    body = {**json.loads((path / "manifest.json").read_bytes()), "format_version": 2, "masks": []}
    replace(path / "manifest.json", seal(body))
    error = refused(path, path / "manifest.json", "found 2", "install a newer tokenstore")
    assert isinstance(error, FormatError)


def test_a_manifest_above_the_limit_is_not_read(tmp_path: Path) -> None:
    """P9: the limit depends on the number of files in the folder; a larger manifest is not parsed."""
    path = make_small(tmp_path / "s")
    replace(path / "manifest.json", b"")
    most = MANIFEST_BYTES + MANIFEST_BYTES_PER_FILE * len(list(path.iterdir()))
    os.truncate(path / "manifest.json", most + 1)
    refused(path, path / "manifest.json", f"{most + 1:,} bytes; at most {most:,} are allowed")
    os.truncate(path / "manifest.json", most)
    assert "JSON" in str(refused(path, path / "manifest.json"))


def test_a_forged_store_of_a_billion_empty_documents_is_refused(tmp_path: Path) -> None:
    """P9, P7: matching sizes, in sparse files full of zeros: opening is cheap, reading is an error that names the
    index.
    """
    path = make_small(tmp_path / "s")
    documents = tokens = 10**9
    size = 8 * (documents + 1 + -(-tokens // 4096))

    def edit(body: dict) -> None:
        body.update(num_tokens=tokens, num_documents=documents)
        body["shards"] = [
            {**body["shards"][0], "num_tokens": tokens, "num_documents": documents, "num_bytes": 2 * tokens}
        ]
        body["files"]["boundaries.bin"]["num_bytes"] = size

    for name, length in (("boundaries.bin", size), ("tokens-00000.bin", 2 * tokens)):
        replace(path / name, b"")
        os.truncate(path / name, length)
    with open(path / "boundaries.bin", "r+b") as file:
        file.seek(8 * documents)
        file.write(tokens.to_bytes(8, "little"))
    forge(path, edit)
    with open_store(path) as store:
        for i in (0, 1, documents - 2):
            with pytest.raises(CorruptionError) as caught:
                store[i]
            check_message(caught.value, path / "boundaries.bin", f"document {i}")
    plan = tokenstore.Plan.of(path, sequence_length=8, global_batch_size=4, num_steps=3, packing="concat")
    for step in range(3):
        with pytest.raises(CorruptionError) as caught:
            plan.batch(step)
        check_message(caught.value, path / "boundaries.bin")
