"""Node groups (ORD-21): over random plans, each rank gets the rows of the twin, and all ranks together get every row once."""

import copy
import pickle
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_plan import configs, plan_of, pool, quietly
from tests.support.twins import node_groups as twin
from tests.support.twins import order as order_twin
from tokenstore import Plan, TokenLoader
from tokenstore.order.lanes import Lanes
from tokenstore.order.node_groups import NO_OWNER, NodeGroups

__all__ = ["pool"]  # the fixture
LAYOUTS = [(world, nodes) for world in (1, 2, 3, 4, 6, 8, 12, 24) for nodes in (1, 2, 3, 4, 6, 12, 24)]
EVEN = [(world, nodes) for world, nodes in LAYOUTS if world % nodes == 0 and nodes > 1]


@st.composite
def rows_and_lanes(draw: st.DrawFn) -> tuple[list[twin.Row], dict[str, twin.Shape], int]:
    """Rows of a step, N, s and W of the sources with lanes, and a number of groups."""
    groups, share = draw(st.integers(1, 9)), draw(st.integers(1, 8))
    shape = st.tuples(st.integers(1, 300), st.integers(1, 20), st.integers(1, 60))
    shapes = draw(st.dictionaries(st.sampled_from("abcd"), shape, max_size=4))
    numbers = st.integers(0, 700) | st.integers(2**61, 2**61 + 9)
    row = st.tuples(st.sampled_from("abcd"), numbers) | st.just((None, 0))
    rows = draw(st.lists(row, min_size=groups * share, max_size=groups * share))
    return rows, shapes, groups


