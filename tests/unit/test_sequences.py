"""SequenceDataset: every sequence of a plan by its number, row by row what plan.batch gives."""

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from tests.conftest import random_documents
from tests.support.tensors import same
from tokenstore import Plan, SequenceDataset, TokenLoader

LENGTH = 16


@pytest.fixture
def paths(make_store: Callable[..., Path]) -> dict[str, Path]:
    return {name: make_store(name, random_documents(i, 80, 40), length_index=True) for i, name in enumerate("ab")}


@pytest.fixture
def plan(paths: dict[str, Path]) -> Plan:
    """Two stages with batches of 6 and 10, skipped steps in both, and rows of padding at the end."""
    stages = [{"from_step": 3, "weights": {"a": 1, "b": 2}, "global_batch_size": 10}]
    options = {"stages": stages, "skip_steps": [(1, 2), (4, 5)], "num_steps": "all_exhausted", "last_batch": "pad"}
    return Plan.of(paths, LENGTH, 6, weights={"a": 2, "b": 1}, **options)


def given(plan: Plan) -> list[int]:
    return [step for step in range(plan.num_steps) if not plan.schedule.is_skipped(step)]


def test_it_is_the_plan_row_by_row(plan: Plan) -> None:
    """Number cursor(k) + r is row r of plan.batch(k); skipped steps keep their numbers, whose sequences are available too."""
    dataset = SequenceDataset(plan)
    assert len(dataset) == plan.schedule.cursor(plan.num_steps) == 3 * 6 + (plan.num_steps - 3) * 10
    for step in given(plan):
        first, batch = plan.schedule.cursor(step), plan.batch(step)
        rows = dataset.__getitems__(range(first, first + plan.global_batch_size(step)))
        for name in ("input_ids", "targets"):
            assert (torch.stack([row[name] for row in rows]).numpy() == batch[name]).all()
    assert dataset[6]["input_ids"].shape == (LENGTH,)  # of step 1, which is skipped


def test_numbers_are_those_of_python(plan: Plan) -> None:
    """Negative numbers count from the end, numpy's and torch's are integers, the rest is refused."""
    dataset = SequenceDataset(plan)
    last = len(dataset) - 1
    for number in (-1, np.int32(last), torch.tensor(last), last):
        assert torch.equal(dataset[number]["input_ids"], dataset.__getitems__([0, last])[1]["input_ids"])
    assert dataset.__getitems__([]) == []
    for number in (last + 1, -last - 2):
        with pytest.raises(IndexError, match=rf"expected a number in 0\.\.{last}, found {number}"):
            dataset[number]
    with pytest.raises(TypeError):
        dataset[1.0]
    assert sum(1 for _ in dataset) == last + 1


def test_an_endless_plan_has_every_number(paths: dict[str, Path]) -> None:
    """len() is a TypeError, and there is no end to count from; far numbers cost what near ones do."""
    plan = Plan.of(paths, LENGTH, 4)
    dataset = SequenceDataset(plan)
    with pytest.raises(TypeError, match="endless"):
        len(dataset)
    with pytest.raises(IndexError, match="found -1"):
        dataset[-1]
    with pytest.raises(IndexError, match=f"found {2**62}"):
        dataset[2**62]
    far = 10**12
    assert (dataset[4 * far + 3]["targets"].numpy() == plan.batch(far)["targets"][3]).all()


@pytest.mark.parametrize("format", ["torch", "hf", "torchtitan", "megatron", "nanotron", "rows"])
def test_rows_in_every_format(plan: Plan, format: str) -> None:
    """Collated by DataLoader, rows are the batch that TokenLoader gives in the same format."""
    fields = ("input_ids", "targets", "position_ids", "document_ids", "source_ids") if format == "torch" else None
    dataset = SequenceDataset(plan, format=format, fields=fields)
    rows = next(iter(DataLoader(dataset, batch_size=6)))
    batch = next(iter(TokenLoader(plan, format=format, fields=fields)))
    assert type(rows) in (dict, list)
    pairs = [(rows, batch)] if isinstance(batch, dict) else [(rows[0], batch[0]), ({"l": rows[1]}, {"l": batch[1]})]
    for one, other in pairs:
        assert list(one) == list(other)
        assert all(same(one[name], other[name]) for name in other)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"format": "hf_flash"},
            r"format: expected one of \['hf', 'megatron', 'nanotron', 'rows', 'torch', 'torchtitan'\]",
        ),
        ({"format": "torchtitan_flat"}, "found 'torchtitan_flat'"),
        ({"fields": ("input_ids", "cu_seqlens")}, r"for format 'torch', found \['cu_seqlens'\]"),
        ({"format": "hf", "fields": ("max_seqlen",)}, r"for format 'hf', found \['max_seqlen'\]"),
    ],
)
def test_what_is_of_a_whole_batch_is_refused(plan: Plan, options: dict, text: str) -> None:
    """Rows laid end to end, and their borders, are no rows."""
    with pytest.raises(ValueError, match=text):
        SequenceDataset(plan, **options)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork")])
def test_any_sampler_any_workers(plan: Plan, workers: int, method: str | None) -> None:
    """P2: a sampler decides the order; every sequence comes once, whoever reads it."""
    dataset = SequenceDataset(plan)
    dataset[0]  # a maker is at hand when workers are forked
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    order = list(RandomSampler(dataset, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(dataset, batch_size=7, sampler=sampler, num_workers=workers, multiprocessing_context=method)
    got = torch.cat([batch["input_ids"] for batch in loader])
    assert torch.equal(got, torch.stack([row["input_ids"] for row in dataset.__getitems__(order)]))


def test_copies_hold_no_addresses(plan: Plan) -> None:
    """A copied or pickled dataset reads through maps of its own; it is small."""
    dataset = SequenceDataset(plan)
    expected = dataset[5]["input_ids"]
    data = pickle.dumps(dataset)
    assert len(data) < 65536
    for again in (pickle.loads(data), copy.deepcopy(dataset)):
        assert again._maker is None
        assert torch.equal(again[5]["input_ids"], expected)


def test_threads_share_a_dataset(plan: Plan) -> None:
    """Readers in many threads, as some loaders have them, are given what one is."""
    dataset = SequenceDataset(plan)
    numbers = list(range(len(dataset)))
    expected = torch.stack([row["input_ids"] for row in dataset.__getitems__(numbers)])
    got: dict[int, torch.Tensor] = {}

    def read(first: int) -> None:
        got.update({n: dataset[n]["input_ids"] for n in numbers[first::4]})

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.stack([got[n] for n in numbers]), expected)
