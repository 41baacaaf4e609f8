"""A disk that fails at any call or is full, an unwritable folder, inputs that disappear: an error, and the build resumes."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import tokenstore
from tests.support.processes.killing import ROOT, WAIT_SECONDS, FailingDisk, check_whole, tree, write_corpus
from tokenstore.builder import BuildOptions, BuildResult, append_store, build_store, making, pipeline
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import cut_units
from tokenstore.errors import BuildError

UNIT_BYTES = 100_000
SPLIT = {"split": "a=0.5,b=0.5", "dedup": "exact", "id_field": "id", "max_bad": 2}
Make = Callable[[Path], BuildResult]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of about a megabyte."""
    return write_corpus(tmp_path_factory.mktemp("disk") / "corpus", 16)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inputs of two parts, with equal documents and bad records."""
    folder = tmp_path / "in"
    folder.mkdir()
    records = (b'{"text": "first", "id": 1}', b'{"text": "second", "id": 2}', b'{"text": "first", "id": 3}', b"bad")
    (folder / "a.jsonl").write_bytes(b"\n".join(records))
    (folder / "b.txt").write_text("third")
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=60))
    return folder


def check_failures(
    make: Make, make_base: Make | None, folder: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool, step: int
) -> list[str]:
    """Fail at every `step`-th call, from the last on, and then run again; return the calls.

    `make` builds at a path, or appends if `make_base` has built there before. A failure leaves no new store, unless it came
    after the commit: then the new store is complete.
    """

    def prepared(name: str) -> Path:
        (folder / name).mkdir()
        if make_base:
            shutil.copytree(folder / "base/store", folder / name / "store")
        return folder / name / "store"

    if make_base:
        (folder / "base").mkdir()
        make_base(folder / "base/store")
    make(prepared("compiled"))  # or a kernel that goes into numba's cache would be counted as well
    undisturbed = prepared("undisturbed")
    disk = FailingDisk(None, False)
    with disk.mounted(monkeypatch):
        make(undisturbed)
    expected = tree(undisturbed.parent)
    for number in range(len(disk.calls))[::-step]:
        output = prepared(f"{number}")
        before = tree(output) if make_base else {}
        failing = FailingDisk(number, for_good)
        with (
            failing.mounted(monkeypatch),
            pytest.raises(BuildError, match=r"disk: No space left on device: .*MB free.*again to resume"),
        ):
            make(output)
        assert failing.calls[: number + 1] == disk.calls[: number + 1]
        if output.exists():
            check_whole(output)
            old = {name: data for name, data in before.items() if not name.endswith("manifest.json")}
            assert old.items() <= tree(output).items()
        whole = output.exists() and tree(output) == tree(undisturbed)
        result = make(output)
        assert result.was_there == whole, f"call {number}, {disk.calls[number]}"
        assert tree(output.parent) == expected
        shutil.rmtree(output.parent)
    return disk.calls


def build_of(folder: Path, **options: object) -> Make:
    """Build a store of a folder in this process, of several shards."""
    fixed = {"shard_bytes": 16, "max_bad": 1}
    return lambda output: build_store(BuildOptions((str(folder),), output, "bytes", **{**fixed, **options}))


deep = pytest.mark.deep


@pytest.mark.parametrize(
    ("options", "for_good", "step"),
    [
        pytest.param({}, False, 2, id="store, once"),
        pytest.param({}, False, 1, id="store, once, all", marks=deep),
        pytest.param({}, True, 5, id="store, for good"),
        pytest.param({}, True, 1, id="store, for good, all", marks=deep),
        pytest.param(SPLIT, False, 11, id="splits without equal documents"),
        pytest.param(SPLIT, False, 1, id="splits without equal documents, all", marks=deep),
    ],
)
def test_a_disk_that_fails_at_any_call_leaves_no_store_and_the_build_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, for_good: bool, step: int
) -> None:
    """P8: whichever open, write, fsync or rename fails, there is a BuildError, and the same command makes the same
    bytes.
    """
    (tmp_path / "out").mkdir()
    calls = check_failures(build_of(folder, **options), None, tmp_path / "out", monkeypatch, for_good, step)
    assert set(calls) == {"open", "write", *FailingDisk.CALLS}
    assert len(calls) > 40


@pytest.mark.parametrize(
    ("split", "for_good", "step"),
    [
        pytest.param(None, True, 5, id="store, for good"),
        pytest.param(None, True, 1, id="store, for good, all", marks=deep),
        pytest.param("a=0.5,b=0.5", False, 17, id="splits, once"),
        pytest.param("a=0.5,b=0.5", False, 1, id="splits, once, all", marks=deep),
    ],
)
def test_a_disk_that_fails_at_any_call_leaves_the_old_store_and_the_append_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str | None, for_good: bool, step: int
) -> None:
    """P8, FMT-13: whichever call fails, the store has its old version or the new one, each split separately."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old/old.jsonl").write_text('{"text": "old"}\n{"text": "older"}\n{"text": "oldest"}\n{"text": "oldie"}')
    (tmp_path / "out").mkdir()
    base = build_of(tmp_path / "old", split=split)

    def make(output: Path) -> BuildResult:
        return append_store(output, [str(folder)], max_bad=1)

    calls = check_failures(make, base, tmp_path / "out", monkeypatch, for_good, step)
    assert set(calls) == {"open", "write", *FailingDisk.CALLS}


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_an_unwritable_folder_is_an_error_that_names_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """P8: a read-only disk, be it seen at the lock file or at the work folder, is a message with its name."""
    real = getattr(os, call)

    def refuse(path: object, *arguments: int, **options: object) -> int:
        if call == "open" and (not arguments or not arguments[0] & os.O_CREAT):
            return real(path, *arguments, **options)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    make, output = build_of(folder), tmp_path / "out" / "store"
    output.parent.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(BuildError, match=r"disk: Read-only file system: .*out/store\.tokenstore"):
            make(output)
    assert os.listdir(output.parent) == []
    assert make(output).num_documents == 4


