"""`dtype`, `ignore_index` and rows of L + 1 tokens. tests/property/test_batch_settings.py has them with all other settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import random_documents
from tests.support.stores.masked import random_masked, write_masked
from tests.support.tensors import same
from tokenstore import Plan, SequenceDataset, TokenDataset, TokenLoader

LENGTH, BATCH = 16, 6


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return Plan.of(make_store("a", random_documents(5, 60, 40), length_index=True), LENGTH, BATCH, num_steps=4)


@pytest.fixture
def wide(make_store: Callable[..., Path]) -> Plan:
    """Ids that need 17 bits."""
    path = make_store("wide", random_documents(5, 60, 40, 70_000), vocab_size=70_000, length_index=True)
    return Plan.of(path, LENGTH, BATCH, num_steps=4)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.int64, torch.int64),
        ("int32", torch.int32),
        ("uint16", torch.uint16),
        (torch.uint32, torch.uint32),
        ("stored", torch.uint16),
    ],
)
def test_ids_have_the_type_and_all_else_is_int64(plan: Plan, dtype: Any, expected: torch.dtype) -> None:
    """In loaders and datasets; names and torch's own types are accepted."""
    fields = ("position_ids", "input_ids", "targets")
    wanted = next(TokenLoader(plan, fields=fields))
    wanted["input_ids"] = wanted["input_ids"].to(expected)
    loader, dataset = (make(plan, fields=fields, dtype=dtype) for make in (TokenLoader, TokenDataset))
    for batch in (next(loader), next(iter(dataset))):
        assert list(batch) == list(fields)
        assert all(same(batch[name], wanted[name]) for name in fields)
    row = SequenceDataset(plan, fields=fields, dtype=dtype)[2]
    assert all(same(row[name], wanted[name][2]) for name in fields)


def test_large_ids_fit(wide: Plan) -> None:
    """A store of uint32 gives the same ids in every type that holds them."""
    expected = next(TokenLoader(wide))["input_ids"]
    assert int(expected.max()) > 1 << 16
    for dtype in ("int32", "uint32", "stored"):
        assert torch.equal(next(TokenLoader(wide, dtype=dtype))["input_ids"].long(), expected)


def test_a_narrow_type_for_a_small_vocabulary_in_wide_files(wide: Plan, plan: Plan) -> None:
    """A type that cannot hold every id of the vocabulary is refused, and so is an unknown one."""
    with pytest.raises(
        ValueError, match=r"dtype: expected a type that holds the ids 0 to 69999, found uint16; use uint32"
    ):
        TokenLoader(wide, dtype="uint16")
    for dtype in ("int16", torch.float32, None, "torch.int8"):
        with pytest.raises(
            ValueError, match=r"dtype: expected one of \['int64', 'int32', 'uint32', 'uint16'\] or \"stored\""
        ):
            TokenDataset(plan, dtype=dtype)


def test_a_plan_whose_ids_do_not_fit_is_not_switched_to(wide: Plan, plan: Plan) -> None:
    """Narrow ids would be other ids."""
    with pytest.raises(ValueError, match="dtype: expected a type that holds the ids 0 to 69999, found uint16"):
        TokenLoader(plan, dtype="stored").switch_plan(wide)


@pytest.mark.parametrize("ignored", [-1, -7])
def test_targets_outside_the_loss_have_the_chosen_value(plan: Plan, ignored: int) -> None:
    """In `targets` and in the labels of all formats."""
    expected = next(TokenLoader(plan))["targets"]
    assert (expected == -100).any()
    replaced = expected.where(expected != -100, ignored)
    for format, name in (
        ("torch", "targets"),
        ("hf", "shift_labels"),
        ("megatron", "labels"),
        ("nanotron", "label_ids"),
    ):
        assert same(next(TokenLoader(plan, format=format, ignore_index=ignored))[name], replaced)
    labels = next(TokenLoader(plan, format="hf"))["labels"]
    assert same(
        next(TokenLoader(plan, format="hf", ignore_index=ignored))["labels"], labels.where(labels != -100, ignored)
    )
    flash = next(TokenLoader(plan, format="hf_flash"))["labels"]
    changed = next(TokenLoader(plan, format="hf_flash", ignore_index=ignored))["labels"]
    assert same(changed, flash.where(flash != -100, ignored))


def test_a_token_id_is_ignored_only_with_a_mask(plan: Plan) -> None:
    """Otherwise a target could not be told from a token that is not in the loss."""
    with pytest.raises(ValueError, match="ignore_index: expected a negative number, which is no token id, found 0"):
        TokenLoader(plan, ignore_index=0)
    with pytest.raises(ValueError, match="ignore_index: expected a number of 32 bits"):
        TokenLoader(plan, ignore_index=1 << 31)
    with pytest.raises(ValueError, match="ignore_index: expected an integer, such as -1, found 'a'"):
        TokenLoader(plan, ignore_index="a")
    batch = next(TokenLoader(plan, format="megatron", ignore_index=5))
    expected = next(TokenLoader(plan))["targets"]
    assert same(batch["loss_mask"], (expected != -100).float())
    assert same(batch["labels"], expected.where(expected != -100, 5))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("packing", ["concat", "crossing", "best_fit", "none"])
def test_rows_have_one_token_more(tmp_path: Path, packing: str, masked: bool) -> None:
    """The token after the row is the next one of the document, or with crossing targets of the stream, also if it is not in
    the loss. Without a next token it is padding.
    """
    documents = random_masked(5, range(1, 60))
    path = write_masked(tmp_path / "a", documents, length_index=True, masks=masked)
    crossing = packing == "crossing"
    fields = {"packing": "concat" if crossing else packing, "cross_document_targets": crossing}
    plan = Plan.of(path, LENGTH, BATCH, num_steps=12, **fields)
    stream = np.concatenate(documents.tokens)
    starts = np.cumsum([0, *map(len, documents.tokens)])
    followed = 0
    for step, batch in enumerate(TokenLoader(plan, format="rows", fields=("tokens", "loss_mask", "position_ids"))):
        expected = plan.batch(step)
        assert same(batch["tokens"][:, :-1].contiguous(), torch.from_numpy(expected["input_ids"]))
        assert same(batch["loss_mask"], torch.from_numpy(expected["targets"]) != -100)
        next_ids = batch["tokens"][:, 1:]
        assert torch.equal(next_ids[batch["loss_mask"]], torch.from_numpy(expected["targets"])[batch["loss_mask"]])
        for row, pieces in zip(batch["tokens"].tolist(), plan.documents(step), strict=True):
            full = sum(piece.stop - piece.start for piece in pieces) == LENGTH
            last = starts[pieces[-1].document] + pieces[-1].stop if pieces else 0
            if full and (crossing or last < starts[pieces[-1].document + 1]):
                assert row[LENGTH] == stream[last % len(stream)]
                followed += 1
            else:
                assert row[LENGTH] == 0
    assert followed > 5
