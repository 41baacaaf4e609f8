"""Loaders of a job with several nodes: which rows they get, states inside a step, and where the number of nodes comes from."""

import pickle
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.conftest import random_documents
from tokenstore import DataRank, Plan, PlanConfig, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.order.interleave import interleave
from tokenstore.order.lanes import Lanes
from tokenstore.order.node_groups import NodeGroups
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.trainers.grain import MicrobatchDataset, MicrobatchSource
from tokenstore.views.decoding import Decoder
from tokenstore.views.trace import appearances, trace_rows, trace_step

LENGTH, BATCH, WORLD, NODES, SIZE = 8, 24, 6, 3, 2
LOCAL = {"block_sequences": 4, "lanes": 24}


@pytest.fixture
def stores(make_store: Callable[..., Path]) -> dict[str, Path]:
    return {name: make_store(name, random_documents(i, 60, 60), length_index=True) for i, name in enumerate("abc")}


def plan_of(stores: dict[str, Path], locality: tuple[str, ...] = ("a", "b"), **fields: Any) -> Plan:
    sources = {
        name: {"path": str(path), "weight": 1, "locality": LOCAL if name in locality else None}
        for name, path in stores.items()
    }
    fields = {"num_steps": 4, "packing": "concat", **fields}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs of small stores, on purpose
        return Plan(PlanConfig(sequence_length=LENGTH, global_batch_size=BATCH, sources=sources, **fields))


def loader_of(plan: Plan, rank: int = 0, nodes: int | None = NODES, **options: Any) -> TokenLoader:
    options = {"world_size": WORLD, "microbatch_size": SIZE, **options}
    return TokenLoader(plan, rank=rank, nodes=nodes, **options)


def ids_of(plan: Plan, nodes: int, **options: Any) -> list[list[int]]:
    """The sequence numbers of every microbatch, those of all ranks together."""
    loaders = [loader_of(plan, rank, nodes, fields=("sequence_ids",), **options) for rank in range(WORLD)]
    return [[n for batch in batches for n in batch["sequence_ids"].tolist()] for batches in zip(*loaders, strict=True)]


