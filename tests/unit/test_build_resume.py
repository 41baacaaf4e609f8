"""`build_store`: a build that failed or was killed resumes from its parts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.texts import TEXTS
from tests.support.stores.building import BAD, Build, as_bytes, contents, counts, die, documents, left_behind
from tokenstore.builder import making, replacing
from tokenstore.errors import BadRecordsError, BuildError, ConfigError, TokenStoreError


def exit_job(job: tuple) -> None:
    """A worker's job that kills the worker. A named function, so that it can be pickled."""
    os._exit(9)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_build_resumes_from_its_parts(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], notes: list[str], workers: int
) -> None:
    """P8: with the cause fixed, the same command reuses the finished parts and makes the bytes of an undisturbed run."""
    with pytest.raises(BadRecordsError):
        build(*two_units, workers=workers)
    jsonl("in/b.jsonl", [*TEXTS, "fixed"])
    result = build(*two_units, note=notes.append)
    assert notes == ["resuming: 1 of 2 parts are done"]
    assert contents(result.path) == contents(build(*two_units, output="fresh").path)
    assert documents(result.path) == as_bytes(*TEXTS, *TEXTS, "fixed")
    assert left_behind(result.path) == []


@pytest.mark.parametrize("change", ["content", "size", "name"])
def test_a_changed_input_is_tokenized_again(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], notes: list[str], change: str
) -> None:
    """P8: a part made from an input that changed since is discarded."""
    with pytest.raises(BadRecordsError):
        build(*two_units)
    first, second = two_units
    jsonl("in/b.jsonl", [*TEXTS, "fixed"])
    if change == "name":
        first = first.rename(first.with_name("c.jsonl"))
    else:
        old = first.stat()
        jsonl("in/a.jsonl", [*reversed(TEXTS)] if change == "content" else TEXTS[1:])
        os.utime(first, ns=(old.st_mtime_ns, old.st_mtime_ns + 1000 * (change == "content")))
    result = build(first, second, note=notes.append)
    assert notes == []
    assert contents(result.path) == contents(build(first, second, output="fresh").path)


def test_a_part_overwritten_by_a_build_of_other_inputs_is_discarded(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: inputs a, then b, killed before it finishes a part, then a again: the store has the tokens of a, not of b.

    Inputs are not part of the recipe, so both use one work folder. The texts of b have the lengths of those of a.
    """
    first, second = two_units
    other = jsonl("in/other.jsonl", [text[::-1] for text in TEXTS])
    with pytest.raises(BadRecordsError):
        build(first, second)
    with monkeypatch.context() as patched:
        patched.setattr(making, "write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            build(other, second)
    jsonl("in/b.jsonl", [*TEXTS, "fixed"])
    assert documents(build(first, second).path) == as_bytes(*TEXTS, *TEXTS, "fixed")


@pytest.mark.parametrize(
    "damage", ["no tokens", "short tokens", "no rows", "long rows", "no summary.json", "other summary.json"]
)
def test_a_part_with_missing_or_truncated_files_is_made_again(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], tmp_path: Path, damage: str
) -> None:
    """P8: a partly removed work folder still resumes to the same bytes."""
    with pytest.raises(BadRecordsError):
        build(*two_units)
    how, what = damage.split()
    (summary,) = (tmp_path / "store.tokenstore/building/parts").glob("*/summary.json")
    path = summary.with_name(what)
    data = path.read_bytes()
    path.write_bytes({"no": b"", "short": data[:-2], "long": data + bytes(8), "other": b"[]"}[how])
    if how == "no":
        path.unlink()
    jsonl("in/b.jsonl", [*TEXTS, "fixed"])
    assert documents(build(*two_units).path) == as_bytes(*TEXTS, *TEXTS, "fixed")


def test_a_build_killed_while_replacing_a_store_is_resumed(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: killed between the two renames, there is no store; the same command makes the new one."""
    old, new = jsonl("old.jsonl", ["old"]), jsonl("new.jsonl", ["new"])
    build(old)
    with monkeypatch.context() as patched:
        patched.setattr(replacing, "commit_directory", die)
        with pytest.raises(KeyboardInterrupt):
            build(new, overwrite=True)
    assert not (tmp_path / "store").exists()
    result = build(new)
    assert documents(result.path) == as_bytes("new")
    assert left_behind(result.path) == []


def test_a_build_killed_right_after_its_commit_is_complete(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: the store is renamed last, after the list of bad records; the same command removes what is left over."""
    source = jsonl("in.jsonl", ["a", BAD])

    def commit(working: Path, output: Path) -> None:
        os.rename(working, output)
        die()

    with monkeypatch.context() as patched:
        patched.setattr(replacing, "commit_directory", commit)
        with pytest.raises(KeyboardInterrupt):
            build(source, max_bad=1)
    assert left_behind(tmp_path / "store") == ["building", "rejects.jsonl"]
    result = build(source, max_bad=1)
    assert result.was_there
    assert result.rejects == tmp_path / "store.tokenstore/rejects.jsonl"
    assert left_behind(tmp_path / "store") == ["rejects.jsonl"]


def test_a_damaged_recipe_of_an_unfinished_build_is_refused_by_name(
    build: Build, two_units: tuple[Path, Path], tmp_path: Path
) -> None:
    """P9: the recipe of existing parts must be readable; with overwrite the build starts again."""
    with pytest.raises(BadRecordsError):
        build(*two_units)
    (tmp_path / "store.tokenstore/building/recipe.json").write_bytes(b"\x00\xff{")
    with pytest.raises(TokenStoreError, match=r"recipe\.json"):
        build(*two_units, max_bad=1)
    assert build(*two_units, max_bad=1, overwrite=True).num_documents == 2 * len(TEXTS)


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_store_inside_its_input_folder_is_not_an_input(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, state: str
) -> None:
    """P8: files that a build writes (inputs.jsonl, the list of bad records) are never its inputs."""
    source = jsonl("data/in.jsonl", [*TEXTS, BAD])
    if state == "failed":
        with pytest.raises(BadRecordsError):
            build(source.parent, output="data/store")
    else:
        build(source.parent, output="data/store", max_bad=1)
    again = build(source.parent, output="data/store", max_bad=1)
    assert again.was_there is (state == "finished")
    assert again.counts == {"input files": 1, **counts(documents=len(TEXTS), bad=1)}
    assert build(f"{source.parent}/**/*.jsonl", output="data/store", max_bad=1).was_there
    with pytest.raises(ConfigError, match="holds only files"):
        build(source.with_name("store.tokenstore") / "rejects.jsonl", output="data/store")


def test_a_killed_worker_is_reported_and_the_build_resumes(
    build: Build, two_units: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: a worker killed from outside (out of memory) is a BuildError that says what to do, and no work is lost."""
    monkeypatch.setattr("tokenstore.builder.executors.processes._work", exit_job)
    with pytest.raises(BuildError, match=r"worker: a worker process was killed.*--workers"):
        build(*two_units, max_bad=1, workers=2)
    monkeypatch.undo()
    assert not (tmp_path / "store").exists()
    assert build(*two_units, max_bad=1).num_documents == 2 * len(TEXTS)
