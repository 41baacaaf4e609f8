"""Builds of odd inputs with the real command, checked to the last record: documents, counts, exit code, a second run."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import tokenstore
from tests.support.stores.building import contents
from tokenstore.commands.app import app, run
from tokenstore.store.work import Work

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Bad:
    """A rejected record, with the beginning of its reason."""

    reason: str


EMPTY = None  # what a record without text is
Outcome = str | Bad | None
Record = tuple[str, int, Outcome]  # file, number, what it is: its text, Bad or EMPTY
Run = Callable[[Sequence[object]], tuple[int, str, str]]  # arguments of a build -> exit code, standard output and error


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command in this process."""
    handler = signal.getsignal(signal.SIGTERM)

    def run_here(arguments: Sequence[object]) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(app, ["build", *map(str, arguments)])
        return code, *capfd.readouterr()

    yield run_here
    signal.signal(signal.SIGTERM, handler)


def run_outside(arguments: Sequence[object]) -> tuple[int, str, str]:
    """Run the command as users do in a clone; a warning is an error."""
    line = [sys.executable, "-m", "tools.build_store", *map(str, arguments)]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def write_all(folder: Path, files: Mapping[str, bytes | Callable[[Path], object]]) -> Path:
    """Write files of given bytes, or make them by a function of their path."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)
    return folder


def arguments_of(source: object, output: Path, *options: object) -> list[object]:
    """A build of `source` with one worker, and the bytes tokenizer by default."""
    tokenizer = [] if "--tokenizer" in options else ["--tokenizer", "bytes"]
    sources = source if isinstance(source, (list, tuple)) else [source]
    return [*sources, "--output", output, "--workers", 1, *tokenizer, *options]


def check_built(run: Run, source: object, output: Path, records: Sequence[Record], *options: object) -> None:
    """A build of `source` holds exactly `records`, in order, and says so; one bad record more than allowed is no store.

    The same command again changes nothing.
    """
    bad = [each for each in records if isinstance(each[2], Bad)]
    line = [*arguments_of(source, output, *options), "--json", "--max-bad", len(bad)]
    code, out, err = run(line)
    assert (code, "Traceback" in err) == (0, False), err
    _check_store(output, records, json.loads(out))
    rejects = _rejects(output)
    assert [(file, number) for file, number, _ in rejects] == [(file, number) for file, number, _ in bad]
    wrong = [(found, reason) for (*_, found), (*_, (reason)) in zip(rejects, bad, strict=True) if not found.startswith(reason.reason)]  # fmt: skip
    assert wrong == []
    before = contents(output)
    again, said, _ = run(line)
    assert (again, json.loads(said)["was_there"]) == (0, True)
    assert (contents(output), _rejects(output)) == (before, rejects)
    if bad:
        other = output.with_name(f"{output.name}_fewer")
        code, out, err = run([*arguments_of(source, other, *options), "--max-bad", len(bad) - 1])
        assert (code, out, "Traceback" in err, other.exists()) == (3, "", False, False)
        assert _rejects(other) == rejects


def check_refused(run: Run, source: object, output: Path, exit_code: int, *parts: str, options: Sequence[object] = ()) -> None:  # fmt: skip
    """A build of `source` ends with `exit_code`, names all `parts`, leaves no store; repeated, too."""
    line = arguments_of(source, output, *options)
    code, out, err = run(line)
    assert (code, out, "Traceback" in err) == (exit_code, "", False), err
    assert [part for part in parts if part not in err] == [], err
    assert not output.exists()
    again, _, said = run(line)
    assert (again, said.splitlines()[-1:]) == (code, err.splitlines()[-1:])  # before it, what is resumed from


def _check_store(output: Path, records: Sequence[Record], reported: dict) -> None:
    good = [each for each in records if isinstance(each[2], str)]
    with tokenstore.open_store(output) as store:
        origins = [store.origin(i) for i in range(len(store))]
        found = [(origin.file, origin.record, ids[:-1].astype("u1").tobytes().decode()) for origin, ids in zip(origins, store, strict=True)]  # fmt: skip
        rows = [json.loads(line) for line in store.file("inputs.jsonl").read_bytes().splitlines()]
    assert [each[:2] for each in found] == [each[:2] for each in good]
    assert [i for i, (one, other) in enumerate(zip(found, good, strict=True)) if one != other] == []
    assert tokenstore.verify(output) == []
    expected = Counter((file, _kind(outcome)) for file, _, outcome in records)
    counted = {(row["file"], kind): row[kind] for row in rows for kind in ("documents", "empty", "bad")}
    assert {key: number for key, number in counted.items() if number} == expected
    assert [row[kind] for row in rows for kind in ("filtered", "short", "long", "duplicates") if row[kind]] == []
    totals = Counter(kind for _, kind in expected.elements())
    assert {kind: number for kind, number in reported["counts"].items() if number} == {
        **totals,
        "input files": len(rows),
    }
    assert reported["num_documents"] == len(good)


def _kind(outcome: Outcome) -> str:
    return "documents" if isinstance(outcome, str) else "bad" if isinstance(outcome, Bad) else "empty"


def _rejects(output: Path) -> list[tuple[str, int, str]]:
    """(file, record, reason) of the bad records listed next to a store."""
    path = Work(output).rejects()
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [(row["file"], row["record"], row["reason"]) for row in rows]
