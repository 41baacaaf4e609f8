"""`append_store`: what it refuses, what it leaves unchanged, and how it resumes."""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tokenstore
from tests.support.stores.appended import known, rows, stores_of, whole_tree, write_rows
from tests.support.stores.building import contents, left_behind
from tests.support.stores.forge import forge
from tokenstore.builder import BuildOptions, BuildResult, append, append_store, build_store
from tokenstore.builder.documents import hooks
from tokenstore.errors import (
    BadRecordsError,
    BuildError,
    ConfigError,
    CorruptionError,
    FormatError,
    StoreBusyError,
    TokenStoreError,
)
from tokenstore.store import open_store, versions
from tokenstore.store.work import exclusive_work

BAD = {"text": 7}


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., str]:
    """An input with the records of a batch, and possibly others after them, as source(number, *others)."""
    return lambda number, *others: str(write_rows(tmp_path / f"in/{number}.jsonl", [*rows(number), *others]))


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., BuildResult]:
    """Build a store in the test's folder with the bytes tokenizer."""

    def run(*inputs: str, output: str = "store", **options: object) -> BuildResult:
        return build_store(BuildOptions(inputs, tmp_path / output, **{"tokenizer": "bytes", **options}))

    return run


def die(*_: object) -> None:
    """Replaces a function of the append, which ends there."""
    raise KeyboardInterrupt


# ---- what cannot be appended to


@pytest.mark.parametrize("split", [None, "train=0.5,test=0.5"])
def test_a_deduplicated_store_without_hashes_is_refused(build: Callable, source: Callable, split: str | None) -> None:
    """A store from before the hashes of contents were kept cannot find duplicates."""
    store = build(source(0), dedup="exact", split=split).path
    for path in store.rglob("manifest.json"):
        forge(path.parent, lambda body: body["files"].pop("content_hashes.bin"))
    with pytest.raises(
        ConfigError, match=r"was built with --dedup exact, but has no content_hashes\.bin.*build it again"
    ):
        append_store(store, [str(source(1))])


def test_a_single_split_is_refused(build: Callable, source: Callable) -> None:
    """The documents of the new inputs belong to all splits."""
    store = build(source(0), split="a=0.5,b=0.5").path
    with pytest.raises(
        ConfigError, match=rf"{store / 'b'} is split 'b' of a build; append to the folder of its splits"
    ):
        append_store(store / "b", [source(1)])
    assert left_behind(store / "b") == []


