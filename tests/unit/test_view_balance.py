"""How evenly a plan divides among ranks, as `tokenstore plan` shows it, against counting by hand (ORD-19)."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents
from tests.support.twins import order as order_twin
from tokenstore import Plan
from tokenstore.views.plan_balance import balance_of_plan
from tokenstore.views.plan_summary import summarize_plan

BATCH = 24


@pytest.fixture
def store(make_store: Callable[..., Path]) -> Path:
    return make_store("s", random_documents(0, 300, 90), length_index=True)


def plan_of(store: Path, **fields: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Plan.of(store, 64, BATCH, **{"num_steps": 6, **fields})


@pytest.mark.parametrize("packing", ["best_fit", "none", "concat"])
@pytest.mark.parametrize("balance", [None, {"attention": 2, "linear": 9}])
def test_the_figures_equal_counting_by_hand(store: Path, packing: str, balance: Any) -> None:
    """The busiest rank over the mean, of steps that are not skipped, in order and as the twin deals them."""
    plan = plan_of(store, packing=packing, balance=balance, skip_steps=[(1, 3)])
    a, b = plan.config.row_costs or (1, 0)
    world, size = 4, 3
    found = {"in_order": np.zeros(3), "balanced": np.zeros(3)}
    for step in (0, 3, 4, 5):
        costs = [a * sum((p.stop - p.start) ** 2 for p in row) + b * 64 for row in plan.documents(step)]
        for name, rows_of in (("in_order", order_twin.rank_rows), ("balanced", order_twin.balanced_rows)):
            given = BATCH if name == "in_order" else costs
            ranks = np.array([[costs[row] for row in rows_of(given, rank, world, size)] for rank in range(world)])
            parts = ranks.reshape(world, -1, size).sum(axis=2)
            found[name] += parts.sum(axis=1).max(), parts.max(axis=0).sum(), parts.sum() / world
    (row,) = balance_of_plan(plan, world, size)
    assert (row.global_batch_size, row.steps, row.attention, row.linear) == (BATCH, 4, a, b)
    assert (row.is_balanced, row.can_gain) == (balance is not None, True)
    for name, (in_step, in_microbatches, mean) in found.items():
        uneven = getattr(row, name)
        assert (uneven.in_step, uneven.in_microbatches) == pytest.approx((in_step / mean, in_microbatches / mean))
    assert row.balanced.in_microbatches < row.in_order.in_microbatches


def test_nothing_to_gain_with_one_row_per_rank(store: Path) -> None:
    """Each rank has one row per step whatever the order is; a single rank waits for nobody."""
    plan = plan_of(store)
    (row,) = balance_of_plan(plan, BATCH)
    assert not row.can_gain
    assert row.in_order == row.balanced
    assert balance_of_plan(plan, 1) == ()


def test_batch_sizes_that_do_not_divide_are_omitted(store: Path) -> None:
    """One row for each batch size that divides evenly; of a ramp, the first and the last ones."""
    plan = plan_of(store, stages=[{"from_step": 2, "global_batch_size": 25}, {"from_step": 4, "global_batch_size": 48}])
    assert [(row.global_batch_size, row.steps) for row in balance_of_plan(plan, 4, 2)] == [(24, 2), (48, 2)]
    assert balance_of_plan(plan, 7) == ()
    stages = [{"from_step": step, "global_batch_size": 12 * (step + 2)} for step in range(1, 6)]
    assert [row.global_batch_size for row in balance_of_plan(plan_of(store, stages=stages), 4)] == [24, 72, 84]


def test_padding_of_alignment_is_shown(store: Path) -> None:
    """Its share is that of the tokens that rounding up adds in an epoch; the rest of padding is what bins have left."""
    plan = plan_of(store, align=16)
    lengths = np.diff(plan.stores["s"].boundaries()[:301])
    added = int((-lengths % 16).sum())
    positions = plan.num_sequences["s"] * 64
    summary = summarize_plan(plan)
    assert summary.alignment == pytest.approx(added / positions)
    assert summary.padding == pytest.approx(1 - int(lengths.sum()) / positions, rel=1e-3)
    assert summarize_plan(plan_of(store)).alignment == 0


def test_a_large_alignment_is_warned_of(make_store: Callable[..., Path]) -> None:
    """If most of the padding is due to align, the advice is a smaller one."""
    path = make_store("short", [[1, 2, 3]] * 200, length_index=True)
    with pytest.warns(UserWarning, match="use a smaller align"):
        Plan.of(path, 64, 4, align=16)
