"""Plans of packed sources and pools against a slow twin that walks the run piece by piece: P1, P2, P3, P5, P6."""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.twins.packed_plans import SIZES, Stores, Twin, cases, limited, plan_of, quietly
from tokenstore import TokenLoader
from tokenstore.errors import ConfigError


def split(data: st.DataObject, *sizes: int) -> tuple[int, int]:
    """(world size, microbatch size) whose product divides all `sizes`."""
    block = data.draw(st.sampled_from([d for d in range(1, min(sizes) + 1) if not any(size % d for size in sizes)]))
    world = data.draw(st.sampled_from([w for w in (1, 2, 3, 4, 8) if block % w == 0]))
    return world, block // world


def limited_plan(stores: Stores, case: dict) -> tuple | None:
    """(plan, twin), or None for a plan without a single step, which is refused."""
    try:
        plan, documents = plan_of(stores, case)
    except ConfigError as error:
        if "at least one step" not in str(error):
            raise
        return None
    return plan, Twin(plan.config, documents)


def sorted_between(rows: list[tuple], ends: np.ndarray) -> list[tuple]:
    """The rows, each a tuple of arrays, sorted between every two ends."""
    borders = [0, *ends[ends > 0].tolist()]
    parts = [sorted(rows[a:b], key=lambda row: [part.tolist() for part in row]) for a, b in pairwise(borders)]
    return [row for part in parts for row in part]


@given(case=cases())
def test_every_batch_equals_the_slow_twin(stores: Stores, case: dict) -> None:
    """P6, ORD-12..15, ORD-18, ORD-19: tokens, targets, padding and pieces of every step equal packing by hand."""
    plan, documents = plan_of(stores, case)
    twin = Twin(plan.config, documents)
    assert plan.num_sequences == twin.num_sequences
    for step in twin.given_steps:
        pieces, ids, targets = twin.batch(step)
        batch = plan.batch(step)
        assert plan.documents(step) == pieces
        assert (batch["input_ids"] == ids).all()
        assert (batch["targets"] == targets).all()


