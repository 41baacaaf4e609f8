"""tokenstore.StoreWriter: the store that a build of the same documents makes, or none."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import Build, contents, left_behind
from tests.support.stores.written import rows_of
from tokenstore import StoreWriter
from tokenstore.builder import append_store, store_writer
from tokenstore.errors import BuildError, ConfigError, StoreBusyError

SAME = ["boundaries.bin", "ids.bin", "length_index.bin", "metadata.arrow", "tokens-00000.bin"]


def write_lines(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_it_writes_what_a_build_of_the_same_texts_makes(
    build: Build, tmp_path: Path, tokenizer_file: Path, engine: str
) -> None:
    records = [
        {"text": text, "id": f"d{i}", "n": i, "url": None if i % 3 else f"u{i}"}
        for i, text in enumerate(TEXTS * 3 + [""])
    ]
    options = {"tokenizer": str(tokenizer_file), "engine": engine, "min_tokens": 3}
    built = build(
        write_lines(tmp_path / "a.jsonl", records), output="built", id_field="id", keep=("n", "url"), **options
    )
    with StoreWriter(tmp_path / "written", ids=True, metadata=("n", "url"), **options) as writer:
        for each in records:
            writer.write(each["text"], id=each["id"], metadata={"n": each["n"], "url": each["url"]})
    assert writer.result.digest == built.digest
    assert (writer.num_documents, writer.dropped["empty"]) == (built.num_documents, built.counts["empty"])
    assert tokenstore.verify(writer.result.path) == []
    one, other = contents(built.path), contents(writer.result.path)
    assert {name: one[name] for name in SAME} == {name: other[name] for name in SAME}
    assert left_behind(tmp_path / "written") == []


def test_token_ids_come_with_masks(build: Build, tmp_path: Path) -> None:
    """As lists, arrays and tensors; a document without a mask is all in the loss. Equal to a build of tokens."""
    import torch

    records = [
        {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
        {"input_ids": [70_000], "loss_mask": [1]},
        {"input_ids": [4, 9], "loss_mask": [1, 0]},
    ]
    built = build(
        write_lines(tmp_path / "a.jsonl", records), records="tokens", tokenizer="none", vocab_size=70_001, eos_token="9"
    )
    with StoreWriter(tmp_path / "w", vocab_size=70_001, eos_token="9", masks=True) as writer:
        writer.write([1, 2, 3], mask=[False, True, True])
        writer.write(np.array([70_000], np.uint32))
        writer.write(torch.tensor([4, 9]), mask=torch.tensor([1, 0]))
    assert writer.result.digest == built.digest
    without = [(*row[:3], None) for row in rows_of(built.path)]
    assert rows_of(writer.result.path) == without


def test_wrong_masks_are_named_as_the_argument(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "w", tokenizer="bytes", masks=True) as writer:
        for mask, message in (
            ([0, 0], "^mask: expected a token in the loss, found none"),
            ([1], "^mask: expected a list of 2 numbers, as many as tokens, found 1"),
            ([1, 2], "^mask: expected 0 or 1, found 2 at token 1"),
            (7, "^mask: expected it as a list or an array, found int"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.write([1, 2], mask=mask)
        writer.write([1, 2])


def test_texts_and_token_ids_may_alternate(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "w", tokenizer="bytes", masks=True) as writer:
        writer.write("ab")
        writer.write([99, 100], mask=[0, 1])
        writer.write_all(["c", [100, 256]])
    with tokenstore.open_store(tmp_path / "w") as store:
        assert [store.decode(i)[:-13] for i in range(4)] == ["ab", "cd", "c", "d"]
        assert store.loss_mask(1).tolist() == [False, True, True]


def test_a_written_store_grows_by_the_append_command(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "w", tokenizer="bytes", ids=True, metadata=("n",)) as writer:
        writer.write("a", id="1", metadata={"n": 1})
    append_store(tmp_path / "w", [str(write_lines(tmp_path / "more.jsonl", [{"text": "b", "id": 2, "n": 0.5}]))])
    with tokenstore.open_store(tmp_path / "w") as store:
        assert [(store.id(i), store.metadata(i)) for i in range(2)] == [("1", {"n": 1.0}), ("2", {"n": 0.5})]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def documents() -> Iterator[str]:
        yield "a" * 10_000_000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), StoreWriter(tmp_path / "w", tokenizer="bytes") as writer:
        writer.write_all(documents())
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_no_store_and_the_next_one_starts_again(tmp_path: Path) -> None:
    code = f"""
