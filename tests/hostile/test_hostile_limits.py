"""Files far larger than a valid store needs: refused with little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.forge import forge, list_file, list_tokenizer, replace
from tests.support.stores.hostile_stores import check_message, make_small, refused
from tests.support.stores.length_index_damage import make_store
from tokenstore.errors import CorruptionError
from tokenstore.format.layout import can_hold_length_index, length_index_numbers_bytes
from tokenstore.format.runs import are_runs
from tokenstore.store import open_store, verify
from tokenstore.tokenizer import load_tokenizer

pytestmark = pytest.mark.timeout(120)

MEGABYTE = 1 << 20


def run_with_limit(megabytes: int, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code with a limit on its address space."""
    limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({megabytes * MEGABYTE},) * 2)\n{code}"
    command = [sys.executable, "-c", limited, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def sparse(store: Path, name: str, num_bytes: int) -> None:
    """Make a file of the store this large, with zeros that take no disk space, and change the manifest accordingly."""
    (store / name).chmod(0o644)
    os.truncate(store / name, num_bytes)
    forge(store, lambda body: body["files"][name].update(num_bytes=num_bytes))


READ_INPUTS = """
import tokenstore
from tokenstore.views.store_summary import summarize_store
try:
    summarize_store(tokenstore.open_store(sys.argv[1]))
except tokenstore.TokenStoreError as error:
    print(error)
"""


def test_a_sparse_list_of_inputs_is_refused_at_its_first_line(tmp_path: Path) -> None:
    """3 GB of zeros used to take 10 GB of memory; now they are refused within 1 GB of address space, including
    numpy.
    """
    path = make_small(tmp_path / "s")
    (path / "inputs.jsonl").chmod(0o644)
    sparse(path, "inputs.jsonl", 3 << 30)
    done = run_with_limit(1024, READ_INPUTS, path)
    check_message(done.stdout, path / "inputs.jsonl", "line 1: expected at most 65536 bytes")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("runs", [1 << 10, 1 << 26])
def test_a_sparse_length_index_is_refused_with_the_manifest(tmp_path: Path, runs: int) -> None:
    """FMT-9: more runs than the tokens allow are refused before the file is mapped."""
    path = make_store(tmp_path, [[1]] * 1000)
    sparse(path, "length_index.bin", length_index_numbers_bytes(1000) + 16 * runs)
    refused(path, "length_index.bin", "1000 documents and 1000 tokens")


def test_the_most_runs_a_store_can_have() -> None:
    """FMT-9: lengths 1, 2 .. r and no other document are the smallest store with r runs; with one token less it has
    fewer.
    """
    for r in (1, 2, 3, 100):
        tokens = r * (r + 1) // 2
        size = length_index_numbers_bytes(r) + 16 * r
        assert can_hold_length_index(r, tokens, size)
        assert not can_hold_length_index(r, tokens - 1, size)
        assert not can_hold_length_index(r, tokens, size + 8)
        assert can_hold_length_index(r + 5, tokens + 5, length_index_numbers_bytes(r + 5) + 16 * r)
        assert not can_hold_length_index(r + 5, tokens + 4, length_index_numbers_bytes(r + 5) + 16 * r)


@pytest.mark.parametrize("size", [1, 2, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 16])
def test_runs_are_checked_across_blocks(size: int) -> None:
    """FMT-9: the result does not depend on where a block ends; a wrong number near a border is detected."""
    counts = np.arange(size) % 3 + 1
    runs = np.stack([np.arange(1, size + 1), np.cumsum(counts) - counts], axis=1).astype(np.int64)
    tokens, documents = int((runs[:, 0] * counts).sum()), int(counts.sum())
    assert are_runs(runs, documents, tokens)
    for row in {0, size - 1, *(x for x in (65535, 65536, 65537) if x < size)}:
        for column in (0, 1):
            for change in (1, -1, 1 << 62, -(1 << 62)):
                wrong = runs.copy()
                wrong[row, column] += change
                assert not are_runs(wrong, documents, tokens)
    assert not are_runs(runs, documents, tokens + 1)
    assert not are_runs(runs, documents + 1, tokens)


def test_a_large_manifest_of_a_small_folder_is_not_parsed(tmp_path: Path) -> None:
    """A manifest of 30 MB took 1.5 GB; a folder of six files allows hardly more than 1 MiB."""
    path = make_small(tmp_path / "s")
    body = json.loads((path / "manifest.json").read_bytes())
    body["options"] = {f"option {i}": i for i in range(1_000_000)}
    replace(path / "manifest.json", json.dumps(body).encode() + b"\n")
    refused(path, "manifest.json", "are allowed")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_sparse_tokenizer_file_is_refused_with_the_manifest(tmp_path: Path, name: str) -> None:
    """A terabyte of zeros would be hashed before it is loaded."""
    path = make_small(tmp_path / "s")
    for each in {"tokenizer.json", name}:
        (path / each).write_bytes(b"{}")
        list_file(path, each)
    list_tokenizer(path)
    sparse(path, name, 1 << 40)
    refused(path, "manifest.json", f"files[{name}].num_bytes", f"found {1 << 40}")


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize("levels", [11, 200, 450])
def test_deeply_nested_options_are_refused(tmp_path: Path, levels: int) -> None:
    """FMT-5: such a manifest could be read but not written again; `index` and `append` ended with a RecursionError."""
    path = make_small(tmp_path / "s")
    forge(path, lambda body: body.update(options={"deep": nested(levels)}))
    refused(path, "manifest.json")


def test_options_with_a_little_nesting_are_kept(tmp_path: Path) -> None:
    """FMT-5: nesting within the limit is read and kept."""
    path = make_small(tmp_path / "s")
    forge(path, lambda body: body.update(options=nested(9)))
    assert verify(path) == []


WRONG_TOKENIZERS = {
    "a path as its kind": ({"kind": "/etc/hostname", "file": None}, "tokenizer.kind"),
    "a relative path": ({"kind": "../other/tokenizer.json", "file": None}, "tokenizer.kind"),
    "an unknown kind": ({"kind": "wordpiece", "file": "tokenizer.json"}, "tokenizer.kind"),
    "an empty kind": ({"kind": "", "file": None}, "tokenizer.kind"),
    "no file": ({"kind": "huggingface", "file": None}, "tokenizer.file"),
    "bytes with a file": ({"kind": "bytes", "file": "inputs.jsonl"}, "tokenizer.file"),
    "a path as its file": ({"kind": "huggingface", "file": "../tokenizer.json", "sha256": "0" * 64}, "tokenizer.file"),
    "a file that is not listed": (
        {"kind": "huggingface", "file": "tokenizer.json", "sha256": "0" * 64},
        "tokenizer.file",
    ),
}


@pytest.mark.parametrize("name", WRONG_TOKENIZERS)
def test_a_tokenizer_outside_the_store_is_refused_with_the_manifest(tmp_path: Path, name: str) -> None:
    """FMT-5: the kind is one of four and never a path; only `bytes` has no file, and a file is in the store."""
    path = make_small(tmp_path / "s")
    fields, field = WRONG_TOKENIZERS[name]
    forge(path, lambda body: body["tokenizer"].update(fields))
    refused(path, "manifest.json", field)


def test_a_tokenizer_must_be_of_the_kind_in_the_manifest(tmp_path: Path) -> None:
    """The contents of the file decide how it is loaded; the manifest must agree."""
    path = make_small(tmp_path / "s")
    (path / "tokenizer.json").write_text('{"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}')
    list_tokenizer(path, "sentencepiece")
    with pytest.raises(CorruptionError, match="one of the kind sentencepiece, found one of huggingface"):
        _ = open_store(path).tokenizer


def test_a_tokenizer_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    """A sparse file of a terabyte is refused because of its size."""
    (tmp_path / "tokenizer.json").touch()
    os.truncate(tmp_path / "tokenizer.json", 1 << 40)
    with pytest.raises(ValueError, match="at most 268,435,456 are allowed") as caught:
        load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("name", ["tokens-00000.bin", "inputs.jsonl"])
def test_verify_reads_no_more_of_a_file_than_the_manifest_says(tmp_path: Path, name: str) -> None:
    """A sparse file of 8 TiB took hours; its size alone is wrong."""
    path = make_small(tmp_path / "s")
    (path / name).chmod(0o644)
    os.truncate(path / name, 1 << 43)
    checked = []
    assert [f.place for f in verify(path, checked.append) if f.file == name] == ["size"]
    assert sum(checked) < 1 << 20
