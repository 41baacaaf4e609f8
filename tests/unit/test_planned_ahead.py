"""Microbatches that are listed and planned many at once are those of the plan, whatever memory they are planned in."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tokenstore import Plan, TokenLoader
from tokenstore.batches import sampler
from tokenstore.batches.places import MOST_LISTED, Places
from tokenstore.batches.planned import PlanResult


def test_places_come_in_order_with_a_table_of_them() -> None:
    """Whatever is taken at once, no place is lost or comes twice, and the table begins at the next one."""
    places, wanted = Places((step, 2 * step, 3, step + 1) for step in range(2000)), iter([1, 5, 2, 70, 1, 300] * 400)
    taken: list[tuple[int, ...]] = []
    while coming := places.next(next(wanted)):
        assert len(coming) <= MOST_LISTED
        table = (ctypes.c_int64 * (4 * len(coming))).from_address(places.address())
        assert list(table) == [number for place in coming for number in place]
        number = max(len(coming) // 2, 1)
        places.take(number)
        taken += coming[:number]
    assert taken == [(step, 2 * step, 3, step + 1) for step in range(2000)]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "none"])
def test_rows_of_many_documents_after_rows_of_one_are_those_of_the_plan(
    make_store: Callable[..., Path], packing: str
) -> None:
    """P1: more spans than there was room for are planned again, with more room."""
    documents = [*random_documents(1, 40, 500), *random_documents(2, 3000, 1), *random_documents(3, 40, 500)]
    path = make_store("a", documents, length_index=True)
    plan = Plan.of(path, sequence_length=64, global_batch_size=6, shuffle=False, packing=packing, num_steps=150)
    loader = TokenLoader(plan)
    for step, batch in enumerate(loader):
        expected = plan.batch(step)
        assert all((batch[name].numpy() == expected[name]).all() for name in ("input_ids", "targets"))
    assert loader._maker is not None
    assert (loader._maker.sampler._spans_per_row > sampler._FIRST_SPANS) == (packing != "none")


@pytest.mark.parametrize("balance", [None, "attention"])
def test_memory_of_results_is_used_again(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, balance: str | None
) -> None:
    """A run allocates as many results as are in use at once, and the first ones, which are smaller."""
    plan = Plan.of(make_store("a", random_documents(1, 400, 60), length_index=True), 16, 8, balance=balance)
    made = []

    def count(*sizes: int) -> PlanResult:
        made.append(sizes)
        return PlanResult(*sizes)

    monkeypatch.setattr(sampler, "PlanResult", count)
    loader = TokenLoader(plan, rank=0, world_size=2)
    for _ in range(20 * 512 // 4):
        next(loader)
    assert 5 <= len(made) <= 15
