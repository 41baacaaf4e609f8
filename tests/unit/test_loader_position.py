"""The position of a TokenLoader: loops, next(), evaluation from the start, states loaded anywhere, steps begun."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return small_plan(small_store(make_store))


def ids(batches: Iterable[dict[str, torch.Tensor]]) -> list[np.ndarray]:
    return [batch["input_ids"].numpy() for batch in batches]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_is_its_own_iterator(plan: Plan, prefetch: int) -> None:
    """next(loader), loops left early and iterators kept share one position: every microbatch once, in order."""
    loader = TokenLoader(plan, microbatch_size=4, prefetch=prefetch)
    got = [next(loader)]
    kept = iter(loader)
    got += [next(kept), next(loader), *islice(loader, 3), next(kept), *loader]
    assert same(ids(got), microbatches(plan, GIVEN, size=4))


def test_the_end_of_a_plan_lasts_until_the_next_loop(plan: Plan) -> None:
    """next() has nothing more to give after the last microbatch; a new loop begins at step 0."""
    loader = TokenLoader(plan, step=6)
    assert len(ids(loader)) == 1
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(loader)
    assert loader.state_dict() == plan.state(7)
    assert same(ids(loader), microbatches(plan, GIVEN))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_evaluation_begins_at_the_start_each_time(plan: Plan, prefetch: int) -> None:
    """With restart=True a loop left early does not move the next one; without it, it does."""
    fresh = TokenLoader(plan, step=1, restart=True, prefetch=prefetch)
    wanted = microbatches(plan, GIVEN[1:])
    for most in (2, 2, 99, 1, 99):
        assert same(ids(islice(fresh, most)), wanted[:most])
    training = TokenLoader(plan, prefetch=prefetch)
    assert same(ids(islice(training, 2)) + ids(islice(training, 3)), microbatches(plan, GIVEN))


def test_a_state_counts_once_for_an_evaluation(plan: Plan) -> None:
    """A state loaded decides where the next loop begins, not the one after it."""
    fresh = TokenLoader(plan, restart=True)
    fresh.load_state_dict(plan.state(5))
    assert same(ids(fresh), microbatches(plan, (5, 6)))
    assert same(ids(fresh), microbatches(plan, GIVEN))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_state_loaded_in_a_loop_moves_it(plan: Plan, prefetch: int) -> None:
    """P1: the next microbatch is that of the state, whatever was made ahead."""
    loader = TokenLoader(plan, prefetch=prefetch)
    got = []
    for batch in loader:
        got.append(batch)
        if len(got) == 2:
            loader.load_state_dict(plan.state(5))
    assert same(ids(got), microbatches(plan, (0, 1, 5, 6)))


def test_an_error_is_no_end(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: after an error while a batch was made, the same batch is made again; it is not taken for the end of the plan."""
    loader = TokenLoader(plan)
    next(loader)
    loader.close()
    with monkeypatch.context() as patch:
        patch.setattr("tokenstore.torch_data.tensors.BatchMaker._make", lambda *_: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                next(loader)
    assert same(ids(loader), microbatches(plan, GIVEN[1:]))


# ---- states inside a step


def inside(plan: Plan, given: int = 4) -> dict[str, Any]:
    """A state inside step 1."""
    return plan.state(1, plan.schedule.cursor(1) + given)


def state_of_an_iterator(plan: Plan) -> dict[str, Any]:
    """That of a dataset's iterator after 6 microbatches of 2, inside step 1."""
    iterator = iter(TokenDataset(plan, microbatch_size=2))
    assert len(list(islice(iterator, 6))) == 6
    return iterator.state_dict()


def test_a_state_inside_a_step_is_warned_of(plan: Plan) -> None:
    """The message names the step and both remedies; training continues with the rest of it."""
    loader = TokenLoader(plan, microbatch_size=2)
    with pytest.warns(
        UserWarning, match=r"inside step 1, after 4 of its 8 .* inside_step=\"rewind\" .* plan\.state\(1\)"
    ):
        loader.load_state_dict(inside(plan))
    assert same(ids(loader), microbatches(plan, GIVEN[1:], size=2)[2:])


@pytest.mark.parametrize(("choice", "left_out"), [("continue", 2), ("rewind", 0)])
def test_what_to_do_inside_a_step_is_a_choice(plan: Plan, choice: str, left_out: int) -> None:
    """Chosen, there is no warning: the rest of the step, or the whole of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = TokenLoader(plan, microbatch_size=2, inside_step=choice)
        loader.load_state_dict(inside(plan))
        iterator = iter(TokenDataset(plan, microbatch_size=2, inside_step=choice))
        iterator.load_state_dict(state_of_an_iterator(plan))
    assert loader.step_ended == (choice == "rewind")
    assert same(ids(loader), microbatches(plan, GIVEN[1:], size=2)[left_out:])
    assert same(ids(iterator), microbatches(plan, GIVEN[1:], size=2)[left_out:])


def test_a_rewound_step_fits_any_number_of_ranks(plan: Plan) -> None:
    """P2: what would not divide among the ranks is started again."""
    with pytest.raises(ConfigError, match=r"6 sequences left in step 1 .* again with inside_step=\"rewind\""):
        TokenLoader(plan, rank=0, world_size=4).load_state_dict(inside(plan, 2))
    loader = TokenLoader(plan, rank=3, world_size=4, inside_step="rewind")
    loader.load_state_dict(inside(plan, 2))
    assert same(ids(loader), microbatches(plan, GIVEN[1:], 3, 4))


def test_states_of_steps_are_loaded_without_a_word(plan: Plan) -> None:
    """plan.state(k) is always between steps."""
    loader = TokenLoader(plan, microbatch_size=2)
    loader.load_state_dict(plan.state(4))
    assert same(ids(loader), microbatches(plan, GIVEN[2:], size=2))


def test_an_unknown_choice_is_refused(plan: Plan) -> None:
    """The message lists the choices."""
    for make in (TokenLoader, TokenDataset):
        with pytest.raises(
            ValueError, match=r"inside_step: expected one of \['warn', 'continue', 'rewind'\], found 'skip'"
        ):
            make(plan, inside_step="skip")


# ---- loops that fetch a batch before they save


def with_states(loader: TokenLoader) -> Iterator[tuple[Any, Any]]:
    """Each batch with the state in front of it, as README says: what nanochat's loop asks for."""
    while True:
        state = loader.state_dict()
        yield next(loader), state


def trained(loader: TokenLoader, steps: int) -> tuple[list[Any], Any]:
    """A loop that fetches the next batch inside the step before: the batches trained in `steps`, and the state it saves."""
    batches = with_states(loader)
    got, (batch, state) = [], next(batches)
    for _ in range(steps * 4):
        got.append(batch)
        batch, state = next(batches)
    return got, state


@pytest.mark.parametrize("save", ["in front", "by step"])
def test_a_loop_that_reads_ahead_loses_nothing(plan: Plan, save: str) -> None:
    """P1: with the state in front of the batch that was fetched, or plan.state of the first step not trained."""
    wanted = microbatches(plan, GIVEN, size=2)
    got, state = trained(TokenLoader(plan, microbatch_size=2), 2)
    assert same(ids(got), wanted[:8])
    again = TokenLoader(plan, microbatch_size=2)
    again.load_state_dict(state if save == "in front" else plan.state(plan.step_at(2)))
    assert same(ids(again), wanted[8:])


# ---- microbatches without tokens


@pytest.fixture
def evaluation(make_store: Callable[..., Path]) -> Plan:
    """13 documents of one row each, 12 rows per step: the last step has one document and 11 empty rows somewhere."""
    path = make_store("v", [[number] * 5 for number in range(1, 14)], length_index=True)
    return Plan.of(path, sequence_length=8, global_batch_size=12, packing="none", num_steps="all_exhausted")


@pytest.mark.parametrize(("world_size", "size", "count"), [(1, 1, 13), (2, 1, 7), (2, 3, 3), (3, 2, 3), (1, None, 2)])
def test_empty_microbatches_are_skipped_on_all_ranks_alike(
    evaluation: Plan, world_size: int, size: int | None, count: int
) -> None:
    """P5: only those that hold no token on any rank; every rank has as many, and every document comes once."""
    seen: list[int] = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "microbatch_size": size, "skip_empty": True}
        loader = TokenLoader(evaluation, **options)
        got = ids(loader)
        assert len(got) == len(loader) == len(TokenDataset(evaluation, **options)) == count
        assert same(got, ids(TokenDataset(evaluation, **options)))
        assert loader.state_dict() == evaluation.state(2)
        assert loader.microbatches_per_step == 1
        seen += [row[0] for batch in got for row in batch if row[0]]
    assert sorted(seen) == list(range(1, 14))


def test_a_state_among_empty_microbatches(evaluation: Plan) -> None:
    """P1, P2: saved and resumed with other microbatches, what is left of the last step is skipped or given as it should."""
    options = {"skip_empty": True, "inside_step": "continue"}
    for given in range(13):
        first = TokenLoader(evaluation, microbatch_size=1, **options)
        seen = [int(batch[0, 0]) for batch in ids(islice(first, given))]
        again = TokenLoader(evaluation, rank=0, world_size=1, microbatch_size=1, **options)
        again.load_state_dict(first.state_dict())
        assert sorted(seen + [int(batch[0, 0]) for batch in ids(again)]) == list(range(1, 14))


def test_full_plans_have_no_empty_microbatches(plan: Plan) -> None:
    """Nothing is skipped where nothing is empty."""
    assert same(ids(TokenLoader(plan, microbatch_size=1, skip_empty=True)), microbatches(plan, GIVEN, size=1))
