"""Stores and work folders that try to redirect our writers to other files: nothing else is changed or removed."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tokenstore
from tests.conftest import write_store
from tests.support.processes.command_lines import run_here
from tests.support.stores.appended import whole_tree
from tests.support.stores.grown import edit_manifest
from tokenstore.builder import BuildOptions, append_store, build_store, pipeline, resume
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BadRecordsError, ConfigError, TokenStoreError
from tokenstore.store import open_store, versions
from tokenstore.store.length_index import add_length_index
from tokenstore.store.work import MARK_NAME, Work

pytestmark = pytest.mark.timeout(120)  # a pipe that is waited for is a failure

TEMPORARY = [f"{name}{suffix}" for name in ("manifest.json", "manifest-v1.json", "length_index.bin") for suffix in (".tmp", ".tokenstore-tmp")]  # fmt: skip
WAYS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "link to nothing": lambda path, victim: path.symlink_to(victim.with_name("nothing")),
    "second name": lambda path, victim: path.hardlink_to(victim),
    "pipe": lambda path, victim: os.mkfifo(path),
}


def build(output: Path, *inputs: str, **options: Any) -> Path:
    return build_store(BuildOptions(inputs, output, "bytes", **options)).path


def without_order(store: Path) -> Path:
    (store / "length_index.bin").unlink()
    return edit_manifest(store, lambda body: body["files"].pop("length_index.bin"))


# ---- in a store


@pytest.mark.parametrize("way", WAYS)
def test_an_existing_name_is_replaced_without_following_links(
    tmp_path: Path, victim: Path, source: str, other: str, way: str
) -> None:
    """P9: with `manifest.json.tmp -> victim` in a store, index and append overwrote the victim and made it
    read-only.
    """
    store = without_order(build(tmp_path / "store", source))
    for name in (*TEMPORARY, "length_index.bin", "length_index-v2.bin", "boundaries-v2.bin", "tokens-00001.bin"):
        WAYS[way](store / name, victim)
    assert add_length_index(store)
    append_store(store, [other])
    assert [tokenstore.verify(store, version=version) for version in versions(store)] == [[], []]
    assert len(open_store(store)) == 10
    assert not any(
        (store / name).is_symlink() for name in ("length_index.bin", "length_index-v2.bin", "boundaries-v2.bin")
    )


@pytest.mark.parametrize(
    "name", ["manifest.json.tokenstore-tmp", "length_index.bin.tokenstore-tmp", "length_index.bin"]
)
def test_a_folder_in_the_place_of_a_file_is_an_error(tmp_path: Path, source: str, name: str) -> None:
    """P9: it is not removed; the store is unchanged."""
    store = without_order(build(tmp_path / "store", source))
    (store / name).mkdir()
    (store / name / "mine").write_text("mine")
    with pytest.raises(TokenStoreError, match=rf"length index: cannot write .*{name}.*Is a directory"):
        add_length_index(store)
    assert (store / name / "mine").read_text() == "mine"
    assert not open_store(store).has_length_index


def test_a_split_that_is_a_link_is_not_appended_to(tmp_path: Path, source: str, other: str) -> None:
    """P9: the store that the link leads to is not the one that was named."""
    mine = build(tmp_path / "mine", source, split="a=0.5,b=0.5")
    theirs = build(tmp_path / "theirs", source, split="a=0.5,b=0.5")
    (theirs / "a").rename(tmp_path / "away")
    (theirs / "a").symlink_to(mine / "a")
    before = whole_tree(mine)
    with pytest.raises(ConfigError, match=r"append: .*/theirs/a is a link; move the split itself into "):
        append_store(theirs, [other])
    assert whole_tree(mine) == before


# ---- the work folder


def marked(path: Path) -> Path:
    """A work folder with our mark, as an archive may contain it."""
    path.mkdir()
    (path / MARK_NAME).write_text(f'{{"format": "tokenstore-work", "format_version": 1, "pid": {0:10d}}}\n')
    return path


def mark(way: str | bytes) -> Callable[[Path, Path], object]:
    def make(path: Path, victim: Path) -> None:
        path.mkdir()
        if isinstance(way, bytes):
            (path / MARK_NAME).write_bytes(way)
        else:
            WAYS[way](path / MARK_NAME, victim)

    return make


def inside(name: str, way: str = "link") -> Callable[[Path, Path], object]:
    def make(path: Path, victim: Path) -> None:
        (marked(path) / name).parent.mkdir(exist_ok=True)
        WAYS[way](path / name, victim if way != "link" or name.endswith(".jsonl") else victim.parent)

    return make


NOT_OURS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a folder": lambda path, victim: path.symlink_to(victim.parent),
    "a link to nothing": WAYS["link to nothing"],
    "a link to a work folder": lambda path, victim: path.symlink_to(marked(path.with_name("elsewhere"))),
    "a file": lambda path, victim: path.write_text("mine"),
    "a pipe": WAYS["pipe"],
    "a folder of the user's": lambda path, victim: (path.mkdir(), (path / "lock").write_text("")),
    "a mark that is a link": mark("link"),
    "a mark that is a link to nothing": mark("link to nothing"),
    "a mark with a second name": mark("second name"),
    "a mark that is a pipe": mark("pipe"),
    "a mark of another format": mark(b'{"format": "other", "version": 1, "pid":          7}\n'),
    "a mark of another version": mark(b'{"format": "tokenstore-work", "format_version": 2, "pid":          7}\n'),
    "a mark and more": mark(b'{"format": "tokenstore-work", "format_version": 1, "pid":          7}\nmore'),
    "a deep mark": mark(b"[" * 100_000),
    "a link in place of the work": inside("building"),
    "a link in place of parts": inside("building/parts"),
    "a link in place of the replaced store": inside("replaced"),
    "a link in place of a list": inside("rejects.jsonl"),
    "a pipe in place of a list": inside("rejects-v2.jsonl", "pipe"),
    "a pipe in place of the work": inside("building", "pipe"),
}


@pytest.mark.parametrize("kind", NOT_OURS)
@pytest.mark.parametrize("command", ["build", "overwrite", "append", "index"])
def test_a_work_folder_that_is_not_ours_is_refused(
    tmp_path: Path, victim: Path, source: str, other: str, command: str, kind: str
) -> None:
    """P9: exit code 2 and its name; nothing in it or at the targets of its links is changed, and the store is unchanged."""
    store = tmp_path / "out/store"
    if command != "build":
        without_order(build(store, source))
    store.parent.mkdir(exist_ok=True)
    path = Work(store).folder
    NOT_OURS[kind](path, victim)
    before = whole_tree(store.parent), sorted(map(str, tmp_path.rglob("*")))
    commands = {
        "build": ("build", source, "-o", store, "--tokenizer", "bytes", "--workers", 1),
        "overwrite": ("build", source, "-o", store, "--tokenizer", "bytes", "--workers", 1, "--overwrite"),
        "append": ("append", store, other, "--workers", 1),
        "index": ("index", store),
    }
    done = run_here(*commands[command])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"work folder: {path}" in done.stderr
    assert "move it away, or give the store another name" in done.stderr
    assert (whole_tree(store.parent), sorted(map(str, tmp_path.rglob("*")))) == before


@pytest.mark.parametrize("state", ["empty", "empty mark"])
def test_a_folder_left_by_a_killed_run_is_reused(tmp_path: Path, source: str, state: str) -> None:
    """P8: killed before the mark was created or written; such a folder is empty."""
    folder = Work(tmp_path / "store").folder
    folder.mkdir()
    if state == "empty mark":
        (folder / MARK_NAME).touch()
    build(tmp_path / "store", source)
    assert not folder.exists()


def test_links_in_unfinished_work_are_removed_and_not_followed(
    tmp_path: Path, victim: Path, jsonl: Callable[..., Path], source: str
) -> None:
    """P9: a marked folder is untrusted too: links where we write are replaced, links where we read are not followed."""
    bad, store = jsonl("in/bad.jsonl", ["x", 7]), tmp_path / "store"
    with pytest.raises(BadRecordsError):
        build(store, source, str(bad), dedup="exact")
    work = Work(store)
    for path in list((work.building / "parts").iterdir()):
        shutil.rmtree(path)
        path.symlink_to(victim)
    for name in ("store", "dedup"):
        if (work.building / name).exists():
            for path in sorted((work.building / name).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            (work.building / name).rmdir()
        (work.building / name).symlink_to(victim.parent)
    work.rejects().unlink()
    (work.building / "rejects.jsonl").symlink_to(victim)
    with pytest.raises(BadRecordsError):
        build(store, source, str(bad), dedup="exact")
    assert build(store, source, str(bad), dedup="exact", max_bad=1) == store
    assert len(open_store(store)) == 5
    assert sorted(path.name for path in work.folder.iterdir()) == ["rejects.jsonl", MARK_NAME]


def test_a_recipe_that_is_a_link_is_not_read(tmp_path: Path, victim: Path, source: str) -> None:
    """P9: the message would show the contents of the target."""
    work = Work(tmp_path / "store")
    marked(work.folder)
    work.building.mkdir()
    (work.building / "recipe.json").symlink_to(victim)
    with pytest.raises(
        TokenStoreError, match=r"recipe\.json: expected .* found a link to|a link to .*outside"
    ) as caught:
        build(tmp_path / "store", source)
    assert "precious'" not in str(caught.value)
    assert build(tmp_path / "store", source, overwrite=True)


PARTS = {
    "summary.json": [b"[]", b"{}", b"[" * 5000, b'{"sizes": 5}', b"\xff", b'{"slices": [[1]]}'],
    "tokens": [b"\1"],  # ids of the vocabulary
    "rows": [b"\xff"],
    "bad": [b"[\n"],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, all_data in PARTS.items() for data in all_data])
def test_forged_parts_are_made_again_or_refused(
    tmp_path: Path, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    """P9: names of parts can be guessed from the inputs; neither a traceback nor an invalid document."""
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=30))
    output = tmp_path / "store"
    inputs = [str(jsonl(f"in/{each}.jsonl", [each, 7])) for each in "ab"]
    with pytest.raises(BadRecordsError):
        build(output, *inputs, max_bad=1)
    summaries = list((Work(output).building / "parts").glob("*/summary.json"))
    assert summaries
    for summary in summaries:
        path = summary.with_name(name)
        size = path.stat().st_size
        path.write_bytes(data if name == "summary.json" else (data * size)[:size])
    if name == "summary.json":
        build(output, *inputs, max_bad=2)
        assert len(open_store(output)) == 2
    else:
        with pytest.raises(TokenStoreError, match=r"part: .* was changed after the build wrote it"):
            build(output, *inputs, max_bad=2)


# ---- files of the user


@pytest.mark.parametrize("action", ["build", "build again", "overwrite", "append", "index", "bad records"])
def test_files_that_are_named_like_the_store_are_left_alone(
    tmp_path: Path, source: str, other: str, jsonl: Callable[..., Path], action: str
) -> None:
    """P9: a build with `--output uv` truncated and removed `uv.lock`, and the folders uv.building and uv.replaced."""
    store = tmp_path / "out/uv"
    if action != "build":
        without_order(build(store, source))
    store.parent.mkdir(exist_ok=True)
    for name in ("uv.lock", "uv.rejects.jsonl", "uv.rejects-v2.jsonl", "uv.tmp", "uv.tokenstore-tmp"):
        (store.parent / name).write_text("mine")
    for name in ("uv.building", "uv.replaced"):
        (store.parent / name / "deep").mkdir(parents=True)
        (store.parent / name / "deep/thesis").write_text("mine")
    before = {name: data for name, data in whole_tree(store.parent).items() if not name.startswith("uv/")}
    assert len(before) == 7
    if action == "append":
        append_store(store, [other])
    elif action == "index":
        assert add_length_index(store)
    elif action == "bad records":
        with pytest.raises(BadRecordsError):
            append_store(store, [str(jsonl("in/bad.jsonl", [7]))])
    else:
        build(store, source, overwrite=action == "overwrite")
    after = {name: data for name, data in whole_tree(store.parent).items() if not name.startswith("uv/")}
    assert {name: data for name, data in after.items() if not name.startswith("uv.tokenstore/")} == before


MINE = {
    "a file": ("thesis.txt",),
    "a hidden file": (".hidden",),
    "a folder": ("notes/thesis.txt",),
    "a folder named like a file of the store": ("tokens-00009.bin/thesis.txt",),
    "a copy of a file": ("tokens-00000.bin.bak",),
}


@pytest.mark.parametrize("split", [None, "a=0.5,b=0.5"])
@pytest.mark.parametrize("files", MINE.values(), ids=MINE)
def test_overwrite_refuses_a_folder_with_more_than_a_store(
    tmp_path: Path, source: str, files: tuple[str, ...], split: str | None
) -> None:
    """P9: a whole store is replaced, and nothing else is removed."""
    store = build(tmp_path / "store", source, split=split)
    for folder in [store / "a", store] if split else [store]:
        for name in files:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("mine")
        before = whole_tree(store)
        with pytest.raises(
            ConfigError, match=r"is not a token store|holds 1 file or folder that is not part"
        ) as caught:
            build(tmp_path / "store", source, overwrite=True, eos=False, split=split)
        assert (folder == store and split) or str(folder / files[0].split("/")[0]) in str(caught.value)
        assert whole_tree(store) == before


def test_overwrite_replaces_all_files_of_a_store(tmp_path: Path, source: str, other: str, victim: Path) -> None:
    """P8: also older versions, leftovers of an interrupted append or index, and links; their targets are kept."""
    store = build(tmp_path / "store", source)
    append_store(store, [other])
    for name in (
        "tokens-00009.bin",
        "boundaries-v3.bin",
        "length_index.bin.tokenstore-tmp",
        "manifest.json.tokenstore-tmp",
    ):
        (store / name).write_bytes(b"left")
    (store / "mask-00000.bin").symlink_to(victim)
    build(store, other, overwrite=True)
    assert (versions(store), len(open_store(store))) == ([1], 6)
    assert not Work(store).folder.exists()


def test_a_file_saved_into_a_store_while_it_is_replaced_is_kept(tmp_path: Path, source: str, other: str) -> None:
    """P9: between the check and the end of --overwrite; a note says where the file is."""
    store = build(tmp_path / "store", source)
    notes: list[str] = []

    def progress(_: object) -> None:
        (store / "thesis.txt").write_text("mine") if not (store / "thesis.txt").exists() else None

    options = BuildOptions((other,), store, "bytes", overwrite=True)
    assert build_store(options, progress, notes.append).num_documents == 6
    assert (Work(store).replaced / "thesis.txt").read_text() == "mine"
    assert any(str(Work(store).replaced) in note for note in notes)


@pytest.mark.parametrize("action", ["build", "overwrite", "append"])
def test_a_failed_cleanup_does_not_fail_the_build(
    tmp_path: Path, source: str, other: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """P8: exit code 0 and a note; the next run cleans up."""
    store = tmp_path / "store"
    if action != "build":
        build(store, source)

    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(resume, "remove_tree", refuse)
        command = ["append", store] if action == "append" else ["build", "-o", store, "--tokenizer", "bytes"]
        more = ["--overwrite"] if action == "overwrite" else []
        done = run_here(*command, other, "--workers", 1, *more)
    assert done.returncode == 0
    assert f"{Work(store).building} could not be removed (Input/output error)" in done.stderr
    assert tokenstore.verify(store) == []
    before = whole_tree(store)
    assert run_here(*command, other, "--workers", 1).returncode == 0
    assert whole_tree(store) == before
    assert not Work(store).building.exists()


def test_index_skips_work_folders(tmp_path: Path, source: str) -> None:
    """`index stores/*` finds them next to stores."""
    store = write_store(tmp_path / "stores/s", [[1], [1, 2]])
    marked(Work(store).folder)
    assert run_here("index", *sorted(store.parent.iterdir())).returncode == 0
    assert run_here("index", store.with_name("s.tokenstores")).returncode == 1
