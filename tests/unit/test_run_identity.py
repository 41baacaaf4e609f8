"""P1, P10: what a run's state covers, including padding, the length index, the step and the cursor."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents
from tests.support.stores.forge import forge
from tokenstore import Plan, PlanConfig, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.order.schedule import MOST_SEQUENCES

LENGTH, BATCH = 32, 8


@pytest.fixture
def web(make_store: Callable[..., Path]) -> Path:
    """A store without special tokens: its padding is 0."""
    return make_store("web", random_documents(1, 60, 40), length_index=True)


def with_pad(path: Path, copy: Path, pad_id: int) -> Path:
    """The same content, with the same digest, and a tokenizer whose pad token is `pad_id`."""
    shutil.copytree(path, copy)
    forge(copy, lambda body: body["tokenizer"].update(pad_id=pad_id))
    return copy


def test_a_later_source_does_not_change_earlier_padding(web: Path, tmp_path: Path) -> None:
    """P1: a source of a later stage whose name sorts first changes no earlier row."""
    anneal = with_pad(web, tmp_path / "anneal", 7)
    plan = Plan.of({"web": web}, LENGTH, BATCH, weights={"web": 1}, num_steps=6)
    stages = [{"from_step": 4, "weights": {"anneal": 1}}]
    with pytest.warns(UserWarning, match="same store"):
        amended = Plan.of({"web": web, "anneal": anneal}, LENGTH, BATCH, weights={"web": 1}, num_steps=6, stages=stages)
    amended.check_state(plan.state(4))
    for step in range(4):
        np.testing.assert_array_equal(amended.batch(step)["input_ids"], plan.batch(step)["input_ids"])
    assert amended.pad_id == plan.pad_id == 0


@pytest.mark.filterwarnings("ignore:sources . and . are the same store")
def test_the_first_source_with_weight_decides_the_pad_token(web: Path, tmp_path: Path) -> None:
    """By name, among those with weight at step 0; of a pool, its first member."""
    paths = {name: with_pad(web, tmp_path / name, pad) for name, pad in (("a", 5), ("b", 6), ("c", 7))}
    assert Plan.of(paths, LENGTH, BATCH).pad_id == 5
    assert Plan.of(paths, LENGTH, BATCH, weights={"a": 0, "b": 1, "c": 1}).pad_id == 6
    sources = {name: {"path": str(path)} for name, path in paths.items()}
    sources |= {"z": {"pool": ["c", "b"], "weight": 1}, "a": {**sources["a"], "weight": 0}}
    assert Plan(PlanConfig(sequence_length=LENGTH, global_batch_size=BATCH, sources=sources)).pad_id == 6


def test_a_state_with_another_pad_token_is_refused(web: Path, tmp_path: Path) -> None:
    """P10: equal digests are not sufficient: the message names pad_id."""
    other = Plan.of({"web": with_pad(web, tmp_path / "other", 7)}, LENGTH, BATCH)
    with pytest.raises(StateMismatchError, match="pad_id was 0, is 7"):
        other.check_state(Plan.of({"web": web}, LENGTH, BATCH).state(3))


def test_a_state_with_another_length_index_is_refused(web: Path, tmp_path: Path) -> None:
    """P10: packing reads the length index, which the digest does not cover."""
    shutil.copytree(web, other := tmp_path / "other")
    forge(other, lambda body: body["files"]["length_index.bin"].update(checksum="0" * 32))
    for packing, fits in (("best_fit", False), ("none", False), ("concat", True)):
        state = Plan.of({"web": web}, LENGTH, BATCH, packing=packing).state(3)
        plan = Plan.of({"web": other}, LENGTH, BATCH, packing=packing)
        if fits:
            plan.check_state(state)
            continue
        with pytest.raises(StateMismatchError, match="length_index"):
            plan.check_state(state)


@pytest.mark.parametrize("change", [{"step": 4}, {"step": 1 << 62}, {"cursor": 12}, {"step": 3, "cursor": 25}])
def test_an_edited_state_is_refused(web: Path, change: dict[str, int]) -> None:
    """P10: the fingerprint covers the step and the cursor, not only the history."""
    plan = Plan.of({"web": web}, LENGTH, BATCH)
    state = plan.state(3)
    assert plan.check_state(state) == (3, 0)
    with pytest.raises(StateMismatchError, match="does not match its step, cursor and history"):
        plan.check_state({**state, **change})


@pytest.mark.parametrize("make", [TokenLoader, TokenDataset])
def test_a_step_after_the_end_is_refused(web: Path, make: Callable[..., object]) -> None:
    """ORD-10: an endless plan ends at 2**62 sequences: nothing after them is returned as padding."""
    endless, short = Plan.of({"web": web}, LENGTH, BATCH), Plan.of({"web": web}, LENGTH, BATCH, num_steps=9)
    last = MOST_SEQUENCES // BATCH
    assert (endless.last_start, short.last_start) == (last, 9)
    for plan in endless, short:
        with pytest.raises(ValueError, match=f"expected a step in 0..{plan.last_start}"):
            make(plan, step=plan.last_start + 1)
        with pytest.raises(ValueError, match="step: expected"):
            plan.batch(plan.last_start)
    batches = list(make(endless, step=last - 1))
    assert len(batches) == 1
    assert (batches[0]["targets"] >= 0).any(dim=1).all()  # whole rows of padding there are none


def test_a_name_with_half_a_surrogate_pair_is_refused() -> None:
    """ORD-1: keys are made from text, and such a name cannot be encoded."""
    with pytest.raises(ConfigError, match=r"sources: 'a\\ud800' is not a valid name"):
        PlanConfig(sequence_length=4, global_batch_size=1, sources={"a\ud800": {"path": "x"}})