import os, tokenstore
with tokenstore.StoreWriter({str(tmp_path / "w")!r}, tokenizer="bytes") as writer:
    writer.write("a" * 10_000_000)
    os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["w.tokenstore"]
    with StoreWriter(tmp_path / "w", tokenizer="bytes") as writer:
        writer.write("b")
    assert os.listdir(tmp_path) == ["w"]


def test_wrong_documents_are_refused_and_writing_continues(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "w", tokenizer="bytes", ids=True, metadata=("n",)) as writer:
        for wrong, more, message in (
            ([300], {}, "^document: expected token ids below 259, found 300"),
            ([-1], {}, "found -1"),
            ([1.5], {}, "expected a list of integers"),
            (None, {}, "expected a text, or token ids .*, found NoneType"),
            (b"ab", {}, "found bytes"),
            (np.zeros((2, 2), int), {}, "found lists inside"),
            ("a", {"mask": [1]}, "mask: this writer has none; open it with masks=True"),
            ("a", {"metadata": {"m": 1}}, r"expected columns among \['n'\], found \['m'\]"),
            ("a", {"metadata": {"n": object()}}, "a value that JSON has in column 'n', found <object object"),
            ("a", {"metadata": {"n": float("nan")}}, "in column 'n', found nan"),
            ("a", {"metadata": {"n": "x" * 70_000}}, "expected at most 65535 bytes"),
            ("a", {"id": "x" * 70_000}, "expected at most 65535 bytes"),
            ("\ud800", {}, "surrogates not allowed"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.write(wrong, **more)
        writer.write("kept", id="k")
    with tokenstore.open_store(tmp_path / "w") as store:
        assert (len(store), store.id(0)) == (1, "k")
    with pytest.raises(ValueError, match="it is not open"):
        writer.write("late")


def test_what_is_at_the_output_is_kept(build: Build, tmp_path: Path) -> None:
    """A store is replaced only with overwrite; an unfinished build and other files never."""
    (tmp_path / "in.txt").write_text("old")
    build(tmp_path / "in.txt", output="s")
    with pytest.raises(ConfigError, match="exists already"), StoreWriter(tmp_path / "s", tokenizer="bytes"):
        pass
    with StoreWriter(tmp_path / "s", tokenizer="bytes", overwrite=True) as writer:
        writer.write("new")
        with pytest.raises(StoreBusyError), StoreWriter(tmp_path / "s", tokenizer="bytes", overwrite=True):
            pass
        with tokenstore.open_store(tmp_path / "s") as store:
            assert store.decode(0).startswith("old")
    with tokenstore.open_store(tmp_path / "s") as store:
        assert store.decode(0).startswith("new")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").touch()
    for overwrite in (False, True):
        with pytest.raises(ConfigError), StoreWriter(tmp_path / "folder", tokenizer="bytes", overwrite=overwrite):
            pass
    unfinished = tmp_path / "u.tokenstore/building"
    unfinished.mkdir(parents=True)
    (unfinished.parent / "tokenstore-work.json").touch()
    (unfinished / "recipe.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds an unfinished build"), StoreWriter(tmp_path / "u", tokenizer="bytes"):
        pass


def test_options_of_a_build_that_need_all_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^StoreWriter\(\) got an unexpected keyword argument 'dedup'$"):
        StoreWriter(tmp_path / "w", tokenizer="bytes", dedup="exact")


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    for options, message in (
        ({}, "expected a tokenizer or a vocab_size"),
        ({"tokenizer": "bytes", "vocab_size": 3}, "expected a tokenizer or a vocab_size"),
        ({"vocab_size": 10}, "does not name its end-of-text token"),
        ({"tokenizer": "bytes", "metadata": ("a", "a")}, "expected names, each once"),
        ({"tokenizer": tmp_path / "none.json"}, "cannot read"),
    ):
        with pytest.raises(ConfigError, match=message):
            StoreWriter(tmp_path / "w", **options)
    with (
        pytest.raises(BuildError, match="expected at least one, found none"),
        StoreWriter(tmp_path / "w", tokenizer="bytes"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_lost_documents_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the program goes on after the error: the documents of that call are gone."""
    monkeypatch.setattr(store_writer, "_BATCH_DOCUMENTS", 2)

    def write_on() -> None:
        with StoreWriter(tmp_path / "s", vocab_size=9, eos=False) as writer:
            writer.write_all([[1], [2], [3]])
            with monkeypatch.context() as failing:
                failing.setattr(store_writer, "encode_documents", lambda *_: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    writer.write([4])
            writer.write([5])

    with pytest.raises(BuildError, match=r"documents were lost when an earlier call failed .* no store was written"):
        write_on()
    assert left_behind(tmp_path / "s") == []
    assert not (tmp_path / "s").exists()
