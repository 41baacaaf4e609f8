"""A mapped file that is cut while a run reads it: an error that names it; every other SIGBUS does what it always does."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.foreign.adopting import adopt
from tests.support.foreign.files import EOS, llmc
from tests.support.processes.command_lines import ROOT, WAIT_SECONDS
from tests.support.stores.masked import random_masked, write_masked
from tokenstore import Plan
from tokenstore.batches.sampler import Sampler
from tokenstore.batches.tables import Tables
from tokenstore.errors import CorruptionError

STEPS = 30


class NeverDue:
    """Files are not looked at: the cut is met by a kernel."""

    def is_due(self) -> bool:
        return False


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with files of all kinds, of several pages each. No test changes it."""
    documents = random_masked(1, [1 + number % 40 for number in range(9000)])
    folder = tmp_path_factory.mktemp("cut")
    return write_masked(folder / "s", documents, shard_bytes=200_000, length_index=True, at_once=1000)


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    """A copy of it, whose files can be written."""
    path = shutil.copytree(sound, tmp_path / "s")
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def running(path: Path, packing: str = "best_fit") -> tuple[Plan, Sampler]:
    """A plan, and one of its samplers that has mapped its files and will not look at them again."""
    plan = Plan.of(path, 64, 64, packing=packing, num_steps=STEPS)
    sampler = plan.sampler()
    for step in range(STEPS):
        rows(sampler, step)
    sampler._tables.pace = NeverDue()
    return plan, sampler


def rows(sampler: Sampler, step: int) -> list[list[int]]:
    ids, targets = np.empty((2, 64, 64), np.int64)
    sampler.fill(sampler.locate(step, 0, 64), ids, targets)
    return ids.tolist() + targets.tolist()


@pytest.mark.parametrize(
    ("packing", "stem"),
    [
        *[("best_fit", stem) for stem in ("tokens-00001", "boundaries", "length_index", "mask-00000")],
        *[("concat", stem) for stem in ("tokens-00000", "boundaries")],
    ],
)
@pytest.mark.filterwarnings("ignore:.*epochs")
def test_a_kernel_that_reads_after_a_cut_is_an_error(path: Path, packing: str, stem: str) -> None:
    """P9: the process lives, the batch is not given, the file is named; whole again, it is read again."""
    plan, sampler = running(path, packing)
    file = path / f"{stem}.bin"
    data, expected = file.read_bytes(), [plan.batch(step) for step in range(STEPS)]
    os.truncate(file, 0)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=rf"file size: expected {len(data)} bytes, found 0 \(.*{file.name}\)"):
            [rows(sampler, step) for step in range(STEPS)]
    file.write_bytes(data)
    for step, batch in enumerate(expected):
        assert rows(sampler, step) == batch["input_ids"].tolist() + batch["targets"].tolist()


@pytest.mark.filterwarnings("ignore:.*epochs")
def test_the_first_page_of_a_file_with_a_header_is_guarded_too(tmp_path: Path) -> None:
    """FMT-14: the tokens of an adopted file begin inside of its first page."""
    made = llmc(tmp_path / "x.bin", [[EOS, *range(1, 40)]] * 20)
    plan, sampler = running(adopt(tmp_path / "s", made).path)
    assert plan.num_steps == STEPS
    os.truncate(made, 0)
    with pytest.raises(CorruptionError, match="file size: expected 2624 bytes, found 0"):
        rows(sampler, 0)