def test_a_work_folder_on_a_read_only_disk_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: the whole path, although the folder and its mark were there before."""
    real, make, output = os.open, build_of(folder), tmp_path / "store"
    work = Path(f"{output}.tokenstore")
    work.mkdir()
    (work / "tokenstore-work.json").touch()

    def refuse(path: object, flags: int, *arguments: int, **options: object) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(BuildError, match=f"disk: Read-only file system: {work}/tokenstore-work.json"):
            make(output)
    assert make(output).num_documents == 4


# ---- inputs that vanish


@pytest.mark.parametrize(
    ("when", "workers"),
    [
        ("before it is read", 1),
        ("before it is read", 2),
        ("while it is read", 1),
    ],
)
def test_an_input_removed_during_a_build_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, workers: int
) -> None:
    """P8: no store is made of the rest. With the input restored, the build resumes from the parts it has."""
    gone, away, output = folder / "b.txt", tmp_path / "away", tmp_path / "store"
    cut, check = pipeline.cut_units, making._check_unchanged

    def removed(files: object) -> object:
        units = cut(files)
        gone.rename(away)
        return units

    def removed_on_the_way(file: InputFile) -> None:
        if file.path == gone:
            gone.rename(away)
        check(file)

    with monkeypatch.context() as patched:
        if when == "before it is read":
            patched.setattr(pipeline, "cut_units", removed)
        else:
            patched.setattr(making, "_check_unchanged", removed_on_the_way)
        with pytest.raises(
            BuildError,
            match=r"input: .*b\.txt (became unreadable during the build|cannot be read) \(No such file or directory\); .*run the same command",
        ):
            build_store(BuildOptions((str(folder),), output, "bytes", workers=workers, max_bad=1))
    assert not output.exists()
    away.rename(gone)
    notes: list[str] = []
    assert build_store(BuildOptions((str(folder),), output, "bytes", max_bad=1), note=notes.append).num_documents == 4
    assert notes in (["resuming: 2 of 3 parts are done"], ["resuming: 1 of 3 parts are done"])
    check_whole(output)


# ---- a disk that is full


@pytest.mark.parametrize("left_bytes", [-1, -100, -1000, -3000, -4095, -4097, -20_000])
def test_a_truncated_part_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_bytes: int) -> None:
    """P8: if a limit on file size cuts off a part's last bytes, the build fails, and the part is made again.

    The C library buffers up to 4,096 bytes and reports no error if it cannot write them.
    """
    source = tmp_path / "in.txt"
    source.write_text("abcdefgh" * 2000)
    options = BuildOptions((str(source),), tmp_path / "store", "bytes", eos=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * source.stat().st_size + left_bytes, hard))
    try:
        with pytest.raises(BuildError, match=r"disk: File too large: "):
            build_store(options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    notes: list[str] = []
    build_store(options, note=notes.append)
    assert notes == []
    with tokenstore.open_store(tmp_path / "store") as store:
        assert store.decode(0) == source.read_text()


@pytest.mark.parametrize(
    ("workers", "limit"),
    [
        (2, 150_000),
        *[pytest.param(*each, marks=deep) for each in ((1, 150_000), (1, 100), (1, 250_000), (2, 100), (2, 250_000))],
    ],
)
def test_a_limit_on_file_size_ends_the_command_with_exit_code_1_and_it_resumes(
    corpus: Path, tmp_path: Path, limit: int, workers: int
) -> None:
    """P8: a real failing write, in the builder or in a worker, is exit code 1 and a message, and no store."""
    # 100 bytes: not even the recipe; 150,000: some part's tokens; 250,000: all parts fit, and the shard does not.
    code = f"import tokenstore.builder.pipeline as p, functools as f; p.cut_units = f.partial(p.cut_units, unit_bytes={UNIT_BYTES})\nfrom tokenstore.commands.entry import main\nif __name__ == '__main__': main()"  # fmt: skip
    command = [sys.executable, "-c", code, "build", corpus, "--tokenizer", "bytes", "--output", tmp_path / "store", "--workers", workers]  # fmt: skip

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    run = partial(
        subprocess.run, list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    failed = run(preexec_fn=limited)  # no threads are running here
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: disk: File too large: ")
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "store").exists()
    again = run()
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr or limit < 250_000
    assert tokenstore.verify(tmp_path / "store") == []
