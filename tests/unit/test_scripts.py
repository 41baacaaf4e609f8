"""Loaders for training scripts that are no packages: the contracts of nanoGPT, nanochat and modded-nanogpt."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_documents
from tests.support.trainers.microbatches import GIVEN, LENGTH, microbatches, same, small_plan, small_store
from tokenstore import Plan
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.trainers.scripts import GetBatch, batches_of, batches_with_state, varlen_stream


@pytest.fixture
def plan(make_store: Any) -> Plan:
    return small_plan(small_store(make_store))


@pytest.fixture
def packed(make_store: Any) -> Plan:
    path = make_store("p", random_documents(5, 60, 14, vocab_size=64), vocab_size=64, length_index=True)
    return Plan.of(path, sequence_length=LENGTH, global_batch_size=8, num_steps=4)


def get_batch(plan: Plan, start: int = 0) -> GetBatch:
    return GetBatch({"train": plan, "val": plan}, 4, accumulation=2, start=lambda: start)


class TestNanoGPT:
    def test_batches_follow_the_plan_from_the_number_of_iterations(self, plan: Plan) -> None:
        """P1: a batch is fetched ahead in each iteration, and that is no part of the position."""
        for start, given in (0, GIVEN), (2, GIVEN[2:]):
            get = get_batch(plan, start)
            batches = [get("train") for _ in range(2 * len(given))]
            assert same([x for x, _ in batches], microbatches(plan, given, size=4))
            targets = microbatches(plan, given, size=4, field="targets")
            assert same([y for _, y in batches], [np.where(each == -100, -1, each) for each in targets])

    def test_a_plan_that_ends_begins_again(self, plan: Plan) -> None:
        get = get_batch(plan, len(GIVEN) - 1)
        batches = [get("train")[0] for _ in range(3)]
        assert same(batches, microbatches(plan, (GIVEN[-1], 0), size=4)[:3])

    def test_an_estimate_begins_anew_and_training_keeps_its_position(self, plan: Plan) -> None:
        get = get_batch(plan)
        wanted = microbatches(plan, GIVEN, size=4)
        assert same([get("train")[0] for _ in range(3)], wanted[:3])
        with torch.no_grad():
            first = [get(split)[0] for split in ("train", "val") for _ in range(2)]
        assert same([get("train")[0]], wanted[3:4])
        with torch.no_grad():
            second = [get(split)[0] for split in ("train", "val") for _ in range(2)]
        assert same(first, wanted[:2] * 2)
        assert same(second, wanted[:2] * 2)

    def test_another_accumulation_is_refused(self, plan: Plan) -> None:
        with pytest.raises(ConfigError, match="gradient_accumulation_steps: expected 2"):
            GetBatch({"train": plan}, 4, accumulation=3, start=lambda: 0)


class TestNanochat:
    def test_a_saved_state_begins_with_the_batch_that_was_not_trained(self, plan: Plan) -> None:
        """P1: the loop has fetched a batch when it saves, between steps and inside one."""
        wanted = microbatches(plan, GIVEN, size=4)
        for trained in 0, 3, 4:
            loader = batches_with_state(plan, 4, LENGTH)
            x, _, state = next(loader)
            seen = []
            for _ in range(trained):
                seen.append(x)
                x, _, state = next(loader)
            resumed = batches_with_state(plan, 4, LENGTH, resume_state_dict=state)
            assert same(seen, wanted[:trained])
            assert same([x for x, _, _ in islice(resumed, len(wanted) - trained)], wanted[trained:])
            assert {"epoch", "pq_idx", "rg_idx"} <= set(state)

    def test_the_next_pass_has_another_epoch(self, plan: Plan) -> None:
        loader = batches_with_state(plan, 8, LENGTH)
        found = list(islice(loader, len(GIVEN) + 1))
        assert [state["epoch"] for _, _, state in found] == [1] * len(GIVEN) + [2]
        assert same([found[-1][0]], microbatches(plan, GIVEN[:1]))
        resumed = batches_with_state(plan, 8, LENGTH, resume_state_dict=found[-1][2])
        assert next(resumed)[2] == found[-1][2]

    def test_the_state_of_another_run_is_refused(self, plan: Plan, make_store: Any) -> None:
        *_, state = next(batches_with_state(small_plan(small_store(make_store, "b"), seed=2), 4, LENGTH))
        with pytest.raises(StateMismatchError):
            batches_with_state(plan, 4, LENGTH, resume_state_dict=state)

    def test_validation_begins_at_the_start(self, plan: Plan) -> None:
        wanted = microbatches(plan, GIVEN, size=4)
        assert same([x for x, _ in islice(batches_of(plan, 4, LENGTH), len(wanted))], wanted)

    def test_another_length_is_refused(self, plan: Plan) -> None:
        with pytest.raises(ConfigError, match=f"sequence length: expected {LENGTH}"):
            batches_of(plan, 4, LENGTH + 1)


class TestModdedNanoGPT:
    def test_batches_are_flat_and_begin_with_documents(self, packed: Plan) -> None:
        """cum_lengths are the starts of the pieces, filled with the number of tokens."""
        batches = list(varlen_stream(packed, 4 * LENGTH, 40, no_target=63))
        wanted = microbatches(packed, range(4), size=4)
        targets = microbatches(packed, range(4), size=4, field="targets")
        assert same([inputs for inputs, _, _ in batches], [each.ravel() for each in wanted])
        assert same([each for _, each, _ in batches], [np.where(each == -100, 63, each).ravel() for each in targets])
        for inputs, found, cum_lengths in batches:
            assert (inputs.dtype, found.dtype, cum_lengths.dtype) == (torch.int32, torch.int64, torch.int32)
            starts = cum_lengths[cum_lengths < 4 * LENGTH].tolist()
            assert cum_lengths.shape == (40,)
            assert set(range(0, 4 * LENGTH, LENGTH)) <= set(starts)
            assert starts == sorted(set(starts))

    def test_the_size_can_be_changed_by_sending(self, packed: Plan) -> None:
        stream = varlen_stream(packed, 8 * LENGTH, 80, no_target=0)
        first, *_ = next(stream)
        second, *_ = stream.send((8 * LENGTH, LENGTH, 2))  # two microbatches of half the size
        assert same([second], [each.ravel() for each in microbatches(packed, [1], size=4)[:1]])
        assert first.shape == (8 * LENGTH,)

    def test_bigrams_are_two_more_items(self, packed: Plan) -> None:
        inputs, _, _, hashed, array = next(varlen_stream(packed, 8 * LENGTH, 80, no_target=0, bigrams=lambda x: x + 1))
        assert torch.equal(hashed, inputs + 1)
        assert np.array_equal(array, inputs.numpy() + 1)

    def test_rows_that_begin_inside_documents_are_refused(self, plan: Plan, packed: Plan) -> None:
        with pytest.raises(ConfigError, match="begin inside documents"):
            varlen_stream(plan, 4 * LENGTH, 40, no_target=0)
        with pytest.raises(ConfigError, match="num_tokens: expected a multiple of"):
            next(varlen_stream(packed, 4 * LENGTH + 1, 40, no_target=0))

    def test_a_stream_starts_at_a_step(self, packed: Plan, tmp_path: Path) -> None:
        inputs, *_ = next(varlen_stream(packed, 8 * LENGTH, 80, no_target=0, step=2))
        assert same([inputs], [each.ravel() for each in microbatches(packed, [2])])