def test_a_group_reads_rows_of_its_own_lanes(stores: dict[str, Path]) -> None:
    """ORD-21: nearly all rows of the sources with lanes go to the group that owns the lane, and each step is the same."""
    plan = plan_of(stores)
    names = list(plan.num_sequences)
    groups = NodeGroups([source.lanes for source in plan.sources], NODES)
    moved = 0
    for step in range(4):
        rows = plan.sampler().locate(step, 0, BATCH)
        owners = groups.owners(rows)
        assert ((owners < 0) == (rows[:, 0] == names.index("c"))).all()
        for rank in range(WORLD):
            mine = owners[plan.rows(step, rank, WORLD, SIZE, NODES)]
            moved += int(((mine >= 0) & (mine != rank // 2)).sum())
    assert moved <= 4
    everything, without = ids_of(plan, NODES), ids_of(plan, 1)
    assert everything != without
    assert sorted(chain(*everything)) == sorted(chain(*without)) == list(range(4 * BATCH))


def test_the_order_of_rows_is_that_of_places(stores: dict[str, Path]) -> None:
    """ORD-21: a group uses its rows along the circle of lanes, and rows without a lane last."""
    plan = plan_of(stores, locality=("a",))
    dealt = plan.dealer(plan.sampler()).dealt(0, NODES)
    for rows in dealt.rows:
        assert sorted(rows[:, 0] != 0) == (rows[:, 0] != 0).tolist()


@pytest.mark.parametrize("balance", [None, "attention"])
def test_prefetching_and_workers_give_the_same_batches(stores: dict[str, Path], balance: str | None) -> None:
    """P2: rows do not depend on who makes the batch, or how far ahead."""
    plan = plan_of(stores, balance=balance)
    expected = [batch["input_ids"] for batch in loader_of(plan, 4)]
    ahead = [batch["input_ids"] for batch in loader_of(plan, 4, prefetch=3)]
    options = {"rank": 4, "world_size": WORLD, "nodes": NODES, "microbatch_size": SIZE}
    dataset = TokenDataset(plan, **options)
    workers = [batch["input_ids"] for batch in DataLoader(dataset, batch_size=None, num_workers=2)]
    records = [torch.from_numpy(batch["input_ids"]) for batch in MicrobatchDataset(plan, **options)]
    source = MicrobatchSource(plan, **options)
    for other in (ahead, workers, records, [torch.from_numpy(source[i]["input_ids"]) for i in range(len(source))]):
        assert all(torch.equal(a, b) for a, b in zip(expected, other, strict=True))
    for step in range(4):
        whole = plan.batch(step, 4, WORLD, SIZE, NODES)["input_ids"]
        assert (torch.cat(expected[2 * step : 2 * step + 2]).numpy() == whole).all()


def test_numbers_of_rows_do_not_depend_on_nodes(stores: dict[str, Path]) -> None:
    """ORD-6: SequenceDataset and batch_info name the same rows; an Evaluation gives every token once."""
    plan = plan_of(stores, num_steps="all_exhausted")
    loader, dataset = loader_of(plan, 5), SequenceDataset(plan)
    batch = next(loader)["input_ids"]
    info = loader.batch_info
    assert [dataset[n]["input_ids"].tolist() for n in info.sequences] == batch.tolist()
    assert (plan.batch(0)["input_ids"][list(info.rows)] == batch.numpy()).all()
    place = DataRank(5, WORLD, NODES)
    mine = [each["input_ids"] for each in Evaluation(plan, rank=place, microbatch_size=SIZE)]
    plain = [each["input_ids"] for each in Evaluation(plan, rank=5, world_size=WORLD, microbatch_size=SIZE)]
    assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))


@pytest.mark.parametrize("balance", [None, "attention"])
def test_all_ranks_skip_the_same_empty_microbatches(stores: dict[str, Path], balance: str | None) -> None:
    """P5, ORD-11: rows of padding fill the groups, so with skip_empty the ranks still have equally many microbatches."""
    plan = plan_of(stores, num_steps="all_exhausted", last_batch="pad", balance=balance)
    last = plan.num_steps - 1
    padding = int((plan.sampler().locate(last, 0, BATCH)[:, 0] < 0).sum())
    assert padding
    options = {"microbatch_size": 1, "step": last, "fields": ("source_ids",)}
    full = [[b["source_ids"].item() for b in loader_of(plan, rank, **options)] for rank in range(WORLD)]
    short = [list(loader_of(plan, rank, skip_empty=True, **options)) for rank in range(WORLD)]
    used = sum(any(full[rank][j] >= 0 for rank in range(WORLD)) for j in range(len(full[0])))
    assert {len(batches) for batches in short} == {used}
    assert sum(source < 0 for mine in full for source in mine) == padding


# ---- states inside a step


def saved(plan: Plan, nodes: int | None = NODES, batches: int = 1, **options: Any) -> dict[str, Any]:
    loader = loader_of(plan, 0, nodes, **options)
    for _ in range(batches):
        next(loader)
    return loader.state_dict()


def test_a_state_inside_a_step_names_its_node_groups(stores: dict[str, Path]) -> None:
    """P10: only inside a step, and only if rows were dealt to groups."""
    plan, plain = plan_of(stores), plan_of(stores, locality=())
    assert saved(plan)["node_groups"] == NODES
    assert "node_groups" not in saved(plan, batches=2)
    assert "node_groups" not in saved(plan, 1)
    assert saved(plain) == saved(plain, 1)
    assert saved(plan, batches=2) == plan.state(1)
    assert plan.state(0, 12, num_groups=NODES) == saved(plan)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, 1), (1, 3), (3, 6)])
