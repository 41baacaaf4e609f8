"""Damage to length indexes (P9, FMT-9): what a plan gives is compared with the documents themselves, or there is an error.

Each damage meets plans that were open before it and plans opened after it.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from tests.conftest import random_documents, write_store
from tests.support.stores.forge import flip, overwrite, unpinned
from tokenstore import Plan, PlanConfig
from tokenstore.errors import CorruptionError
from tokenstore.store import verify

LENGTH, STEPS = 8, 9
DOCUMENTS = random_documents(1, 25, 20)
VARIANTS = (
    {"packing": "best_fit"},
    {"packing": "best_fit", "shuffle": False},
    {"packing": "none"},
    {"packing": "best_fit", "repeat": "0.5"},
    {"packing": "best_fit", "repeat": "2.5"},
)


def make_store(folder: Path, documents: list[list[int]] = DOCUMENTS) -> Path:
    return write_store(folder / "s", documents, shard_bytes=100, length_index=True)


def plan_of(path: Path, variant: dict) -> Plan:
    fields = {"sequence_length": LENGTH, "global_batch_size": 4, "num_steps": STEPS, **variant}
    repeat = fields.pop("repeat", None)
    sources = {"s": {"path": str(path)}}
    if repeat:
        sources["p"] = {"pool": {"s": repeat}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs, on purpose
        return Plan(PlanConfig(**fields, sources=sources))


def check_message(error: CorruptionError, name: str) -> None:
    """A message says what is wrong, in which file, and what to run."""
    assert re.search(
        rf"(expected .*, found .*|does not list .*)\(.*{name}(, or boundaries.bin next to it)?\); (run `tokenstore verify|copy or build)",
        str(error),
    ), error
    assert len(str(error)) < 1000


@contextlib.contextmanager
def reported(name: str = "length_index.bin") -> Iterator[None]:
    """Allow a CorruptionError, if it says what it must."""
    try:
        yield
    except CorruptionError as error:
        check_message(error, name)


def check_plan(plan: Plan, documents: list[list[int]]) -> None:
    """Every step is the tokens of the documents it says, or an error that names the file."""
    for step in range(STEPS):
        with reported():
            rows = plan.documents(step)
            batch = plan.batch(step)
            for pieces, ids, targets in zip(rows, batch["input_ids"], batch["targets"], strict=True):
                expected, after = [], []
                for piece in pieces:
                    assert 0 <= piece.document < len(documents)
                    document = documents[piece.document]
                    assert 0 <= piece.start < piece.stop <= len(document)
                    expected += document[piece.start : piece.stop]
                    after += [*document[piece.start + 1 : piece.stop + 1], -100][: piece.stop - piece.start]
                assert ids.tolist() == expected + [0] * (LENGTH - len(expected))
                assert targets.tolist() == after + [-100] * (LENGTH - len(after))
    with reported():
        list(plan.find("s", 0, steps=(0, STEPS)))


def sweep(path: Path, contents: Iterable[bytes], documents: list[list[int]] = DOCUMENTS) -> int:
    """Damage the length index in place in many ways; ask for all there is. Returns how many ways."""
    sound = (path / "length_index.bin").read_bytes()
    open_plans = [unpinned(plan_of(path, variant)) for variant in VARIANTS]
    number = 0
    for number, content in enumerate(contents, 1):
        assert len(content) == len(sound)
        overwrite(path / "length_index.bin", content)
        findings = verify(path)
        assert content == sound or {finding.file for finding in findings} == {"length_index.bin"}
        check_plan(open_plans[number % len(VARIANTS)], documents)
        with reported():
            check_plan(plan_of(path, VARIANTS[number // 2 % len(VARIANTS)]), documents)
    overwrite(path / "length_index.bin", sound)
    assert verify(path) == []
    return number


def parts(path: Path, num_documents: int = len(DOCUMENTS)) -> tuple[np.ndarray, np.ndarray]:
    """(numbers, runs) of the sound file."""
    data = (path / "length_index.bin").read_bytes()
    at = -(-4 * num_documents // 8) * 8
    return np.frombuffer(data[: 4 * num_documents], "<u4").copy(), np.frombuffer(data[at:], "<i8").reshape(-1, 2).copy()


def joined(numbers: np.ndarray, runs: np.ndarray) -> bytes:
    data = numbers.astype("<u4").tobytes()
    return data + bytes(-len(data) % 8) + runs.astype("<i8").tobytes()


def flips(path: Path) -> Iterator[bytes]:
    """The file with one bit turned over: in every byte two at random."""
    sound = (path / "length_index.bin").read_bytes()
    rng = np.random.default_rng(3)
    for byte in range(len(sound)):
        for bit in rng.choice(8, 2, replace=False).tolist():
            yield flip(sound, 8 * byte + bit)


def hostile_numbers(path: Path) -> Iterator[bytes]:
    """Every number out of range, another document's, or the whole list shuffled, reversed, all the same."""
    sound, runs = parts(path)
    size = len(sound)
    for place in range(size):
        for value in (size, size + 1, 2**31, 2**32 - 1, int(sound[place - 1]), int(sound[-1 - place])):
            numbers = sound.copy()
            numbers[place] = value
            if (numbers != sound).any():
                yield joined(numbers, runs)
    rng = np.random.default_rng(4)
    for numbers in (
        sound[::-1],
        np.roll(sound, 1),
        np.zeros_like(sound),
        np.full_like(sound, size - 1),
        sound.byteswap(),
    ):
        yield joined(numbers, runs)
    for _ in range(10):
        yield joined(rng.permutation(sound), runs)


def hostile_runs(path: Path) -> Iterator[bytes]:
    """Every length and every place of a run wrong: by one, by a lot, negative, so that the sums still fit."""
    numbers, sound = parts(path)
    for run in range(len(sound)):
        for column in (0, 1):
            for value in (0, -1, int(sound[run, column]) + 1, 2**31, 2**62, 2**63 - 1, -(2**63)):
                runs = sound.copy()
                runs[run, column] = value
                if (runs != sound).any():
                    yield joined(numbers, runs)
    rng = np.random.default_rng(5)
    counts = np.diff(sound[:, 1], append=len(numbers))
    for _ in range(30):  # lengths that rise and have the right sum, and are not those of the documents
        one, other = sorted(rng.choice(len(sound), 2, replace=False))
        runs = sound.copy()
        runs[one, 0] -= counts[other]
        runs[other, 0] += counts[one]
        yield joined(numbers, runs)
    for runs in (sound[::-1], np.zeros_like(sound), np.roll(sound, 1, axis=0), sound[:, ::-1], sound.byteswap()):
        yield joined(numbers, runs)


SWEEPS: dict[str, Callable[[Path], Iterator[bytes]]] = {
    "flips": flips,
    "numbers": hostile_numbers,
    "runs": hostile_runs,
}


def sweep_all(folder: Path) -> int:
    """Every sweep."""
    return sum(sweep(path, SWEEPS[what](path)) for what in SWEEPS for path in [make_store(folder / what)])
