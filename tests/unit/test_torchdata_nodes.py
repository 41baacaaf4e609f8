"""TokenNode under the real torchdata.nodes: order, states, world sizes, workers."""

import gc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.nodes import BaseNode, Loader, ParallelMapper, Prefetcher

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.trainers.torchdata import TokenNode

Wrap = Callable[[TokenNode], BaseNode]

pytestmark = [
    # A thread of torchdata ends when its mapper is collected. If that happens in the thread itself, it joins itself.
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <function _\w+Mapper\w*.__del__:pytest.PytestUnraisableExceptionWarning"
    ),
    # A worker process may end while a thread of torchdata waits for a batch from it.
    pytest.mark.filterwarnings(
        r"ignore:Exception in thread .*\(_sort_worker\):pytest.PytestUnhandledThreadExceptionWarning"
    ),
]


@pytest.fixture(autouse=True, scope="module")
def ended() -> Iterator[None]:
    """End the pipelines that a test abandoned, so that they do not end in another test."""
    yield
    gc.collect()


def twice(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A function for workers: doubles the ids; `ids` halves them again."""
    return {name: tensor * 2 for name, tensor in batch.items()}


def bare(node: TokenNode) -> BaseNode:
    """The node itself, with doubled ids."""
    return ParallelMapper(node, twice, num_workers=0)


WRAPS: dict[str, Wrap] = {
    "bare": bare,
    "prefetch": lambda node: Prefetcher(bare(node), 3),
    "rare_snapshots": lambda node: Prefetcher(bare(node), 3, snapshot_frequency=4),
    "threads": lambda node: ParallelMapper(node, twice, num_workers=2, method="thread"),
    "processes": lambda node: ParallelMapper(
        node, twice, num_workers=2, method="process", multiprocessing_context="forkserver"
    ),
}


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return small_plan(small_store(make_store))


@pytest.fixture(params=[name for name in WRAPS if name != "processes"])
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """A pipeline over a node. Pipelines with processes have their own test."""
    return WRAPS[request.param]


def loader(plan: Plan, wrap: Wrap, rank: int = 0, world_size: int = 1, size: int | None = 2) -> Loader:
    options = {"microbatch_size": size, "inside_step": "continue"}
    return Loader(wrap(TokenNode(TokenLoader(plan, rank=rank, world_size=world_size, **options))))


def ids(batches: Any) -> list[torch.Tensor]:
    return [batch["input_ids"] // 2 for batch in batches]


def test_a_pass_yields_the_plan(plan: Plan, wrap: Wrap) -> None:
    """P2: every microbatch of a rank once, in the order of the plan, in every pass."""
    mine = loader(plan, wrap, 1, 2)
    for _ in range(2):
        assert same(ids(mine), microbatches(plan, GIVEN, 1, 2, 2))


@pytest.mark.parametrize("given", [0, 1, 3, 4, 7, 10])
def test_a_state_continues_at_the_next_microbatch(plan: Plan, wrap: Wrap, given: int) -> None:
    """P1: prefetched batches do not count; after a whole pass the next one follows."""
    first = loader(plan, wrap, 0, 2)
    iterator = iter(first)
    assert len(list(islice(iterator, given))) == given
    state = first.state_dict()
    again = loader(plan, wrap, 0, 2)
    again.load_state_dict(state)
    wanted = microbatches(plan, GIVEN, 0, 2, 2)
    assert same(ids(again), wanted[given:] or wanted)
    assert same(ids(again), wanted)


def test_a_resumed_run_can_be_resumed(plan: Plan, wrap: Wrap) -> None:
    """The state of a resumed run is as good as any other."""
    wanted, done = microbatches(plan, GIVEN, 0, 1, 2), 0
    state: dict = {}
    for count in (3, 5, 6):
        mine = loader(plan, wrap)
        if state:
            mine.load_state_dict(state)
        assert same(ids(islice(iter(mine), count)), wanted[done : done + count])
        state, done = mine.state_dict(), done + count


@pytest.mark.parametrize("name", ["bare", "prefetch", "threads"])
@pytest.mark.parametrize(("world_size", "size"), [(1, 2), (4, 2), (2, 1), (8, None)])
def test_a_state_resumes_in_another_world(plan: Plan, name: str, world_size: int, size: int | None) -> None:
    """P2: saved by one of two ranks after a whole step, resumed by any number of ranks with any microbatch size."""
    first = loader(plan, WRAPS[name], 1, 2)
    assert len(list(islice(iter(first), 4))) == 4
    state = first.state_dict()
    for rank in range(world_size):
        again = loader(plan, WRAPS[name], rank, world_size, size)
        again.load_state_dict(state)
        assert same(ids(again), microbatches(plan, GIVEN[2:], rank, world_size, size))


@pytest.mark.deep
def test_worker_processes_do_not_change_the_order(plan: Plan) -> None:
    """P1, P2: also when resuming from a state."""
    mine, again = (loader(plan, WRAPS["processes"], 0, 2) for _ in range(2))
    iterator = iter(mine)
    wanted = microbatches(plan, GIVEN, 0, 2, 2)
    assert same(ids(islice(iterator, 3)), wanted[:3])
    again.load_state_dict(mine.state_dict())
    assert same(ids(iterator), wanted[3:])  # iterate to the end: torchdata kills busy workers in the middle of a batch
    assert same(ids(again), wanted[3:])


def test_an_endless_plan_can_be_prefetched_and_resumed(make_store: Callable[..., Path]) -> None:
    """It has no length."""
    plan = small_plan(small_store(make_store), num_steps=None, skip_steps=[])
    first = loader(plan, WRAPS["prefetch"], size=None)
    assert len(list(islice(iter(first), 3))) == 3
    again = loader(plan, WRAPS["prefetch"], size=None)
    again.load_state_dict(first.state_dict())
    assert same(ids(islice(iter(again), 2)), microbatches(plan, (3, 4)))


def test_a_node_does_not_move_its_loader(plan: Plan) -> None:
    """It copies the loader, whose position is the start of the node."""
    source = TokenLoader(plan, step=5)
    node = TokenNode(source)
    for _ in range(2):
        node.reset()
        assert same([batch["input_ids"] for batch in node], microbatches(plan, (5, 6)))
    assert source.step == 5


def test_a_state_of_another_run_is_refused(plan: Plan, make_store: Callable[..., Path]) -> None:
    """P10: with the errors of the loader, also for a rest of a step that does not divide."""
    other = small_plan(plan.stores["a"].path, seed=1)
    first = TokenNode(TokenLoader(plan, microbatch_size=2))
    assert len(list(islice(first, 5))) == 5
    with pytest.raises(StateMismatchError, match="seed was 0, is 1"):
        TokenNode(TokenLoader(other)).reset(first.state_dict())
    with pytest.raises(ConfigError, match="6 sequences left in step 1"):
        TokenNode(TokenLoader(plan, rank=0, world_size=4)).reset(first.state_dict())


def test_a_state_fits_a_loader(plan: Plan) -> None:
    """The state of a node can be loaded into a TokenLoader."""
    node = TokenNode(TokenLoader(plan))
    assert node.state_dict() == TokenLoader(plan).state_dict()
    next(node)
    assert node.state_dict() == plan.state(1)