def test_another_number_of_nodes_starts_the_step_again(stores: dict[str, Path], before: int, after: int) -> None:
    """The message says why and what to pass; "rewind" is silent; "continue" and several workers refuse."""
    plan = plan_of(stores)
    state = saved(plan, before)
    nodes = {1: "1 node"}
    text = (
        f"state was saved with {nodes.get(before, f'{before} nodes')}, and this run has"
        f" {nodes.get(after, f'{after} nodes')}; pass nodes={before}"
    )
    for choice in ("warn", "rewind"):
        loader = loader_of(plan, 2, after, inside_step=choice)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader.load_state_dict(state)
        assert [text in str(each.message) for each in caught] == [True] * (choice == "warn")
        assert (loader.step, loader.step_ended) == (0, True)
        assert torch.equal(next(loader)["input_ids"], next(loader_of(plan, 2, after))["input_ids"])
    with pytest.raises(StateMismatchError, match=text):
        loader_of(plan, 2, after, inside_step="continue").load_state_dict(state)
    options = {"rank": 0, "world_size": WORLD, "microbatch_size": SIZE}
    batches = iter(TokenDataset(plan, nodes=before, **options))
    next(batches)
    with pytest.raises(StateMismatchError, match="pass nodes="):
        iter(TokenDataset(plan, nodes=after, inside_step="continue", **options)).load_state_dict(batches.state_dict())


def test_a_run_continues_inside_a_step_with_other_ranks(stores: dict[str, Path]) -> None:
    """P1, P2: with the same number of nodes, whatever the ranks of a node and their microbatches."""
    plan = plan_of(stores)
    first = [loader_of(plan, rank, fields=("sequence_ids",)) for rank in range(WORLD)]
    used = [n for loader in first for n in next(loader)["sequence_ids"].tolist()]
    for loader_state in {str(loader.state_dict()) for loader in first}:
        assert loader_state == str(first[0].state_dict())
    rest = []
    for rank in range(3):
        options = {"world_size": 3, "microbatch_size": 4, "inside_step": "continue", "fields": ("sequence_ids",)}
        loader = loader_of(pickle.loads(pickle.dumps(plan)), rank, **options)
        loader.load_state_dict(first[0].state_dict())
        rest += next(loader)["sequence_ids"].tolist()
        assert (loader.step, loader.step_ended) == (1, True)
    assert sorted(used + rest) == list(range(BATCH))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # called by torchdata
def test_a_dataset_continues_inside_a_step(stores: dict[str, Path]) -> None:
    """P1: the state of each worker of a StatefulDataLoader, after any number of batches."""
    options = {"rank": 4, "world_size": WORLD, "nodes": NODES, "microbatch_size": 1, "inside_step": "continue"}
    dataset = TokenDataset(plan_of(stores), **options)

    def made() -> StatefulDataLoader:
        return StatefulDataLoader(dataset, batch_size=None, num_workers=2)

    loader, again = made(), made()
    expected = [batch["input_ids"] for batch in made()]
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    again.load_state_dict(loader.state_dict())
    rest = [batch["input_ids"] for batch in again]
    assert len(rest) == len(expected) - 5
    assert all(torch.equal(a, b) for a, b in zip(rest, expected[5:], strict=True))


