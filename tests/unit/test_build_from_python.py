"""tokenstore.build and standard input: records that can be read only once."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import Build, as_bytes, contents, documents, left_behind
from tokenstore.builder import BuildOptions, append_store, build_store, making, preview_build
from tokenstore.errors import ConfigError

RECORDS = [{"text": text, "id": str(i), "n": i} for i, text in enumerate(TEXTS)]
LINES = b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that makes bytes standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


@pytest.mark.parametrize("workers", [1, 2])
def test_records_of_an_iterable_are_built_like_a_file(tmp_path: Path, workers: int) -> None:
    """With every option of a build, such as splits and ids; nothing but the store is left."""
    options = {"id_field": "id", "keep": ("n",), "split": "a=0.5,b=0.5", "dedup": "exact", "workers": workers}
    (tmp_path / "python.jsonl").write_bytes(LINES * 2)
    built = tokenstore.build(tmp_path / "python.jsonl", tmp_path / "built", "bytes", **options)
    made = tokenstore.build((record for record in RECORDS * 2), tmp_path / "made", "bytes", **options)
    for one, other in zip(built.splits, made.splits, strict=True):
        assert one.digest == other.digest
        assert contents(one.path).keys() == contents(other.path).keys()
        for name in ("ids.bin", "metadata.arrow", "origins.bin"):
            assert (one.path / name).read_bytes() == (other.path / name).read_bytes()
    assert left_behind(tmp_path / "made") == []


def test_arrays_and_tensors_become_lists(tmp_path: Path) -> None:
    import torch

    rows = [{"input_ids": np.array([1, 2])}, {"input_ids": torch.tensor([3])}, {"input_ids": (4,)}]
    result = tokenstore.build(iter(rows), tmp_path / "s", "bytes", records="tokens")
    assert documents(result.path) == [[1, 2, 256], [3, 256], [4, 256]]


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    message = r"^build\(\) got an unexpected keyword argument 'wokers'\. Did you mean 'workers'\?$"
    with pytest.raises(TypeError, match=message):
        tokenstore.build(iter(RECORDS), tmp_path / "s", "bytes", wokers=2)


def test_wrong_records_are_named(tmp_path: Path) -> None:
    for records, error, message in (
        (iter(["text"]), TypeError, r"record 0: expected a dict, found str; for texts give"),
        (iter([{"text": "a"}, {"text": object()}]), ValueError, "record 1: "),
    ):
        with pytest.raises(error, match=message):
            tokenstore.build(records, tmp_path / "s", "bytes")
    with pytest.raises(ConfigError, match="does not exist"):
        tokenstore.build(["a text"], tmp_path / "s", "bytes")
    assert not (tmp_path / "s").exists()


def test_a_killed_build_of_records_keeps_finished_work(
    tmp_path: Path, small_units: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records again: parts are reused, and the bytes are those of one run. Others are built from the start."""
    small_units(1000)
    whole = tokenstore.build(iter(RECORDS), tmp_path / "whole", "bytes")
    real, made = making.write_atomically, []

    def die(path: Path, data: bytes) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(path)
        real(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(making, "write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            tokenstore.build(iter(RECORDS), tmp_path / "s", "bytes")
    notes: list[str] = []
    resumed = tokenstore.build(iter(RECORDS), tmp_path / "s", "bytes", note=notes.append)
    assert notes[0].startswith("resuming: 2 of ")
    assert contents(resumed.path) == contents(whole.path)
    assert tokenstore.build(iter(RECORDS), tmp_path / "s", "bytes").was_there
    with pytest.raises(ConfigError, match="was built from other inputs"):
        tokenstore.build(iter(RECORDS[:-1]), tmp_path / "s", "bytes")
    assert left_behind(tmp_path / "s") == []


@pytest.mark.parametrize("change", ["shorter", "longer", "other"])
def test_other_records_replace_those_of_a_killed_build(tmp_path: Path, change: str) -> None:
    def failing() -> Iterator[dict]:
        yield from RECORDS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenstore.build(failing(), tmp_path / "s", "bytes")
    spool = tmp_path / "s.tokenstore/spool"
    (spool / "python.jsonl").write_bytes(
        b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in RECORDS)
    )
    texts = {"shorter": TEXTS[:3], "longer": [*TEXTS, "more"], "other": [TEXTS[0], "x", *TEXTS[2:]]}[change]
    result = tokenstore.build(({"text": text} for text in texts), tmp_path / "s", "bytes")
    assert documents(result.path) == as_bytes(*filter(None, texts))


def test_standard_input_is_an_input(build: Build, stdin: object, tmp_path: Path) -> None:
    """Beside others, in the order of the arguments; its name in the store is that of its format."""
    (tmp_path / "a.txt").write_text("first")
    stdin(LINES)
    result = build(tmp_path / "a.txt", "-")
    assert documents(result.path) == as_bytes("first", *filter(None, TEXTS))
    with tokenstore.open_store(result.path) as store:
        assert (store.origin(0).file, store.origin(1).file) == ("a.txt", "stdin.jsonl")
    stdin(LINES)
    assert build(tmp_path / "a.txt", "-").was_there
    stdin(b"more")
    append_store(result.path, ["-"], stdin_format=".txt")
    assert documents(result.path)[-1:] == as_bytes("more")
    assert left_behind(result.path) == []


def test_standard_input_is_refused_where_it_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = BuildOptions(("-",), tmp_path / "s", "bytes")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with pytest.raises(ConfigError, match="which is a terminal here"):
        build_store(options)
    with pytest.raises(ConfigError, match="reads its inputs more than once"):
        preview_build(options)
    with pytest.raises(ConfigError, match="stdin_format: expected the ending of an input file"):
        BuildOptions(("-",), tmp_path / "s", "bytes", stdin_format="jsonl")
    assert list(tmp_path.iterdir()) == []