@given(case=cases(most_steps=8), data=st.data())
def test_runs_that_end_equal_counting_by_hand(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P3, P5, ORD-5, ORD-11: drop, stop, first_exhausted and all_exhausted, with and without a padded last step,
    across stages.
    """
    made = limited_plan(stores, data.draw(limited(case)))
    if made is None:
        return
    plan, twin = made
    assert plan.num_steps == twin.num_steps
    for step in [*twin.given_steps[:2], *twin.given_steps[-2:]]:
        pieces, ids, targets = twin.batch(step)
        batch = plan.batch(step)
        assert plan.documents(step) == pieces
        assert (batch["input_ids"] == ids).all()
        assert (batch["targets"] == targets).all()


@given(case=cases(stages=False, skips=False), data=st.data())
def test_a_padded_step_loses_nothing(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P5, P3, ORD-11: the last step of a padded plan contains all remaining sequences and rows of padding; drop
    omits it.
    """
    case = data.draw(limited(case))
    made = {last: limited_plan(stores, {**case, "last_batch": last}) for last in ("pad", "drop")}
    plan, twin = made["pad"]
    given_to = Counter(pieces[0].source for step in twin.given_steps for pieces in plan.documents(step) if pieces)
    expected = Counter()
    for source, number in twin.run:
        expected[(twin.pieces(source, number) or [(None,)])[0][0]] += 1
    del expected[None]  # sequences of a pool that are empty in their epoch
    assert given_to == expected
    left = len(twin.run) % 24
    assert plan.num_steps == len(twin.run) // 24 + (left > 0)
    empty = [i for i, sequence in enumerate(twin.sequences(plan.num_steps - 1)) if sequence is None]
    assert len(empty) == -len(twin.run) % 24
    last = plan.batch(plan.num_steps - 1)
    assert (last["input_ids"][empty] == 5).all()
    assert (last["targets"][empty] == -100).all()
    if made["drop"]:
        shorter, _ = made["drop"]
        assert shorter.num_steps == len(twin.run) // 24
        step = shorter.num_steps - 1
        assert (shorter.batch(step)["input_ids"] == plan.batch(step)["input_ids"]).all()


@given(case=cases(), data=st.data())
def test_any_split_over_ranks_gives_the_same_step(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P2, P5, ORD-8, ORD-19: world size, microbatch size and balance decide which rank gets a row, not which rows there
    are; also in padded steps.
    """
    made = limited_plan(stores, data.draw(st.one_of(st.just(case), limited(case))))
    if made is None or not made[1].given_steps:
        return
    plan, twin = made
    step = data.draw(st.sampled_from([*twin.given_steps, twin.given_steps[-1]]))
    whole, pieces = plan.batch(step), plan.documents(step)
    assert plan.rows(step).tolist() == list(range(twin.size(step)))
    world, size = split(data, twin.size(step))
    for rank in range(world):
        rows = twin.rank_rows(step, rank, world, size)
        assert plan.rows(step, rank, world, size).tolist() == rows
        assert {plan.rank_of(step, row, world, size) for row in rows} == {rank}
        mine = plan.batch(step, rank, world, size)
        assert len(rows) == twin.size(step) // world
        for field in ("input_ids", "targets"):
            assert (mine[field] == whole[field][rows]).all()
        assert plan.documents(step, rank, world, size) == [pieces[row] for row in rows]


@given(case=cases(most_steps=5), data=st.data())
def test_resuming_at_any_microbatch_gives_the_rest(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P1, P2, P5: resuming from any state, inside a step, in a padded one or with other ranks, continues the same
    run.
    """
    made = limited_plan(stores, data.draw(st.one_of(st.just(case), limited(case))))
    if made is None:
        return
    plan, twin = made
    sizes = sorted({plan.global_batch_size(stage.from_step) for stage in plan.schedule.stages})
    world, size = split(data, *sizes)
    loaders = [TokenLoader(plan, rank=r, world_size=world, microbatch_size=size) for r in range(world)]
    states, rows = [(loaders[0].state_dict(), 0)], []
    for batches in zip(*loaders, strict=True):
        rows += [row for batch in batches for row in zip(*(t.numpy() for t in batch.values()), strict=True)]
        states.append((loaders[0].state_dict(), len(rows)))
        assert [loader.state_dict() for loader in loaders[1:]] == [states[-1][0]] * (world - 1)
    assert len(rows) == sum(twin.size(step) for step in twin.given_steps)
    assert len(states) - 1 == len(loaders[0])
    for state, given_rows in [*data.draw(st.lists(st.sampled_from(states), max_size=2)), states[-1]]:
        inside = state["cursor"] - plan.schedule.cursor(state["step"])
        rest = plan.global_batch_size(state["step"]) - inside
        world, size = split(data, *sizes, rest)
        again = quietly(plan.config) if data.draw(st.booleans()) else pickle.loads(pickle.dumps(plan))
        options = {"world_size": world, "microbatch_size": size, "inside_step": "continue"}
        loaders = [TokenLoader(again, rank=r, **options) for r in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
        got = [
            row
            for batches in zip(*loaders, strict=True)
            for batch in batches
            for row in zip(*(t.numpy() for t in batch.values()), strict=True)
        ]
        expected = rows[given_rows:]
        assert len(got) == len(expected)
        if plan.config.balance:  # other ranks get the rows of a step in another order
            ends = np.cumsum([twin.size(step) for step in twin.given_steps]) - given_rows
            got, expected = sorted_between(got, ends), sorted_between(expected, ends)
        assert all((a == b).all() for x, y in zip(got, expected, strict=True) for a, b in zip(x, y, strict=True))


@given(case=cases(stages=False, skips=False), epochs=st.integers(1, 4))
def test_an_epoch_gives_every_token_exactly_once(stores: Stores, case: dict, epochs: int) -> None:
    """P3, ORD-12: after E epochs each token was used E times; in a pool, floor or ceil of E p / q times."""
    case = {**case, "num_steps": "all_exhausted", "last_batch": "pad"}
    for source in case["sources"].values():
        if "weight" in source:
            source["max_epochs"] = epochs
    plan, documents = plan_of(stores, case)
    twin = Twin(plan.config, documents)
    times = {name: [np.zeros(len(document), int) for document in documents[name]] for name in documents}
    for step in range(plan.num_steps):
        for row in plan.documents(step):
            assert sum(piece.stop - piece.start for piece in row) <= plan.config.sequence_length
            for piece in row:
                times[piece.source][piece.document][piece.start : piece.stop] += 1
    for name in plan.config.drawn_sources:
        for member in twin.members[name]:
            exactly = epochs * twin.repeat(name, member)
            least, most = int(exactly), -int(-exactly // 1)
            chosen = set(twin.chosen[member])
            for number, document in enumerate(times[member]):
                assert document.min() == document.max()
                assert (least <= document[0] <= most) if number in chosen else document[0] == 0
    assert all(p.epochs == epochs for p in plan.progress(plan.num_steps).values())


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_many_small_epochs_inside_one_step(stores: Stores, packing: str) -> None:
    """P3, P6: a batch over more epochs of a source than there are cached packings, forwards and backwards."""
    sources = {"a": {"path": len(SIZES) - 1, "weight": 1}, "b": {"path": 3, "weight": 1}}
    case = {"vocabulary": 300, "packing": packing, "sequence_length": 48, "global_batch_size": 24, "sources": sources}
    plan, documents = plan_of(stores, {**case, "num_steps": 6})
    twin = Twin(plan.config, documents)
    assert max(twin.num_sequences.values()) <= 2
    for step in (0, 1, 5, 0, 4, 5, 2):
        pieces, ids, _ = twin.batch(step)
        assert (plan.batch(step)["input_ids"] == ids).all()
        assert plan.documents(step) == pieces
