"""`build_store`: bad records, damaged inputs, inputs without a document."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.building import BAD, Build, contents, left_behind, mixed_corpus
from tokenstore.errors import BadRecordsError, BuildError


def test_more_bad_records_than_allowed_are_listed_and_leave_no_store(
    build: Build, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P9: the build stops and names the first bad record. The list has the file, line and reason of each found so far."""
    small_units(3000)
    corpus = mixed_corpus(tmp_path / "in")
    with pytest.raises(
        BadRecordsError, match=r"bad records: 3 so far, and 2 are allowed; the first is record 34 of a\.jsonl: field"
    ) as caught:
        build(corpus, max_bad=2)
    rejects = tmp_path / "store.tokenstore/rejects.jsonl"
    assert str(rejects) in str(caught.value)
    assert "--max-bad" in str(caught.value)
    assert not (tmp_path / "store").exists()
    rows = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(row["file"], row["record"], row["reason"][:12]) for row in rows] == [
        ("a.jsonl", 34, "field 'text'"),
        ("b/three.txt", 1, "not UTF-8: i"),
        ("c.jsonl.gz", 6, "not JSON: un"),
    ]
    assert [row["start"] for row in rows] == ['{"text":7}', "\ufffd not text", "{"]


def test_allowing_more_bad_records_and_running_again_works(
    build: Build, tmp_path: Path, small_units: Callable[[int], None], notes: list[str]
) -> None:
    """max_bad is not part of the recipe: with a higher limit the same build resumes, and lists the records it drops."""
    small_units(1000)
    corpus = mixed_corpus(tmp_path / "in")
    with pytest.raises(BadRecordsError):
        build(corpus, max_bad=2)
    result = build(corpus, max_bad=3, note=notes.append)
    assert any(note.startswith("resuming: ") for note in notes)
    assert result.rejects == tmp_path / "store.tokenstore/rejects.jsonl"
    assert len(result.rejects.read_text().splitlines()) == 3
    assert contents(result.path) == contents(build(corpus, max_bad=9, output="fresh").path)
    assert left_behind(result.path) == ["rejects.jsonl"]


@pytest.mark.parametrize("max_bad", [0, 1, 4, 5])
def test_exactly_the_allowed_number_of_bad_records_passes(
    build: Build, jsonl: Callable[..., Path], max_bad: int
) -> None:
    """With `max_bad` bad records there is a store; with one more there is none."""
    source = jsonl("in.jsonl", ["a", *[BAD] * max_bad])
    assert build(source, max_bad=max_bad).counts["bad"] == max_bad
    if max_bad:
        with pytest.raises(BadRecordsError):
            build(source, max_bad=max_bad - 1, output="other")


def test_without_bad_records_there_is_no_list_of_them(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """Once the records are fixed, the list of the failed run is removed."""
    source = jsonl("in.jsonl", ["a", BAD])
    with pytest.raises(BadRecordsError):
        build(source)
    assert (tmp_path / "store.tokenstore/rejects.jsonl").exists()
    result = build(jsonl("in.jsonl", ["a", "b"]))
    assert result.rejects is None
    assert left_behind(result.path) == []


@pytest.mark.parametrize("inputs", [[""], [BAD], []], ids=["empty", "bad", "no lines"])
def test_inputs_without_documents_are_an_error(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, inputs: list
) -> None:
    """P9: a store holds at least one document. The error says what was found instead."""
    with pytest.raises(
        BuildError, match=r"expected at least one, found none \(1 input files, 0 documents.*no store was"
    ):
        build(jsonl("in.jsonl", inputs), max_bad=1)
    assert not (tmp_path / "store").exists()


def test_a_damaged_input_is_an_error_and_no_store(build: Build, tmp_path: Path) -> None:
    """P9: a truncated compressed file never becomes a store; complete again, it does."""
    corpus = mixed_corpus(tmp_path / "in")
    whole = (corpus / "d.txt.gz").read_bytes()
    (corpus / "d.txt.gz").write_bytes(whole[:-9])
    with pytest.raises(BuildError, match=r"d\.txt\.gz is damaged or incomplete"):
        build(corpus, max_bad=3)
    assert not (tmp_path / "store").exists()
    (corpus / "d.txt.gz").write_bytes(whole)
    assert contents(build(corpus, max_bad=3).path) == contents(build(corpus, max_bad=3, output="fresh").path)
