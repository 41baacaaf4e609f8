"""Inputs that are not files, are unreadable, have unusual names, or change during a build: reported, never silently
dropped.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.command_lines import run_here
from tests.support.processes.privileges import open_folder, unprivileged
from tests.support.stores.building import contents
from tests.support.stores.odd_builds import (
    Bad,
    Run,
    arguments_of,
    check_built,
    check_refused,
    command,
    run_outside,
    write_all,
)

__all__ = ["command"]
pytestmark = pytest.mark.timeout(120)  # a pipe that is waited for is a failure long before the suite's own limit
LINE = b'{"text": "%s"}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one valid file."""
    return write_all(tmp_path / "in", {"a.jsonl": LINE % b"a"})


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe or a device; copy its content to a file, or pipe it in"),
    "device": (
        lambda path: path.symlink_to("/dev/zero"),
        "is a pipe or a device; copy its content to a file, or pipe it in",
    ),
    "link to nothing": (lambda path: path.symlink_to("gone.jsonl"), "is a link to nothing"),
    "link to itself": (lambda path: path.symlink_to(path.name), "is a link to nothing"),
}


@pytest.mark.parametrize("source", ["itself", "its folder", "a glob"])
@pytest.mark.parametrize("kind", NO_FILES)
def test_an_input_that_is_not_a_file_is_reported(command: Run, folder: Path, kind: str, source: str) -> None:
    """P9: without blocking or skipping it, however it was given; exit code 2."""
    make, message = NO_FILES[kind]
    odd = folder / "sub" / "x.jsonl"
    odd.parent.mkdir()
    make(odd)
    sources = {"itself": [folder / "a.jsonl", odd], "its folder": folder, "a glob": folder / "**" / "*.jsonl"}
    check_refused(command, sources[source], folder.parent / "store", 2, f"error: input: {odd}", message)  # fmt: skip


def test_several_errors_are_reported_by_the_command(folder: Path) -> None:
    """P9: one message with a line for each, exit code 2."""
    for kind, (make, _) in NO_FILES.items():
        make(folder / f"{kind}.jsonl")
    parts = [f"{folder}/{kind}.jsonl" for kind in NO_FILES]
    check_refused(run_outside, folder, folder.parent / "store", 2, *parts)


def test_a_folder_named_like_a_file_is_a_folder(command: Run, folder: Path) -> None:
    """Given by name, inside another folder, or matched by a glob."""
    write_all(folder, {"x.jsonl/b.jsonl": LINE % b"b", "x.parquet/c.txt": b"c"})
    records = [("a.jsonl", 1, "a"), ("x.jsonl/b.jsonl", 1, "b"), ("x.parquet/c.txt", 1, "c")]
    check_built(command, folder, folder.parent / "store", records)
    check_built(command, folder / "x.jsonl", folder.parent / "named", [("b.jsonl", 1, "b")])
    check_built(command, folder / "*.jsonl", folder.parent / "glob", records[:1])


def test_a_link_to_a_folder_is_reported_and_not_followed(command: Run, folder: Path) -> None:
    """P9: it may lead back to its own folder; but its contents are not silently dropped."""
    write_all(folder.parent / "elsewhere", {"b.jsonl": LINE % b"b"})
    (folder / "linked").symlink_to(folder.parent / "elsewhere")
    (folder / "loop.jsonl").symlink_to(folder)
    code, _, err = command(arguments_of(folder, folder.parent / "store"))
    assert (code, err) == (0, "note: skipped 2 files with other endings (2 link to a folder)\n")
    records = [("a.jsonl", 1, "a"), ("linked/b.jsonl", 1, "b")]
    check_built(command, [folder, folder / "linked"], folder.parent / "named", records)


def test_an_argument_without_matches_is_reported(command: Run, folder: Path) -> None:
    """Probably a typing error: exit code 2 with the argument, although the others match."""
    (folder / "empty").mkdir()
    for name in ("b.jsonl", "*.parquet", "empty", "x" * 5000, "a.jsonl/b.jsonl"):
        message = {"*.parquet": "no file matches ", "empty": "holds no files "}.get(name, "does not exist")
        message = "File name too long" if len(name) > 1000 else message
        check_refused(command, [folder / "a.jsonl", folder / name], folder.parent / "store", 2, "error: input: ", message)  # fmt: skip
    write_all(folder, {"b.pdf": b"", "c.jsonl.rar": b""})
    parts = ("b.pdf has no known ending", "c.jsonl.rar has no known ending", "--text-endings")
    check_refused(command, [folder / "b.pdf", folder / "c.jsonl.rar"], folder.parent / "store", 2, *parts)


NAMES = [
    "part[1]*?.jsonl",
    "a b\tc.jsonl",
    "x\ny.jsonl",
    "ü\u2028.jsonl",
    "[red].jsonl",
    "-o.jsonl",
    "A.JSONL.GZ.jsonl",
]


def test_unusual_names_are_plain_names(command: Run, tmp_path: Path) -> None:
    """Globs, options, markup or line ends in a name have no meaning."""
    folder = write_all(tmp_path / "in", dict.fromkeys(NAMES, LINE % b"good" + b"bad\n"))
    records = [(name, number, outcome) for name in sorted(NAMES) for number, outcome in ((1, "good"), (2, Bad("not JSON")))]  # fmt: skip
    check_built(command, folder, tmp_path / "store", records)