@pytest.mark.parametrize("kind", ["nothing", "file", "empty folder", "folder of stores", "not built", "missing split"])
def test_a_folder_that_no_build_made_is_refused(
    build: Callable, source: Callable, make_store: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    """P9: one message names the path; nothing is written."""
    path = tmp_path / "store"
    if kind == "file":
        path.write_text("text")
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "folder of stores":
        build(source(0), output="store/web")
        build(source(0), output="store/code")
    elif kind == "not built":
        make_store("store", [[1, 2, 3]])
    elif kind == "missing split":
        build(source(0), split="a=0.5,b=0.5")
        shutil.rmtree(path / "b")
    new = source(1)
    before = whole_tree(tmp_path)
    with pytest.raises(TokenStoreError, match=str(path)) as caught:
        append_store(path, [new])
    assert isinstance(caught.value, FormatError if kind in ("nothing", "file", "missing split") else ConfigError)
    assert whole_tree(tmp_path) == before


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_changed_user_function_is_refused(
    build: Callable, source: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """P8: old and new documents are selected by the same code. Its hash is compared; restored, it works again."""
    code = tmp_path / "appended_hooks.py"
    code.write_text("def keep(record):\n    return True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def new_process() -> None:
        monkeypatch.setattr(hooks, "_loaded", {})
        sys.modules.pop("appended_hooks", None)

    store = build(source(0), filter="appended_hooks:keep").path
    before = contents(store)
    code.rename(tmp_path / "away")
    new_process()
    if change == "changed":
        code.write_text("def keep(record):\n    return not None\n")
    with pytest.raises(ConfigError, match=r"filter_sha256 was" if change == "changed" else "hook: cannot import"):
        append_store(store, [source(1)], filter="appended_hooks:keep")
    assert contents(store) == before
    (tmp_path / "away").rename(code)
    new_process()
    assert append_store(store, [source(1)], filter="appended_hooks:keep").num_documents == 16
    new_process()


@pytest.mark.parametrize("name", ["inputs.jsonl", "boundaries.bin", "origins.bin"])
def test_damage_in_the_version_to_extend_is_an_error(build: Callable, source: Callable, name: str) -> None:
    """P9: a damaged file of the old version never gets a new checksum that fits it, and there is no traceback."""
    store = build(source(0)).path
    data = bytearray((store / name).read_bytes())
    data[20] ^= 0x80
    (store / name).chmod(0o644)
    (store / name).write_bytes(data)
    found = r"(file: expected the checksum \w+, found \w+|inputs, line 1: expected JSON, found .*)"
    with pytest.raises(CorruptionError, match=rf"{found} \(.*{name}\)"):
        append_store(store, [source(1)])
    assert versions(store) == [1]


# ---- nothing to add


@pytest.mark.parametrize("split", [None, "a=0.5,b=0.5"])
def test_inputs_without_a_document_change_nothing(
    build: Callable, source: Callable, tmp_path: Path, split: str | None
) -> None:
    """P9: a run that writes nothing does not exit 0; other inputs can be appended afterwards."""
    store = build(source(0), split=split).path
    before = whole_tree(store)
    empty = str(write_rows(tmp_path / "in/empty.jsonl", [{"text": ""}]))
    with pytest.raises(
        BuildError, match=r"documents: expected at least one, found none \(1 input file\); nothing changed"
    ):
        append_store(store, [empty])
    assert whole_tree(store) == before
    assert append_store(store, [empty, source(1)]).counts["empty"] == 3
    assert left_behind(store) == []


def test_a_split_without_new_documents_is_unchanged(build: Callable, source: Callable, tmp_path: Path) -> None:
    """FMT-13: no version without a new document. Appended again, nothing is done; later documents reach all splits."""
    store = build(source(0), split="a=0.5,b=0.5").path
    one = str(write_rows(tmp_path / "in/one.jsonl", [{"text": "one"}, BAD]))
    first = append_store(store, [one], max_bad=1)
    grown = [len(versions(path)) for path in stores_of(store)]
    assert sorted(grown) == [1, 2]
    assert first.num_documents == 9
    before = whole_tree(store.parent)
    again = append_store(store, [one], max_bad=1)
    assert (again.was_there, again.num_documents) == (True, 9)
    assert whole_tree(store.parent) == before
    append_store(store, [source(1)])
    assert [len(versions(path)) for path in stores_of(store)] == [count + 1 for count in grown]
    before = whole_tree(store.parent)
    assert append_store(store, [one], max_bad=1).was_there
    assert whole_tree(store.parent) == before
    together = build(source(0), one, source(1), output="together", split="a=0.5,b=0.5", max_bad=1)
    for path, same in zip(stores_of(store), stores_of(together.path), strict=True):
        assert known(path)["documents"] == known(same)["documents"]
        assert tokenstore.verify(path) == []


# ---- who else is there


def test_concurrent_appends_are_refused(build: Callable, source: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: of two appends, or an append and a build, one runs; the other reports which process to wait for."""
    store = build(source(0)).path
    with exclusive_work(store):
        with pytest.raises(StoreBusyError, match=f"process {os.getpid()} is writing it"):
            append_store(store, [source(1)])
    commit = append.commit_append

    def other(path: Path, working: Path) -> None:
        with pytest.raises(StoreBusyError):
            append_store(store, [source(2)])
        with pytest.raises(StoreBusyError):
            build(source(0))
        commit(path, working)

    monkeypatch.setattr(append, "commit_append", other)
    assert append_store(store, [source(1)]).num_documents == 16
    assert left_behind(store) == []


def test_a_loaded_plan_keeps_the_version_it_has(build: Callable, source: Callable) -> None:
    """FMT-13: mapped files stay the same while the store grows, and an existing plan yields the same sequences."""
    store = build(source(0)).path
    plan = tokenstore.Plan.of(str(store), sequence_length=64, global_batch_size=2, packing="concat")
    opened = open_store(store)
    documents, batches = [opened[i] for i in range(len(opened))], [plan.batch(step) for step in range(3)]
    copies = [document.copy() for document in documents]
    append_store(store, [source(1)])
    assert all(np.array_equal(a, b) for a, b in zip(documents, copies, strict=True))
    assert [document.tolist() for document in opened] == [copy.tolist() for copy in copies]
    for step, batch in enumerate(batches):
        assert all(np.array_equal(value, plan.batch(step)[name]) for name, value in batch.items())
    assert len(open_store(store)) == 2 * len(opened)


@pytest.mark.parametrize("split", [None, "a=0.5,b=0.5"])
def test_a_store_that_moved_or_is_reached_by_a_link(
    build: Callable, source: Callable, tmp_path: Path, split: str | None
) -> None:
    """P8: a store records no path; the work folder is next to the store, not next to a link to it."""
    there = tmp_path / "moved to/another disk"
    there.parent.mkdir()
    expected = build(source(0), output="expected", split=split).path
    append_store(expected, [source(1)])
    build(source(0), split=split).path.rename(there)
    (tmp_path / "link").symlink_to(there)
    result = append_store(tmp_path / "link", [source(1)])
    assert result.path == there
    assert whole_tree(there) == whole_tree(expected)
    assert os.listdir(there.parent) == [there.name]
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_an_unwritable_folder_is_an_error_that_names_it(
    build: Callable, source: Callable, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """P9: on a read-only disk, noticed at the lock file or later, the store is unchanged and the message gives the
    reason.
    """
    store, new = build(source(0)).path, source(1)
    before, real = contents(store), getattr(os, call)

    def refuse(path: object, *arguments: int, **options: object) -> int:
        if call == "open" and (not arguments or not arguments[0] & os.O_CREAT):
            return real(path, *arguments, **options)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(BuildError, match=r"disk: Read-only file system: .*store\.tokenstore"):
            append_store(store, [new])
    assert contents(store) == before
    assert append_store(store, [new]).num_documents == 16


# ---- where another one ended


def test_an_unfinished_append_does_not_block_others(
    build: Callable, source: Callable, small_units: Callable[[int], None], notes: list[str]
) -> None:
    """P8: the same append resumes its parts, and other inputs may be appended first."""
    small_units(2500)
    store = build(source(0)).path
    inputs = [source(1), source(2, BAD)]
    with pytest.raises(BadRecordsError):
        append_store(store, inputs)
    result = append_store(store, [source(3)], note=notes.append)
    assert (result.num_documents, notes) == (16, [])
    with pytest.raises(BadRecordsError):
        append_store(store, inputs)
    result = append_store(store, inputs, max_bad=1, note=notes.append)
    assert (result.num_documents, notes) == (32, ["resuming: 4 of 5 parts are done"])
    assert tokenstore.verify(store) == []
    assert left_behind(store) == ["rejects-v3.jsonl"]


@pytest.mark.parametrize("split", [None, "a=0.5,b=0.5"])
@pytest.mark.parametrize("then", ["the same", "another"])
def test_an_append_killed_right_after_its_commit_is_complete(
    build: Callable, source: Callable, monkeypatch: pytest.MonkeyPatch, split: str | None, then: str
) -> None:
    """P8: the same command removes what is left over, and no other command is refused because of it."""
    store = build(source(0), split=split).path
    with monkeypatch.context() as patched:
        patched.setattr(append, "tidy", die)
        with pytest.raises(KeyboardInterrupt):
            append_store(store, [source(1)])
    assert (store.with_name("store.tokenstore") / "building" / "parts").exists()
    result = append_store(store, [source(1 if then == "the same" else 2)])
    assert (result.was_there, result.num_documents) == ((True, 16) if then == "the same" else (False, 24))
    assert left_behind(store) == []
    assert [finding for path in stores_of(store) for finding in tokenstore.verify(path)] == []


def test_an_append_killed_between_two_splits_must_be_finished_first(
    build: Callable, source: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: other inputs would precede it in one split and follow it in the other. The same command gives the same bytes."""
    expected = build(source(0), output="expected", split="a=0.4,b=0.3,c=0.3").path
    append_store(expected, [source(1)])
    store = build(source(0), split="a=0.4,b=0.3,c=0.3").path
    commit = append.commit_append
    for name in ("b", "c"):
        with monkeypatch.context() as patched:
            patched.setattr(
                append, "commit_append", lambda to, made, n=name: die() if to.name == n else commit(to, made)
            )
            with pytest.raises(KeyboardInterrupt):
                append_store(store, [source(1)])
        with pytest.raises(ConfigError, match=r"append\[0\] was .*; finish that one first"):
            append_store(store, [source(2)])
    assert [versions(path)[-1] for path in stores_of(store)] == [2, 2, 1]
    result = append_store(store, [source(1)])
    assert (result.was_there, result.num_documents) == (False, 16)
    assert whole_tree(store) == whole_tree(expected)
    assert left_behind(store) == []
    assert append_store(store, [source(2)]).num_documents == 24


def test_an_unfinished_overwrite_is_not_resumed_as_an_append(
    build: Callable, source: Callable, small_units: Callable[[int], None]
) -> None:
    """P8: a store that is being replaced cannot be appended to; the message names the unfinished build."""
    small_units(2500)
    store = build(source(0)).path
    with pytest.raises(BadRecordsError):
        build(source(0), source(1, BAD), eos=False, overwrite=True)
    with pytest.raises(ConfigError, match=r"store\.tokenstore/building holds an unfinished build with another command"):
        append_store(store, [source(2)])
    assert build(source(0)).was_there
    assert append_store(store, [source(2)]).num_documents == 16
