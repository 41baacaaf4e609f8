"""Plans with `balance`: who gets which row, what rows cost, and states inside a step (ORD-19)."""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_documents
from tests.support.twins import order as order_twin
from tokenstore import Plan, PlanConfig, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError

LENGTH, BATCH, WORLD, SIZE = 64, 24, 4, 2
PACKINGS = ("best_fit", "none", "concat")


@pytest.fixture
def two(make_store: Callable[..., Path]) -> dict[str, Path]:
    """Documents of 1 to 9 and of 1 to 150 tokens, so that rows cost very different amounts."""
    return {
        name: make_store(name, random_documents(i, *size), length_index=True)
        for i, (name, size) in enumerate({"a": (400, 9), "b": (60, 150)}.items())
    }


def plan_of(stores: dict[str, Path], balance: Any = "attention", **fields: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs of small stores, on purpose
        return Plan.of(stores, LENGTH, BATCH, balance=balance, **{"num_steps": 5, **fields})


def costs_of(plan: Plan, step: int) -> list[int]:
    """The sum of squares of each row, by its pieces. Right if no copy of a pool is shorter than its room."""
    return [sum((piece.stop - piece.start) ** 2 for piece in pieces) for pieces in plan.documents(step)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_are_dealt_by_cost(two: dict[str, Path], packing: str) -> None:
    """Every rank gets the rows of the twin; all ranks together get the step, which is that of the plan without balance."""
    plan, plain = plan_of(two, packing=packing), plan_of(two, None, packing=packing)
    for step in range(3):
        costs, whole = costs_of(plan, step), plan.batch(step)["input_ids"]
        assert (whole == plain.batch(step)["input_ids"]).all()
        for rank in range(WORLD):
            rows = order_twin.balanced_rows(costs, rank, WORLD, SIZE)
            assert plan.rows(step, rank, WORLD, SIZE).tolist() == rows
            assert (plan.batch(step, rank, WORLD, SIZE)["input_ids"] == whole[rows]).all()
            assert plan.documents(step, rank, WORLD, SIZE) == [plan.documents(step)[row] for row in rows]


@pytest.mark.parametrize("packing", PACKINGS)
def test_ranks_of_a_microbatch_have_similar_work(two: dict[str, Path], packing: str) -> None:
    """The sum over microbatches of the busiest rank is lower than without balance."""

    def waits(plan: Plan) -> int:
        total = 0
        for step in range(5):
            ranks = [np.array(costs_of(plan, step))[plan.rows(step, rank, WORLD, SIZE)] for rank in range(WORLD)]
            total += np.stack(ranks).reshape(WORLD, -1, SIZE).sum(axis=2).max(axis=0).sum()
        return total

    assert waits(plan_of(two, packing=packing)) < waits(plan_of(two, None, packing=packing))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("balance", [None, "attention", {"attention": 3, "linear": 5}])
def test_the_cost_of_each_row_is_a_field(two: dict[str, Path], packing: str, balance: Any) -> None:
    """attention_cost, int64[B], in the order of the rows of the batch; without balance a = 1 and b = 0."""
    plan = plan_of(two, balance, packing=packing)
    a, b = plan.config.row_costs or (1, 0)
    loader = TokenLoader(plan, rank=1, world_size=WORLD, microbatch_size=SIZE, fields=("input_ids", "attention_cost"))
    for batch in loader:
        info = loader.batch_info
        expected = [a * costs_of(plan, info.step)[row] + b * LENGTH for row in info.rows]
        assert batch["attention_cost"].dtype == torch.int64
        assert batch["attention_cost"].tolist() == expected


def test_a_copy_costs_its_room(two: dict[str, Path]) -> None:
    """ORD-19: with a fractional repeat factor, a row costs the same in every epoch, whatever its documents are."""
    sources = {"a": {"path": str(two["a"])}, "p": {"pool": {"a": "0.5"}}}
    fields = {"sequence_length": 16, "global_batch_size": 4, "sources": sources, "shuffle": False, "packing": "none"}
    plan = Plan(PlanConfig(**fields))
    count = plan.num_sequences["p"]
    loader = TokenLoader(plan, microbatch_size=4, fields=("attention_cost",))
    costs = torch.cat([next(loader)["attention_cost"] for _ in range(2 * count // 4)])
    assert costs[:count].tolist() == costs[count : 2 * count].tolist()


def test_a_row_of_padding_costs_its_positions(two: dict[str, Path]) -> None:
    """An empty row has no pieces, is dealt last, and skip_empty still skips the same microbatches on all ranks."""
    plan = plan_of(two, {"linear": 3}, num_steps="all_exhausted", last_batch="pad", packing="none")
    last = plan.num_steps - 1
    loaders = [
        TokenLoader(plan, rank=r, world_size=2, microbatch_size=1, step=last, fields=("source_ids", "attention_cost"))
        for r in range(2)
    ]
    rows = [
        row for batches in zip(*loaders, strict=True) for batch in batches for row in zip(*batch.values(), strict=True)
    ]
    empty = [int(source) < 0 for source, _ in rows]
    assert empty == sorted(empty)
    assert any(empty)
    assert {int(cost) for source, cost in rows if source < 0} == {3 * LENGTH}
    skipping = [
        TokenLoader(plan, rank=r, world_size=2, microbatch_size=1, step=last, skip_empty=True) for r in range(2)
    ]
    assert {len(list(loader)) for loader in skipping} == {-(-empty.index(True) // 2)}


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_run_continues_inside_a_step_with_other_ranks(two: dict[str, Path], packing: str) -> None:
    """P1, P2: what was consumed is a prefix of the rows by cost; other ranks get the others, as the twin deals them."""
    plan = plan_of(two, packing=packing)
    first = TokenLoader(plan, rank=0, world_size=3, microbatch_size=2)
    next(first)
    state = first.state_dict()
    assert state["balance"] == "attention 1, linear 0"
    again = pickle.loads(pickle.dumps(plan))
    costs, whole = costs_of(plan, 0), plan.batch(0)["input_ids"]
    for rank in range(2):
        loader = TokenLoader(again, rank=rank, world_size=2, microbatch_size=3, inside_step="continue")
        loader.load_state_dict(state)
        for start in range(6, BATCH, 6):
            rows = order_twin.dealt_rows(costs, start, rank, 2, 3)
            assert (next(loader)["input_ids"].numpy() == whole[rows]).all()
            assert list(loader.batch_info.rows) == rows
            assert list(loader.batch_info.sequences) == rows
        assert loader.step_ended


CHANGES = [("attention", None), (None, "attention"), ("attention", {"attention": 2}), ({"linear": 1}, "attention")]


@pytest.mark.parametrize(("saved", "loaded"), CHANGES)
def test_a_step_dealt_otherwise_starts_again(two: dict[str, Path], saved: Any, loaded: Any) -> None:
    """A state inside a step under another balance: "warn" starts the step again and says so, "rewind" is silent."""
    before, after = plan_of(two, saved), plan_of(two, loaded)
    first = TokenLoader(before, microbatch_size=2)
    for _ in range(3):
        next(first)
    state = first.state_dict()
    assert ("balance" in state) == (saved is not None)
    for choice in ("warn", "rewind"):
        loader = TokenLoader(after, microbatch_size=2, inside_step=choice)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader.load_state_dict(state)
        assert [("The step starts again" in str(each.message)) for each in caught] == [True] * (choice == "warn")
        assert (loader.step, loader.step_ended) == (0, True)
        rows = after.rows(0, 0, 1, 2)[:2]
        assert (next(loader)["input_ids"].numpy() == after.batch(0)["input_ids"][rows]).all()


@pytest.mark.parametrize(("saved", "loaded"), CHANGES)
def test_gradients_of_other_rows_are_refused(two: dict[str, Path], saved: Any, loaded: Any) -> None:
    """With "continue", the gradients of the first rows would count twice; so would those of several workers."""
    first = TokenLoader(plan_of(two, saved), microbatch_size=2)
    next(first)
    loader = TokenLoader(plan_of(two, loaded), microbatch_size=2, inside_step="continue")
    with pytest.raises(
        StateMismatchError, match=r"saved inside step 0, and .*: the state was saved with .*balance.*rewind"
    ):
        loader.load_state_dict(first.state_dict())
    batches = iter(TokenDataset(plan_of(two, saved), microbatch_size=2))
    next(batches)
    again = iter(TokenDataset(plan_of(two, loaded), microbatch_size=2, inside_step="continue"))
    with pytest.raises(StateMismatchError, match="saved inside step 0"):
        again.load_state_dict(batches.state_dict())


@pytest.mark.parametrize(("saved", "loaded"), CHANGES)
def test_balance_may_change_between_steps(two: dict[str, Path], saved: Any, loaded: Any) -> None:
    """P10: it is no part of the history, the fingerprint, or a state at the start of a step."""
    before, after = plan_of(two, saved), plan_of(two, loaded)
    assert before.fingerprint == after.fingerprint
    assert before.state(2) == after.state(2)
    loader = TokenLoader(after, microbatch_size=2)
    loader.load_state_dict(before.state(2))
    assert loader.step == 2


def test_a_forged_balance_of_a_state_is_refused(two: dict[str, Path]) -> None:
    """The fingerprint covers it."""
    plan = plan_of(two)
    loader = TokenLoader(plan, microbatch_size=2)
    next(loader)
    for forged in ("attention 2, linear 0", 7, None):
        with pytest.raises(StateMismatchError):
            TokenLoader(plan, microbatch_size=2).load_state_dict({**loader.state_dict(), "balance": forged})


def test_row_numbers_do_not_depend_on_balance(two: dict[str, Path]) -> None:
    """find, SequenceDataset and the documents of a whole step use the numbers of ORD-6."""
    plan, plain = plan_of(two), plan_of(two, None)
    assert plan.documents(1) == plain.documents(1)
    assert list(plan.find("a", 3, epoch=0)) == list(plain.find("a", 3, epoch=0))
    assert torch.equal(SequenceDataset(plan)[30]["input_ids"], SequenceDataset(plain)[30]["input_ids"])
    for row in (0, 5, BATCH - 1):
        rank = plan.rank_of(1, row, WORLD, SIZE)
        assert row in plan.rows(1, rank, WORLD, SIZE)
    with pytest.raises(ValueError, match="row: expected 0 to 23, found 24"):
        plan.rank_of(1, BATCH, WORLD, SIZE)


@pytest.mark.parametrize(
    ("balance", "message"),
    [
        ("flops", "balance: expected 'attention' or {attention: a, linear: b}, found 'flops'"),
        (True, "balance: expected 'attention' or {attention: a, linear: b}, found True"),
        ({"attention": 0}, "balance.attention: expected 1 or more, found 0"),
        ({"linear": -1}, "balance.linear: expected 0 or more, found -1"),
        ({"linear": 0.5}, "balance.linear: expected a whole number, found 0.5"),
        ({"quadratic": 1}, "balance.quadratic: unknown field; the fields are attention, linear"),
    ],
)
def test_costs_that_do_not_work_are_refused(two: dict[str, Path], balance: Any, message: str) -> None:
    """The message says what would work."""
    with pytest.raises(ConfigError) as error:
        Plan.of(two, LENGTH, BATCH, balance=balance)
    assert message in str(error.value)


def test_costs_that_do_not_fit_are_refused() -> None:
    """Costs are int64."""
    fields = {"sequence_length": 1 << 24, "global_batch_size": 1, "sources": {"a": {"path": "a"}}}
    with pytest.raises(ConfigError, match=r"would cost 2\*\*62 or more .* divide both by the same number"):
        PlanConfig(**fields, balance={"attention": 10**6, "linear": 10**12})
