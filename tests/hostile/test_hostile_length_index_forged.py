"""Forged length indexes (P9, FMT-9) with matching size and checksum: `verify` finds them; plans are right or raise
an error.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.forge import forge, replace
from tests.support.stores.length_index_damage import (
    DOCUMENTS,
    STEPS,
    VARIANTS,
    check_message,
    check_plan,
    joined,
    make_store,
    parts,
    plan_of,
    reported,
)
from tokenstore import TokenLoader
from tokenstore.errors import CorruptionError
from tokenstore.store import verify

pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit


def put(path: Path, content: bytes) -> None:
    """Replace the length index, with its size and checksum in the manifest."""
    replace(path / "length_index.bin", content)
    entry = {"num_bytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
    forge(path, lambda body: body["files"]["length_index.bin"].update(entry))


def check_forged(path: Path, documents: list[list[int]]) -> None:
    """Verify finds it, and every plan and loader is right or raises an error."""
    assert {finding.file for finding in verify(path)} == {"length_index.bin"}
    for variant in VARIANTS:
        with reported():
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
def test_a_forged_length_index_is_found_and_never_followed(tmp_path: Path, edit: Callable[..., bytes]) -> None:
    """P9, FMT-9: size and checksum match, the contents are wrong."""
    path = make_store(tmp_path)
    put(path, edit(*parts(path)))
    check_forged(path, DOCUMENTS)


@pytest.mark.parametrize("repeat", ["0.5", "2.5"])
def test_a_document_too_long_for_its_rank_is_an_error(tmp_path: Path, repeat: str) -> None:
    """P9: with a fractional factor a rank may hold a shorter document than it has room for, never a longer one."""
    path = make_store(tmp_path, [[1] * 8, [2] * 16, [3] * 8, [4] * 16])
    put(path, joined(np.array([0, 1, 2, 3]), np.array([[8, 0], [16, 2]])))
    plan = plan_of(path, {"packing": "none", "shuffle": False, "repeat": repeat})
    with pytest.raises(CorruptionError, match=r"found document 1 of 16 tokens in between") as error:
        _ = [plan.documents(step) for step in range(STEPS)]
    check_message(error.value, "length_index.bin")


@pytest.mark.parametrize("what", ["two lengths changed places", "equal lengths in another order", "numbers as stored"])
def test_find_in_a_forged_length_index_is_right_or_an_error(tmp_path: Path, what: str) -> None:
    """P9: each occurrence is one that plan.documents shows, or an error names the file."""
    path = make_store(tmp_path)
    put(path, FORGERIES[what](*parts(path)))
    plan = plan_of(path, {"packing": "none", "shuffle": False, "num_steps": 60})
    for document, tokens in enumerate(DOCUMENTS):
        with reported():
            found = list(plan.find("s", document, epoch=0))
            assert sum(o.stop - o.start for o in found) == len(tokens)
            for _, step, row, start, stop in found:
                assert ("s", document, start, stop) in plan.documents(step)[row]


def test_find_of_a_document_longer_than_every_run_is_an_error(tmp_path: Path) -> None:
    """P9: the runs have the right sum, but not the lengths of the documents."""
    path = make_store(tmp_path, [[1] * 4, [2] * 12, [3] * 2])
    put(path, joined(np.array([2, 0, 1]), np.array([[2, 0], [5, 1], [11, 2]])))
    plan = plan_of(path, {"packing": "none"})
    for document in range(3):
        with reported():
            assert list(plan.find("s", document, epoch=0))


@given(data=st.data())
def test_a_length_index_of_any_integers_is_never_followed(data: st.DataObject) -> None:
    """P9: hypothesis searches for numbers and runs that make a plan read outside the file or hang."""
    documents = [[1, 2, 3], [4], [5] * 10, [6, 7], [8] * 3, [9, 9]]
    sound = np.array([[1, 0], [2, 1], [3, 3], [10, 5]])
    small, any64 = st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1)
    numbers = data.draw(st.one_of(st.just([1, 3, 5, 0, 4, 2]), st.lists(st.integers(0, 8), min_size=6, max_size=6)))
    pairs = st.lists(st.tuples(st.one_of(small, any64), st.one_of(small, any64)), min_size=1, max_size=6)
    runs = data.draw(st.one_of(st.just(sound), pairs.map(np.array)))
    content = joined(np.array(numbers), runs)
    with tempfile.TemporaryDirectory() as folder:
        path = make_store(Path(folder), documents)
        if content != (path / "length_index.bin").read_bytes():
            put(path, content)
            check_forged(path, documents)


@pytest.mark.parametrize("packing", ["best_fit", "none"])
@pytest.mark.parametrize("length", [1, 2, 64])
def test_lengths_whose_sums_overflow_are_refused(tmp_path: Path, packing: str, length: int) -> None:
    """P9, FMT-9: lengths that rise, or add up to the tokens, only modulo 2**64."""
    documents = [[1]] * 1001 + [[1, 2, 3, 4, 5]]
    path = make_store(tmp_path, documents)
    put(path, joined(np.arange(1002), np.array([[2**63 - 1, 0], [-(2**63) + 7, 1], [1, 2]])))
    assert {finding.file for finding in verify(path)} == {"length_index.bin"}
    with pytest.raises(CorruptionError, match=r"runs: expected rising lengths .*length_index\.bin"):
        plan_of(path, {"packing": packing, "sequence_length": length})


def test_a_forged_length_index_is_found_among_other_damage(tmp_path: Path) -> None:
    """P9: verify lists all findings."""
    path = make_store(tmp_path)
    put(path, FORGERIES["a number out of range"](*parts(path)))
    replace(path / "inputs.jsonl", b"x")
    assert {finding.file for finding in verify(path)} == {"inputs.jsonl", "length_index.bin"}
