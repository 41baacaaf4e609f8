"""Damaged and forged order files (P9, FMT-9): what is read is the document's own, or an error names the file; never a crash.

Each damage meets plans that were open before it and plans opened after it; what a plan gives is compared with the documents
themselves. `verify` finds every damage, also under checksums that fit. The sweeps run twice: here, and in a process of their own.
"""

import contextlib
import errno
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.forge import flip, forge, overwrite, replace
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.store import open_store, verify

ROOT = Path(__file__).parents[2]
LENGTH, STEPS = 8, 9
pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit

DOCUMENTS = random_documents(1, 25, 20)
VARIANTS = (
    {"packing": "best_fit"},
    {"packing": "best_fit", "shuffle": False},
    {"packing": "none"},
    {"packing": "best_fit", "repeat": "0.5"},
    {"packing": "best_fit", "repeat": "2.5"},
)


def make_store(folder: Path, documents: list[list[int]] = DOCUMENTS) -> Path:
    return write_store(folder / "s", documents, shard_bytes=100, order=True)


def plan_of(path: Path, variant: dict) -> Plan:
    fields = {"sequence_length": LENGTH, "global_batch_size": 4, "num_steps": STEPS, **variant}
    repeat = fields.pop("repeat", None)
    sources = {"s": {"path": str(path)}}
    if repeat:
        sources["p"] = {"pool": {"s": repeat}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs, on purpose
        return Plan(PlanConfig(**fields, sources=sources))


def tells(error: CorruptionError, name: str) -> None:
    """A message says what was expected, what was found, in which file, and what to run."""
    assert re.search(
        rf"expected .*, found .*\(.*{name}(, or boundaries.bin beside it)?\); (run `tokenstore verify|copy or build)",
        str(error),
    ), error
    assert len(str(error)) < 1000


@contextlib.contextmanager
def told(name: str = "order.bin") -> Iterator[None]:
    """Allow a CorruptionError, if it says what it must."""
    try:
        yield
    except CorruptionError as error:
        tells(error, name)


def check_plan(plan: Plan, documents: list[list[int]]) -> None:
    """Every step is the tokens of the documents it says, or an error that names the file."""
    for step in range(STEPS):
        with told():
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
    with told():
        list(plan.find("s", 0, steps=(0, STEPS)))


def sweep(path: Path, contents: Iterable[bytes], documents: list[list[int]] = DOCUMENTS) -> int:
    """Damage the order file in place in many ways; ask for all there is. Returns how many ways."""
    sound = (path / "order.bin").read_bytes()
    open_plans = [plan_of(path, variant) for variant in VARIANTS]
    number = 0
    for number, content in enumerate(contents, 1):
        assert len(content) == len(sound)
        overwrite(path / "order.bin", content)
        findings = verify(path)
        assert content == sound or {finding.file for finding in findings} == {"order.bin"}
        check_plan(open_plans[number % len(VARIANTS)], documents)
        with told():
            check_plan(plan_of(path, VARIANTS[number // 2 % len(VARIANTS)]), documents)
    overwrite(path / "order.bin", sound)
    assert verify(path) == []
    return number


def parts(path: Path, num_documents: int = len(DOCUMENTS)) -> tuple[np.ndarray, np.ndarray]:
    """(numbers, runs) of the sound file."""
    data = (path / "order.bin").read_bytes()
    at = -(-4 * num_documents // 8) * 8
    return np.frombuffer(data[: 4 * num_documents], "<u4").copy(), np.frombuffer(data[at:], "<i8").reshape(-1, 2).copy()


def joined(numbers: np.ndarray, runs: np.ndarray) -> bytes:
    data = numbers.astype("<u4").tobytes()
    return data + bytes(-len(data) % 8) + runs.astype("<i8").tobytes()


def flips(path: Path) -> Iterator[bytes]:
    """The file with one bit turned over: in every byte two at random."""
    sound = (path / "order.bin").read_bytes()
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


@pytest.mark.parametrize("what", SWEEPS)
def test_a_damaged_order_is_found_and_never_followed(what: str, tmp_path: Path) -> None:
    """P9: verify names the file; what plans give is right, or an error names the file and what to run."""
    path = make_store(tmp_path)
    assert sweep(path, SWEEPS[what](path)) > 100


def test_no_damage_crashes_the_process(tmp_path: Path) -> None:
    """P9: all sweeps in a process of their own end with return code 0: no segmentation fault, no abort, no hang."""
    code = "import sys, pathlib; from tests.hostile import test_hostile_order as t; print(t.sweep_all(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 500


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_flipped_bit_is_found_and_never_followed(tmp_path: Path) -> None:
    """P9: all bits of order.bin, one by one."""
    path = make_store(tmp_path)
    sound = (path / "order.bin").read_bytes()
    assert sweep(path, (flip(sound, bit) for bit in range(8 * len(sound)))) == 8 * len(sound)


# ---- checksums that fit


def put(path: Path, content: bytes) -> None:
    """Another order file, with its size and checksum in the manifest."""
    replace(path / "order.bin", content)
    entry = {"num_bytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
    forge(path, lambda body: body["files"]["order.bin"].update(entry))


def check_forged(path: Path, documents: list[list[int]]) -> None:
    """It is found by verify, and every plan is right or told; reading through a loader as well."""
    assert {finding.file for finding in verify(path)} == {"order.bin"}
    for variant in VARIANTS:
        with told():
            plan = plan_of(path, variant)
            check_plan(plan, documents)
            list(TokenLoader(plan, fields=("input_ids", "position_ids", "document_ids", "cu_seqlens")))


FORGERIES: dict[str, Callable[[np.ndarray, np.ndarray], bytes]] = {
    "a number out of range": lambda numbers, runs: joined(np.append(numbers[:-1], len(numbers)), runs),
    "a number twice": lambda numbers, runs: joined(np.append(numbers[:-1], numbers[-2]), runs),
    "two lengths changed places": lambda numbers, runs: joined(
        np.concatenate([numbers[-1:], numbers[1:-1], numbers[:1]]), runs
    ),
    "equal lengths in another order": lambda numbers, runs: joined(
        np.concatenate([numbers[run] for run in (part[::-1] for part in np.split(np.arange(25), runs[1:, 1]))]), runs
    ),
    "numbers as stored": lambda numbers, runs: joined(np.arange(25), runs),
    "a run less": lambda numbers, runs: joined(numbers, runs[:-1]),
    "a run more": lambda numbers, runs: joined(numbers, np.append(runs, [[10**6, 24]], axis=0)),
    "a run twice": lambda numbers, runs: joined(numbers, np.append(runs, runs[-1:], axis=0)),
    "one run": lambda numbers, runs: joined(numbers, runs[:1]),
    "runs one token longer": lambda numbers, runs: joined(numbers, runs + np.array([1, 0])),
}


@pytest.mark.parametrize("edit", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_order_is_found_and_never_followed(tmp_path: Path, edit: Callable[..., bytes]) -> None:
    """P9, FMT-9: size and checksum fit, and the content does not."""
    path = make_store(tmp_path)
    put(path, edit(*parts(path)))
    check_forged(path, DOCUMENTS)


@pytest.mark.parametrize("repeat", ["0.5", "2.5"])
def test_a_document_one_window_too_long_for_its_rank_is_told(tmp_path: Path, repeat: str) -> None:
    """P9: under a fractional factor a rank may hold a shorter document than it has room for, never a longer one."""
    path = make_store(tmp_path, [[1] * 8, [2] * 16, [3] * 8, [4] * 16])
    put(path, joined(np.array([0, 1, 2, 3]), np.array([[8, 0], [16, 2]])))
    plan = plan_of(path, {"packing": "none", "shuffle": False, "repeat": repeat})
    with pytest.raises(CorruptionError, match=r"found document 1 of 16 tokens among others") as error:
        _ = [plan.documents(step) for step in range(STEPS)]
    tells(error.value, "order.bin")


@pytest.mark.parametrize("what", ["two lengths changed places", "equal lengths in another order", "numbers as stored"])
def test_find_in_a_forged_order_is_right_or_told(tmp_path: Path, what: str) -> None:
    """P9: an occurrence is one that plan.documents shows, or an error names the file."""
    path = make_store(tmp_path)
    put(path, FORGERIES[what](*parts(path)))
    plan = plan_of(path, {"packing": "none", "shuffle": False, "num_steps": 60})
    for document, tokens in enumerate(DOCUMENTS):
        with told():
            found = list(plan.find("s", document, epoch=0))
            assert sum(o.stop - o.start for o in found) == len(tokens)
            for _, step, row, start, stop in found:
                assert ("s", document, start, stop) in plan.documents(step)[row]


def test_find_of_a_document_longer_than_every_run_is_told(tmp_path: Path) -> None:
    """P9: runs of the right sum, and not of the documents' lengths."""
    path = make_store(tmp_path, [[1] * 4, [2] * 12, [3] * 2])
    put(path, joined(np.array([2, 0, 1]), np.array([[2, 0], [5, 1], [11, 2]])))
    plan = plan_of(path, {"packing": "none"})
    for document in range(3):
        with told():
            assert list(plan.find("s", document, epoch=0))


@settings(max_examples=60)
@given(data=st.data())
def test_an_order_of_any_integers_is_never_followed(data: st.DataObject) -> None:
    """P9: hypothesis looks for numbers and runs that a plan would follow out of the file, or choke on."""
    documents = [[1, 2, 3], [4], [5] * 10, [6, 7], [8] * 3, [9, 9]]
    sound = np.array([[1, 0], [2, 1], [3, 3], [10, 5]])
    small, any64 = st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1)
    numbers = data.draw(st.one_of(st.just([1, 3, 5, 0, 4, 2]), st.lists(st.integers(0, 8), min_size=6, max_size=6)))
    pairs = st.lists(st.tuples(st.one_of(small, any64), st.one_of(small, any64)), min_size=1, max_size=6)
    runs = data.draw(st.one_of(st.just(sound), pairs.map(np.array)))
    content = joined(np.array(numbers), runs)
    with tempfile.TemporaryDirectory() as folder:
        path = make_store(Path(folder), documents)
        if content != (path / "order.bin").read_bytes():
            put(path, content)
            check_forged(path, documents)


@pytest.mark.parametrize("packing", ["best_fit", "none"])
@pytest.mark.parametrize("length", [1, 2, 64])
def test_lengths_whose_sums_wrap_are_no_runs(tmp_path: Path, packing: str, length: int) -> None:
    """P9, FMT-9: lengths that rise, and add up to the tokens, only modulo 2**64: refused as what they are."""
    documents = [[1]] * 1001 + [[1, 2, 3]]
    path = make_store(tmp_path, documents)
    put(path, joined(np.arange(1002), np.array([[2**63 - 1, 0], [-(2**63) + 5, 1], [1, 2]])))
    assert {finding.file for finding in verify(path)} == {"order.bin"}
    with pytest.raises(CorruptionError, match=r"runs: expected rising lengths .*order\.bin"):
        plan_of(path, {"packing": packing, "sequence_length": length})


def test_a_forged_order_is_found_beside_other_damage(tmp_path: Path) -> None:
    """P9: verify lists all findings and stops at none."""
    path = make_store(tmp_path)
    put(path, FORGERIES["a number out of range"](*parts(path)))
    replace(path / "inputs.jsonl", b"x")
    assert {finding.file for finding in verify(path)} == {"inputs.jsonl", "order.bin"}


# ---- sizes, and what is no file


@pytest.mark.parametrize(
    "more", [-16, -8, -1, 1, 8, 16, 10**9, 2**62, 2**70, -(2**70), "none", "all", "numbers", "null"]
)
def test_a_wrong_size_in_the_manifest_is_refused(tmp_path: Path, more: int | str) -> None:
    """P9, FMT-9: neither a size that no order file has nor one that the file has not is believed."""
    path = make_store(tmp_path)
    sound = (path / "order.bin").stat().st_size
    size = (
        {"none": 0, "all": 104 + 26 * 16, "numbers": 104, "null": None}[more] if isinstance(more, str) else sound + more
    )
    forge(path, lambda body: body["files"]["order.bin"].update(num_bytes=size))
    for check in ("sizes", "lazy"):
        with pytest.raises(CorruptionError) as error:
            open_store(path, check=check).runs()
        assert "order.bin" in str(error.value)
    with pytest.raises(CorruptionError):
        plan_of(path, {"packing": "best_fit"})
    assert any("order.bin" in str(finding) for finding in verify(path))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """P9: every shorter length, and a longer one, is seen at open; opened lazily, before a byte of it is used."""
    path = make_store(tmp_path)
    sound = (path / "order.bin").read_bytes()
    for content in (*(sound[:size] for size in range(0, len(sound), 7)), sound[:-1], sound + b"\0", sound * 2):
        replace(path / "order.bin", content)
        for ask in (lambda: open_store(path), lambda: open_store(path, check="lazy").order()):
            with pytest.raises(
                CorruptionError, match=rf"file size: expected {len(sound)} bytes, found {len(content)} "
            ):
                ask()
        assert [finding.file for finding in verify(path)] == ["order.bin"]


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "link to dev zero": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    """P9: in the place of the order; `concat`, which needs none, is refused with it, and reads on where it was open."""
    path = make_store(tmp_path)
    concat = plan_of(path, {"packing": "concat"})
    (path / "order.bin").unlink()
    KINDS[kind](path / "order.bin")
    for ask in (lambda: open_store(path), lambda: open_store(path, check="lazy").runs()):
        with pytest.raises(TokenStoreError, match=r"order\.bin"):
            ask()
    assert [finding.file for finding in verify(path)] == ["order.bin"]
    assert concat.batch(0)["input_ids"].shape == (4, LENGTH)


def test_a_disk_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an input/output error when the order is mapped is a TokenStoreError that names the file."""
    path = make_store(tmp_path)
    store = open_store(path)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(TokenStoreError, match=r"Input/output error .*order\.bin"):
        store.runs()