def test_a_name_that_is_not_utf8_is_reported(command: Run, tmp_path: Path) -> None:
    """Linux allows such names; the message shows the byte escaped as in Python, or replaced."""
    name = os.fsdecode(b"\xff.jsonl")
    folder = write_all(tmp_path / "in", {name: LINE % b"good" + b"bad\n"})
    check_built(command, folder, tmp_path / "store", [(name, 1, "good"), (name, 2, Bad("not JSON"))])
    write_all(folder, {name + ".gz": b""})
    check_refused(run_outside, folder / f"{name}.gz", tmp_path / "none", 1, ".gz is damaged or incomplete")


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A folder that every user may use."""
    with open_folder() as folder:
        yield folder


@pytest.mark.parametrize("locked", ["in/b.jsonl", "in/sub", "in"])
def test_an_unreadable_input_is_reported(command: Run, anybodys: Path, locked: str) -> None:
    """P9: a file, a folder inside, or the folder itself: no store is built from the others."""
    files = {"a.jsonl": LINE % b"a", "b.jsonl": LINE % b"b", "sub/c.jsonl": LINE % b"c"}
    folder = write_all(anybodys / "in", files)
    (anybodys / locked).chmod(0)
    code = 1 if "." in locked else 2
    parts = ("error: input: ", "Permission denied", str(anybodys / locked))
    with unprivileged():
        check_refused(command, folder, anybodys / "store", code, *parts)
        if locked == "in":  # a file in a folder that may not be entered
            check_refused(command, folder / "a.jsonl", anybodys / "store", 2, *parts)


DURING: dict[str, tuple[str, str]] = {  # what happens to b.jsonl when a record of a.jsonl or b.jsonl is read
    "goes before it is read": ("a", "path.unlink()"),
    "goes while it is read": ("b1", "path.unlink()"),
    "grows while it is read": ("b1", "path.write_bytes(path.read_bytes() * 2)"),
    "shrinks while it is read": ("b1", "path.write_bytes(path.read_bytes()[:30])"),
    "is written again while it is read": ("b2", "path.write_bytes(path.read_bytes()); os.utime(path, (1, 1))"),
    "is replaced before it is read": ("a", "path.with_name('new').write_bytes(b''); path.with_name('new').replace(path)"),
}  # fmt: skip


@pytest.mark.parametrize("case", DURING)
def test_an_input_that_changes_during_the_build_fails_it(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """P9: neither its old nor its new documents are used; restored, the same command builds the usual store."""
    texts = {"a.jsonl": ["a"], "b.jsonl": [f"b{i}" for i in range(3000)], "c.jsonl": ["c"]}
    files = {name: b"".join(LINE % text.encode() for text in each) for name, each in texts.items()}
    folder = write_all(tmp_path / "in", files)
    at, action = DURING[case]
    module = f"change_{list(DURING).index(case)}"
    code = f"import os, pathlib\npath = pathlib.Path({str(folder / 'b.jsonl')!r})\nflag = pathlib.Path({str(tmp_path / 'flag')!r})\n"  # fmt: skip
    code += f"def keep(row):\n    if row['text'] == {at!r} and flag.exists():\n        flag.unlink()\n        {action}\n    return True\n"  # fmt: skip
    (tmp_path / f"{module}.py").write_text(code)
    (tmp_path / "flag").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    line = arguments_of(folder, tmp_path / "store", "--filter", f"{module}:keep")
    before = (folder / "b.jsonl").stat()
    code, out, err = command(line)
    assert (code, out, "Traceback" in err, (tmp_path / "store").exists()) == (1, "", False, False), err
    assert re.search(
        rf"error: input: {folder}/b\.jsonl ((changed|became unreadable) during the build|cannot be read)", err
    )
    assert not (tmp_path / "flag").exists()
    write_all(folder, files)
    os.utime(folder / "b.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    records = [(name, number, text) for name, each in texts.items() for number, text in enumerate(each, 1)]
    check_built(command, folder, tmp_path / "store", records, "--filter", f"{module}:keep")
    assert command(arguments_of(folder, tmp_path / "fresh", "--filter", f"{module}:keep"))[0] == 0
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("output", ["closed/s", "closed/a/s", "x" * 300, "x" * 300 + "/s"])
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["build", "dry run"])
def test_an_inaccessible_output_is_reported(command: Run, anybodys: Path, output: str, dry_run: tuple) -> None:
    """A closed folder or a name that is too long: exit code 2 with the name, before anything is written."""
    file = write_all(anybodys / "in", {"a.jsonl": LINE % b"a"}) / "a.jsonl"
    (anybodys / "closed").mkdir(0o700)
    with unprivileged():
        code, out, err = command(arguments_of(file, anybodys / output, *dry_run))
    found = "Permission denied" if "closed" in output else "File name too long"
    assert (code, out, "Traceback" in err) == (2, "", False), err
    assert re.search(rf"error: output: \S+ cannot be examined \({found}\)", err)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ("append", "closed/s", "a.jsonl"),
            r"append: .*/closed/s cannot be read \(Permission denied\); check the path",
        ),
        (
            ("report", "closed/s"),
            "report: cannot read closed/s: Permission denied; give a store's folder or a plan file",
        ),
        (("report", "x" * 300), "report: cannot read x+: File name too long; give a store's folder or a plan file"),
    ],
    ids=["append", "report", "report, a name too long"],
)
def test_an_inaccessible_store_is_reported(
    anybodys: Path, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...], message: str
) -> None:
    """Neither as a failing disk nor as a traceback."""
    monkeypatch.chdir(anybodys)
    (anybodys / "closed").mkdir(0o700)
    with unprivileged():
        done = run_here(*line)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), done.stderr
    assert re.search(f"error: {message}", done.stderr)