def test_a_later_source_with_locality_changes_no_earlier_step(stores: dict[str, Path]) -> None:
    """P10: groups follow from the stage of the step. An amendment does not move rows of a step that has begun."""
    before = plan_of({name: stores[name] for name in "bc"}, locality=("b",), num_steps=8)
    source = {"a": {"path": str(stores["a"]), "locality": LOCAL}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        after = before.amended(3, sources=source, weights={"a": 1, "b": 1, "c": 1})
        none_before = plan_of({"c": stores["c"]}, locality=(), num_steps=8)
        some_after = none_before.amended(3, sources=source, weights={"a": 1, "c": 1})
    for plan, amended in ((before, after), (none_before, some_after)):
        loader = loader_of(amended, 4, inside_step="continue")
        loader.load_state_dict(saved(plan))
        assert (loader.step, loader.step_ended) == (0, False)
        for step in range(3):
            rows = [each.rows(step, 4, WORLD, SIZE, NODES).tolist() for each in (plan, amended)]
            assert rows[0] == rows[1]
    assert some_after.num_groups(2, WORLD, NODES) == 1
    assert some_after.num_groups(3, WORLD, NODES) == NODES


def test_a_forged_number_of_groups_is_refused(stores: dict[str, Path]) -> None:
    """The fingerprint covers it; other types and numbers are no state."""
    plan = plan_of(stores)
    for forged in (2, -1, "3", None, 2**70, True):
        with pytest.raises(StateMismatchError):
            loader_of(plan).load_state_dict({**saved(plan), "node_groups": forged})


def test_a_run_without_locality_ignores_nodes(stores: dict[str, Path]) -> None:
    """ORD-8: batches and states are those of one node, also if the number does not divide the ranks."""
    plan = plan_of(stores, locality=())
    for nodes in (2, 5):
        assert ids_of(plan, nodes) == ids_of(plan, 1)
        loader = loader_of(plan, 1, nodes, inside_step="continue")
        loader.load_state_dict(saved(plan, 1))
        assert not loader.step_ended


# ---- the number of nodes


def test_nodes_that_do_not_divide_the_ranks_warn(stores: dict[str, Path]) -> None:
    """The run then has one group, and the message lists what divides."""
    plan = plan_of(stores)
    with pytest.warns(UserWarning, match=r"nodes: expected a divisor of world_size 6, found 4.*one of \[1, 2, 3, 6\]"):
        loader = loader_of(plan, 1, 4)
    assert torch.equal(next(loader)["input_ids"], next(loader_of(plan, 1, 1))["input_ids"])
    for nodes in (0, -2):
        with pytest.raises(ValueError, match=f"nodes: expected 1 or more, found {nodes}"):
            loader_of(plan, 1, nodes)
    for ask in (plan.batch, plan.rows, plan.documents):
        with pytest.raises(ConfigError, match="nodes: expected 1 or more, found 0"):
            ask(0, nodes=0)
    with pytest.raises(ValueError, match="nodes: expected 1 or more, found -1"):
        DataRank(0, 2, -1)


TORCHRUN = {"WORLD_SIZE": "8", "RANK": "5", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_PROCID": "3"}


@pytest.mark.parametrize(
    ("variables", "nodes"),
    [
        ({}, 1),
        (TORCHRUN, 2),
        ({**TORCHRUN, "WORLD_SIZE": "16"}, 1),  # ranks of tensor parallelism share their rows
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "3"}, 1),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "two"}, 1),
        ({**SLURM, **TORCHRUN}, 2),  # Slurm started torchrun
        (SLURM, 4),
        ({**SLURM, "SLURM_DISTRIBUTION": "block:cyclic"}, 4),
        ({**SLURM, "SLURM_DISTRIBUTION": "cyclic"}, 1),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1(x2)"}, 1),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8"}, 1),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "4"}, 1),
    ],
)
def test_the_launcher_gives_the_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], nodes: int
) -> None:
    """P2: from variables that are the same in all processes, so that all ranks use the same number; 1 if in doubt."""
    for name in (*TORCHRUN, *SLURM, "SLURM_DISTRIBUTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [DataRank(rank, 8).nodes for rank in range(8)] == [nodes] * 8
    assert DataRank(5, 8, 8).nodes == 8
    assert pickle.loads(pickle.dumps(DataRank(5, 8))).nodes == nodes


def test_loaders_use_the_nodes_of_the_launcher(stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A given number takes precedence, over that of a DataRank too."""
    plan = plan_of(stores)
    expected = {nodes: next(loader_of(plan, 5, nodes))["input_ids"] for nodes in (1, 2, 3)}
    for name, value in {**TORCHRUN, "WORLD_SIZE": str(WORLD)}.items():
        monkeypatch.setenv(name, value)
    options: dict[str, Any] = {"microbatch_size": SIZE}
    for loader, nodes in [
        (TokenLoader(plan, **options), 2),
        (TokenLoader(plan, nodes=3, **options), 3),
        (TokenLoader(plan, rank=5, world_size=WORLD, **options), 2),
        (TokenLoader(plan, rank=DataRank(5, WORLD, 3), **options), 3),
        (TokenLoader(plan, rank=DataRank(5, WORLD, 3), nodes=1, **options), 1),
    ]:
        assert torch.equal(next(pickle.loads(pickle.dumps(loader)))["input_ids"], expected[nodes])


def test_a_trace_names_the_rank_of_each_row(stores: dict[str, Path]) -> None:
    """`trace` lists the rows of a rank, and the rank of a document's row, as the loader deals them."""
    plan = plan_of(stores)
    assert trace_step(plan, 1, WORLD, SIZE, nodes=NODES).nodes == NODES
    assert trace_step(plan, 1, WORLD, SIZE, nodes=4).nodes == 1
    decoder = Decoder.of(plan.stores["a"])
    rows = [each.row for each in trace_rows(plan, decoder, 1, 4, WORLD, SIZE, nodes=NODES)]
    assert rows == plan.rows(1, 4, WORLD, SIZE, NODES).tolist()
    found = list(appearances(plan, "a", 3, world_size=WORLD, microbatch_size=SIZE, nodes=NODES))
    assert found
    assert all(each.row in plan.rows(each.step, each.rank, WORLD, SIZE, NODES) for each in found)


def test_grain_names_the_nodes_that_matter(stores: dict[str, Path]) -> None:
    """Grain compares this text when it restores a checkpoint, whose state is a number of records."""
    options = {"rank": 0, "world_size": WORLD, "microbatch_size": SIZE}
    local, plain = plan_of(stores), plan_of(stores, locality=())
    assert "3 nodes" in repr(MicrobatchSource(local, nodes=3, **options))
    assert repr(MicrobatchSource(plain, nodes=3, **options)) == repr(MicrobatchSource(plain, **options))


# ---- how many rows are read from lanes of other groups

CASES = [  # shares, lanes, sequences per step, highest share of rows on 8, 32 and 128 nodes
    ((1,), (1024,), 1024, (0, 0, 0)),
    ((1,), (4096,), 1024, (0.005, 0.01, 0.05)),
    ((6, 3, 1), (1024, 1024, 512), 1024, (0.012, 0.05, 0.2)),
    ((1,) * 20, (256,) * 20, 1024, (0.004, 0.007, 0.06)),
    ((1, 1), (1024, 1024), 1024, (0, 0, 0)),
]


@pytest.mark.parametrize(("shares", "lanes", "size", "most"), CASES)
def test_few_rows_leave_their_group(shares: tuple, lanes: tuple, size: int, most: tuple) -> None:
    """ORD-21: also with sources that are always equally far, and with the short turns at the end of an epoch."""
    table, windows = interleave(shares), 1024 * 300 + 77
    for nodes, limit in zip((8, 32, 128), most, strict=True):
        groups = NodeGroups([Lanes.of(windows, 64, count) for count in lanes], nodes)
        moved = 0
        steps = [0, 1, 7, 33, 150, 299]
        for step in steps:
            turns, slots = np.divmod(np.arange(step * size, (step + 1) * size), table.period)
            sources = table.source[slots].astype(np.int64)
            rows = np.stack([sources, turns * np.array(shares)[sources] + table.earlier[slots]], axis=1)
            moved += int((groups.owners(rows)[groups.deal(rows)] != np.arange(nodes)[:, np.newaxis]).sum())
        assert moved <= limit * size * len(steps)