def test_a_file_that_is_whole_again_before_anybody_asks_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that read zeros is made again, from new maps."""
    _, sampler = running(path)
    expected = rows(sampler, 3)
    data = (path / "boundaries.bin").read_bytes()
    refuse, restored = Tables.refuse_cut_file, []

    def restore(tables: Tables, address: int, clock: int) -> None:
        restored.append((path / "boundaries.bin").write_bytes(data))
        refuse(tables, address, clock)

    monkeypatch.setattr(Tables, "refuse_cut_file", restore)
    os.truncate(path / "boundaries.bin", 0)
    assert rows(sampler, 3) == expected
    assert len(restored) == 1


def test_threads_meet_a_cut_each_for_itself(path: Path) -> None:
    """Every sampler has maps and notes of its own."""
    samplers = [running(path)[1] for _ in range(4)]
    errors: list[str] = []

    def run(sampler: Sampler) -> None:
        try:
            for step in range(STEPS):
                rows(sampler, step)
        except CorruptionError as error:
            errors.append(str(error))

    os.truncate(path / "boundaries.bin", 0)
    threads = [threading.Thread(target=run, args=[sampler]) for sampler in samplers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4
    assert all("boundaries.bin" in error for error in errors)


START = """
import faulthandler, mmap, os, signal, sys
from pathlib import Path
from tokenstore import Plan, open_store

def cut(name):
    os.truncate(path / name, 0)

class NeverDue:
    is_due = staticmethod(lambda: False)

path = Path(sys.argv[1])
{before}
plan = Plan.of(path, 64, 64, num_steps=10)
sampler = plan._sampler
[plan.batch(step) for step in range(10)]
"""
OWN_MAP = "file = open(path / 'tokens-00000.bin', 'rb'); own = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
GO_ON = "sampler._tables.pace = NeverDue(); cut('boundaries.bin')\ntry: [plan.batch(s) for s in range(10)]\nexcept Exception as e: print(e)"
HANDLER = "signal.signal(signal.SIGBUS, lambda *_: print('handled', flush=True))"
LOOK = "sampler._tables.pace._next = 0.0; plan.batch(0)\n"
ELSEWHERE: dict[str, tuple[str, str, int, Callable[[str, str], bool]]] = {
    "a map of the user": ("", OWN_MAP + "cut('tokens-00000.bin'); own[70000]", -7, lambda out, err: not out + err),
    "an array of a store": (
        "",
        "document = open_store(path)[5000]; plan.batch(1); cut('tokens-00000.bin'); cut('tokens-00001.bin'); print(document.sum())",
        -7,
        lambda out, err: not out + err,
    ),
    "faulthandler before": (
        "faulthandler.enable()",
        OWN_MAP + "cut('tokens-00000.bin'); own[70000]",
        -7,
        lambda out, err: "Fatal Python error: Bus error" in err,
    ),
    "faulthandler after": (
        "",
        "faulthandler.enable()\n" + LOOK + OWN_MAP + "cut('tokens-00000.bin'); own[70000]",
        -7,
        lambda out, err: "Fatal Python error: Bus error" in err,
    ),
    "a signal that was sent": (
        HANDLER,
        "os.kill(os.getpid(), signal.SIGBUS)\n" + LOOK + "os.kill(os.getpid(), signal.SIGBUS)\n" + LOOK + GO_ON,
        0,
        lambda out, err: out.startswith("handled\nhandled\nfile size: expected"),
    ),
    "a handler installed later": (
        "",
        HANDLER + "\n" + LOOK + GO_ON,
        0,
        lambda out, err: out.startswith("file size: expected"),
    ),
    "a forked process": (
        "",
        "child = os.fork()\nif child == 0:\n    plan.batch(0); sampler = plan._sampler; sampler._tables.pace = NeverDue(); cut('boundaries.bin')\n"
        "    try: [plan.batch(s) for s in range(10)]\n    except Exception as e: print(e, flush=True); os._exit(5)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        5,
        lambda out, err: out.startswith("file size: expected"),
    ),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_every_other_bus_error_is_what_it_was(path: Path, case: str) -> None:
    """Never zeros in the hands of the user: a crash, a handler of somebody else, before or after ours."""
    before, then, code, fits = ELSEWHERE[case]
    command = [sys.executable, "-W", "ignore", "-c", START.replace("{before}", before) + then, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert (done.returncode, fits(done.stdout, done.stderr)) == (code, True), (done.stdout, done.stderr)
