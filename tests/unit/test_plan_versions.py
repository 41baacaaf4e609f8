"""Plans over stores that grow (FMT-13): a plan, its pickle and its states keep the version they were made with."""

import pickle
from pathlib import Path

import pytest

from tests.support.stores.grown import Kind, documents_of, grow, write
from tokenstore import Plan, PlanConfig
from tokenstore.errors import ConfigError, FormatError, StateMismatchError

KIND = Kind(masks=False, origins=False, ids=False)
OLD, NEW = documents_of(1, [3, 10, 40, 7, 20, 11]), documents_of(2, [2, 9, 30])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "web", OLD, KIND)


def plan_of(path: Path, **source: object) -> Plan:
    return Plan(PlanConfig(sequence_length=8, global_batch_size=2, sources={"web": {"path": str(path), **source}}))


def rows(plan: Plan) -> list[list[int]]:
    return [row for step in range(4) for row in plan.batch(step)["input_ids"].tolist()]


def test_a_plan_can_select_a_version(path: Path) -> None:
    """A source with a version gives the same fingerprint and rows as before the store grew."""
    before = plan_of(path)
    expected = rows(before)
    grow(path, NEW, KIND)
    selected = plan_of(path, version=1)
    assert (selected.history(4), rows(selected)) == (before.history(4), expected)
    assert rows(before) == expected  # and one that is open sees nothing
    assert plan_of(path).history(4) == plan_of(path, version=2).history(4) != before.history(4)
    assert plan_of(path).stores["web"].version == 2


def test_a_pickle_keeps_the_version(path: Path) -> None:
    """A plan pickled before or after the store grew is the same plan when it is loaded."""
    plan = plan_of(path)
    pickled, expected = pickle.dumps(plan), rows(plan)
    grow(path, NEW, KIND)
    for again in (pickle.loads(pickled), pickle.loads(pickle.dumps(plan))):
        assert (again.fingerprint, rows(again)) == (plan.fingerprint, expected)


def test_an_older_state_is_refused_with_the_version_to_set(path: Path) -> None:
    """If a store has grown, the message names the version; with that version the state is accepted."""
    state = plan_of(path).state(2)
    grow(path, NEW, KIND)
    grow(path, OLD, KIND)
    with pytest.raises(StateMismatchError, match=r"store web has grown since; set version: 1 on the source$"):
        plan_of(path).check_state(state)
    with pytest.raises(StateMismatchError, match=r"store web has grown since; set version: 1 on the source$"):
        plan_of(path, version=2).check_state(state)
    assert plan_of(path, version=1).check_state(state) == (2, 0)
    newer = plan_of(path, version=2).state(2)
    with pytest.raises(StateMismatchError, match=r"set version: 2 on the source$"):
        plan_of(path).check_state(newer)


def test_a_state_of_another_store_does_not_mention_growth(path: Path) -> None:
    """No version of the store matches the state; a damaged older manifest does not hide the message."""
    state = plan_of(path).state(2)
    other = write(path.with_name("other"), NEW, KIND)
    grow(other, OLD, KIND)
    with pytest.raises(StateMismatchError, match="load the plan this run was started with"):
        plan_of(other).check_state(state)
    (other / "manifest-v1.json").chmod(0o644)
    (other / "manifest-v1.json").write_bytes(b"{")
    with pytest.raises(StateMismatchError, match="load the plan this run was started with"):
        plan_of(other).check_state(state)


def test_a_pool_of_versions(path: Path) -> None:
    """Members of a pool select their own versions."""
    grow(path, NEW, KIND)
    code = write(path.with_name("code"), NEW, KIND)
    sources = {"web": {"path": str(path), "version": 1}, "code": {"path": str(code)}, "all": {"pool": ["web", "code"]}}
    plan = Plan(PlanConfig(sequence_length=8, global_batch_size=2, sources=sources))
    assert plan.stores["web"].version == 1
    assert {piece.document for row in plan.documents(0) for piece in row if piece.source == "web"} <= set(range(6))


def test_versions_from_a_file(path: Path) -> None:
    """plan.yaml: `{path: web, version: 1}`."""
    grow(path, NEW, KIND)
    file = path.with_name("plan.yaml")
    file.write_text("sequence_length: 8\nglobal_batch_size: 2\nsources:\n  web: {path: web, version: 1}\n")
    assert Plan(PlanConfig.load(file)).stores["web"].version == 1


def test_invalid_versions_are_refused(path: Path) -> None:
    """A pool has none; numbers are from 1; for an unknown one the message lists the existing versions."""
    pool = {"web": {"path": str(path)}, "all": {"pool": ["web"], "version": 1}}
    with pytest.raises(
        ConfigError, match=r"sources\.all\.version: a pool has no version; set the version of its members"
    ):
        PlanConfig(sequence_length=8, global_batch_size=2, sources=pool)
    for wrong in (0, -1, "1", 1.0):
        with pytest.raises(ConfigError, match=r"sources\.web\.version"):
            plan_of(path, version=wrong)
    with pytest.raises(FormatError, match="store version: expected one of 1, found 2"):
        plan_of(path, version=2)


def test_damage_in_a_version_is_named_by_its_file(path: Path) -> None:
    """Packing whole documents names the damaged length index."""
    grow(path, NEW, KIND)
    plan = plan_of(path)
    (path / "length_index-v2.bin").chmod(0o644)
    data = (path / "length_index-v2.bin").read_bytes()
    with open(path / "length_index-v2.bin", "r+b") as file:
        file.write(b"\xff" * 36)
    with pytest.raises(Exception, match=r"length_index-v2\.bin"):
        [plan.batch(step) for step in range(4)]
    assert len(data) > 36