@given(case=rows_and_lanes())
def test_groups_get_the_rows_of_the_twin(case: tuple) -> None:
    """ORD-21: whatever the rows are, in equal shares, every row once, and in the twin's order."""
    rows, shapes, groups = case
    lanes = NodeGroups([Lanes.of(*shapes[name]) if name in shapes else None for name in "abcd"], groups)
    located = np.array([(-1 if source is None else "abcd".index(source), k) for source, k in rows], np.int64)
    dealt = lanes.deal(located).tolist()
    owners = [None if owner == NO_OWNER else owner for owner in lanes.owners(located).tolist()]
    assert owners == [twin.owner_of(row, shapes, groups) for row in rows]
    kept = [{p for p in mine if owners[p] == g} for g, mine in enumerate(dealt)]
    assert [len(each) for each in kept] == [min(owners.count(g), len(rows) // groups) for g in range(groups)]
    # Equal rows are possible only here, and may change places with each other
    assert [[rows[p] for p in mine] for mine in dealt] == [
        [rows[p] for p in mine] for mine in twin.deal(rows, shapes, groups)
    ]
    assert sorted(p for mine in dealt for p in mine) == list(range(len(rows)))


def dealt_by_twin(plan: Plan, step: int, nodes: int) -> list[list[int]]:
    """The rows of each node group of a step."""
    names = tuple(plan.num_sequences)
    located = plan.sampler().locate(step, 0, plan.global_batch_size(step)).tolist()
    shapes = {
        name: (plan.num_sequences[name], source.locality.block_sequences, source.locality.lanes)
        for name, source in plan.config.sources.items()
        if source.locality is not None and name in plan.schedule.stage(step).shares
    }
    rows = [(None if number < 0 else names[number], k) for number, k in located]
    return twin.deal(rows, shapes, nodes) if shapes else [list(range(len(rows)))]


def costs_of(plan: Plan, step: int) -> list[int] | None:
    if plan.config.row_costs is None:
        return None
    attention, linear = plan.config.row_costs
    return [
        attention * sum((piece.stop - piece.start) ** 2 for piece in pieces) + linear * plan.config.sequence_length
        for pieces in plan.documents(step)
    ]


def expected_rows(plan: Plan, step: int, layout: tuple[int, int, int], start: int = 0) -> list[list[int]]:
    """The rows of each rank from `start` rows of a step on; the layout is world size, nodes, rows per microbatch."""
    world, nodes, size = layout
    dealt, costs = dealt_by_twin(plan, step, nodes), costs_of(plan, step)
    starts, every = range(start, plan.global_batch_size(step), world * size), range(world)
    if len(dealt) == 1 and costs is None:
        return [[s + rank * size + i for s in starts for i in range(size)] for rank in every]
    if len(dealt) == 1 and (world, size) == (1, plan.global_batch_size(step)):
        return [list(range(size))]
    return [[row for s in starts for row in twin.rows_of_rank(dealt, s, rank, world, size, costs)] for rank in every]


def local(case: dict, data: st.DataObject) -> dict:
    """A case in which all sources but some have lanes, perhaps with balance."""
    case = {**copy.deepcopy(case), "shuffle": True}
    for source in case["sources"].values():
        blocks = {"block_sequences": data.draw(st.integers(1, 9)), "lanes": data.draw(st.integers(1, 40))}
        source["locality"] = data.draw(st.sampled_from([blocks, blocks, None]))
    case["balance"] = data.draw(st.sampled_from([None, None, "attention", {"attention": 2, "linear": 3}]))
    return case


def layout_of(data: st.DataObject, rest: int, nodes: int | None = None) -> tuple[int, int, int]:
    """(world size, nodes, rows per microbatch) that divide `rest` rows."""
    fits = [(w, r) for w, r in EVEN if rest % w == 0 and nodes in (None, r)]
    world, nodes = data.draw(st.sampled_from(fits))
    return world, nodes, data.draw(st.sampled_from([b for b in range(1, rest + 1) if rest % (world * b) == 0]))


@settings(max_examples=15)
@given(case=configs(most_steps=6), data=st.data())
def test_any_division_into_nodes_gives_the_same_step(pool: dict, case: dict, data: st.DataObject) -> None:
    """P2, P5, P6: ranks get equally many rows, those of the twin; all of them together are the step."""
    plan, _ = plan_of(pool, local(case, data))
    step = data.draw(st.integers(0, plan.num_steps - 1))
    if plan.schedule.is_skipped(step):
        return
    whole = plan.batch(step)["input_ids"]
    world, nodes, size = layout = layout_of(data, len(whole))
    rows = [plan.rows(step, rank, world, size, nodes).tolist() for rank in range(world)]
    assert rows == expected_rows(plan, step, layout)
    assert sorted(row for mine in rows for row in mine) == list(range(len(whole)))
    for rank in (0, world - 1):
        assert (plan.batch(step, rank, world, size, nodes)["input_ids"] == whole[rows[rank]]).all()
        assert plan.rank_of(step, rows[rank][-1], world, size, nodes) == rank


def loaders_of(plan: Plan, layout: tuple[int, int, int], **options: object) -> list[TokenLoader]:
    world, nodes, size = layout
    options = {"world_size": world, "nodes": nodes, "microbatch_size": size, "fields": ("sequence_ids",), **options}
    return [TokenLoader(plan, rank=rank, **options) for rank in range(world)]


@settings(max_examples=10)
@given(case=configs(most_steps=5), data=st.data())
def test_resuming_in_the_same_number_of_nodes_gives_the_rest(pool: dict, case: dict, data: st.DataObject) -> None:
    """P1, P2, P10: at any microbatch, with any number of ranks and rows per microbatch, no sequence is repeated or lost."""
    plan, _ = plan_of(pool, local({**case, "skip_steps": []}, data))
    first = layout_of(data, 24)
    loaders, used, states = loaders_of(plan, first), [], [plan.state(0)]
    for batches in zip(*loaders, strict=True):
        used.append(Counter(n for batch in batches for n in batch["sequence_ids"].tolist()))
        states.append(loaders[0].state_dict())
        assert all(loader.state_dict() == states[-1] for loader in loaders)
    number = data.draw(st.integers(0, len(states) - 1))
    state, step = states[number], states[number]["step"]
    given_rows = state["cursor"] - plan.schedule.cursor(step)
    groups = plan.num_groups(step, *first[:2]) if given_rows else 1
    assert state.get("node_groups", 1) == groups
    rest = 24 if step == plan.num_steps else plan.global_batch_size(step) - given_rows
    again = quietly(plan.config) if data.draw(st.booleans()) else pickle.loads(pickle.dumps(plan))
    layout = layout_of(data, np.gcd(rest, 24), first[1])
    resumed = loaders_of(again, layout, inside_step="continue")
    for loader in resumed:
        loader.load_state_dict(state)
    left: Counter = Counter()
    for batches in zip(*resumed, strict=True):
        ids = [batch["sequence_ids"].tolist() for batch in batches]
        info = resumed[0].batch_info
        block = layout[0] * layout[2]
        start = info.microbatch * block + (given_rows % block if info.step == step else 0)
        rows = expected_rows(plan, info.step, layout, start)
        cursor = plan.schedule.cursor(info.step)
        assert [[n - cursor for n in mine] for mine in ids] == [mine[: layout[2]] for mine in rows]
        left.update(n for mine in ids for n in mine)
    assert left == sum(used[number:], Counter())


@settings(max_examples=8)
@given(case=configs(most_steps=3), data=st.data())
def test_another_number_of_nodes_starts_the_step_again(pool: dict, case: dict, data: st.DataObject) -> None:
    """P10: it has used other rows. Every sequence of the step is then given once."""
    plan, _ = plan_of(pool, local({**case, "skip_steps": []}, data))
    loaders = loaders_of(plan, (6, 6, 1))
    next(loaders[0])
    state = loaders[0].state_dict()
    layout = layout_of(data, 24)
    resumed = loaders_of(plan, layout)
    differs = plan.num_groups(0, 6, 6) != plan.num_groups(0, *layout[:2])
    ids: list[int] = []
    for loader in resumed:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if not differs and 18 % (layout[0] * layout[2]):
                return
            loader.load_state_dict(state)
        assert ["The step starts again" in str(each.message) for each in caught] == [differs]
        while loader.step == 0:
            ids += next(loader)["sequence_ids"].tolist()
    if differs:
        assert sorted(ids) == list(range(24))
    else:
        assert len(set(ids)) == len(ids) == 18


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_one_node_is_dealt_as_without_lanes(pool: dict, world: int) -> None:
    """ORD-8: nodes=1, and nodes that do not divide the ranks, leave the order of rows as it is."""
    sources = {"a": {"path": 0, "locality": {"block_sequences": 4, "lanes": 8}}, "b": {"path": 1}}
    case = {"vocabulary": 300, "sequence_length": 8, "global_batch_size": 24, "sources": sources, "packing": "concat"}
    plan, _ = plan_of(pool, case)
    for nodes in (1, 5):
        rows = [plan.rows(1, rank, world, 2, nodes).tolist() for rank in range(world)]
        assert rows == [order_twin.rank_rows(24, rank, world, 2) for rank in range(world)]
