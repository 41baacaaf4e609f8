"""Batch formats of trainers, against the documents of the plan and the trainers' own code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorWithFlattening

from tests.conftest import random_documents
from tests.support.stores.masked import random_masked, write_masked
from tests.support.tensors import same
from tokenstore import Plan, TokenDataset, TokenLoader

LENGTH, BATCH, IGNORE = 16, 6, -100
FIELDS = ("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "source_ids")
DICTS = ("torch", "hf", "hf_flash", "megatron", "nanotron", "rows")


@pytest.fixture(params=["best_fit", "concat", "none", "masked"])
def plan(make_store: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest) -> Plan:
    """Documents shorter and longer than a sequence; if packed, with padding, and empty rows in the last step."""
    if request.param == "masked":  # best_fit, and half of the tokens are not in the loss
        path = write_masked(tmp_path / "a", random_masked(5, range(1, 40)), length_index=True)
        return Plan.of(path, LENGTH, BATCH, num_steps="all_exhausted", last_batch="pad")
    path = make_store("a", random_documents(5, 60, 40), length_index=True)
    ends = {"num_steps": 8} if request.param == "concat" else {"num_steps": "all_exhausted", "last_batch": "pad"}
    return Plan.of(path, LENGTH, BATCH, packing=request.param, **ends)


def has_masks(plan: Plan) -> bool:
    return plan.stores["a"].manifest.has_masks


def batches(plan: Plan, format: str, fields: tuple[str, ...] | None = None, **options: Any) -> list[Any]:
    return list(TokenLoader(plan, format=format, fields=fields, **options))


def pieces_of(plan: Plan, step: int) -> list[list[int]]:
    """Sizes of the pieces of every row, with padding as the last one."""
    rows = [[piece.stop - piece.start for piece in pieces] for pieces in plan.documents(step)]
    return [[*sizes, LENGTH - sum(sizes)] if sum(sizes) < LENGTH else sizes for sizes in rows]


def test_flash_batches_equal_those_of_transformers(plan: Plan) -> None:
    """hf_flash equals DataCollatorWithFlattening on the same documents: keys, values, dtypes. Padding is a document
    without labels.
    """
    if has_masks(plan):
        return  # the collator knows of none
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    for step, batch in enumerate(batches(plan, "hf_flash")):
        documents = []
        for row, sizes, pieces in zip(
            plan.batch(step)["input_ids"], pieces_of(plan, step), plan.documents(step), strict=True
        ):
            for number, ids in enumerate(np.split(row, np.cumsum(sizes)[:-1])):
                padding = number == len(pieces)
                documents.append(
                    {"input_ids": ids.tolist(), "labels": [IGNORE] * len(ids) if padding else ids.tolist()}
                )
        expected = collate(documents)
        assert set(batch) == set(expected)
        assert all(same(batch[name], expected[name]) for name in expected)
        assert batch["input_ids"].shape == (1, BATCH * LENGTH)


def test_flat_labels_never_predict_across_documents(plan: Plan) -> None:
    """With the model's shift, labels of the flattened rows are our targets or -100: a row's first token is never
    predicted from the row before, even if its document continues. shift_labels are all our targets.
    """
    for step, batch in enumerate(batches(plan, "hf_flash", ("labels", "shift_labels"))):
        targets = torch.from_numpy(plan.batch(step)["targets"]).reshape(1, -1)
        shifted = batch["labels"][:, 1:]
        inside = torch.from_numpy(np.diff([i for sizes in pieces_of(plan, step) for n in sizes for i in range(n)]) == 1)
        assert torch.equal(shifted, torch.where(inside, targets[:, :-1], IGNORE))
        assert same(batch["shift_labels"], targets)


def test_flash_batches_have_one_shape_with_max_documents(plan: Plan) -> None:
    """cu_seqlens has a constant length, padded with the end."""
    fields = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    ours = batches(plan, "torch", ("cu_seqlens", "max_seqlen"), max_documents=96)
    for batch, expected in zip(batches(plan, "hf_flash", fields, max_documents=96), ours, strict=True):
        assert [same(batch[name], expected["cu_seqlens"]) for name in fields[:2]] == [True] * 2
        assert batch["cu_seq_lens_q"].shape == (97,)
        assert batch["max_length_q"] == batch["max_length_k"] == LENGTH


@pytest.mark.parametrize(("format", "shape"), [("torchtitan", (BATCH, LENGTH)), ("torchtitan_flat", (BATCH * LENGTH,))])
def test_torchtitan_gets_a_pair(plan: Plan, format: str, shape: tuple[int, ...]) -> None:
    """({input, positions}, labels) and no other key, which would reach the model. Labels are shifted already; rows
    begin at position 0, because masks are made from positions.
    """
    ours = batches(plan, "torch", ("input_ids", "targets", "position_ids"))
    for (inputs, labels), expected in zip(batches(plan, format), ours, strict=True):
        assert list(inputs) == ["input", "positions"]
        assert same(inputs["input"], expected["input_ids"].reshape(shape))
        assert same(inputs["positions"], expected["position_ids"].reshape(shape))
        assert same(labels, expected["targets"].reshape(shape))
        assert not inputs["positions"].reshape(-1, LENGTH)[:, 0].any()


def test_megatron_masks_the_loss(plan: Plan) -> None:
    """tokens, labels, loss_mask, position_ids [B, L]: the mask is 1.0 at our targets, and labels are ids everywhere."""
    ours = batches(plan, "torch", ("input_ids", "targets", "position_ids"))
    for batch, expected in zip(batches(plan, "megatron"), ours, strict=True):
        assert list(batch) == ["tokens", "labels", "loss_mask", "position_ids"]
        in_loss = expected["targets"] != IGNORE
        assert same(batch["tokens"], expected["input_ids"])
        assert same(batch["labels"], expected["targets"] * in_loss)
        assert same(batch["loss_mask"], in_loss.float())
        assert same(batch["position_ids"], expected["position_ids"])


@pytest.mark.parametrize("most", [None, 10])
def test_megatron_borders_are_per_row(plan: Plan, most: int | None) -> None:
    """cu_seqlens int32[B, n + 1] contain the borders of each row, filled with L; max_seqlen int32[B] its longest
    piece.
    """
    loader = batches(plan, "megatron", ("cu_seqlens", "max_seqlen"), max_documents=most)
    for step, batch in enumerate(loader):
        width = 1 + (LENGTH if most is None else most)
        borders = [np.cumsum([0, *sizes]).tolist() for sizes in pieces_of(plan, step)]
        assert batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == torch.int32
        assert batch["cu_seqlens"].tolist() == [row + [LENGTH] * (width - len(row)) for row in borders]
        assert batch["max_seqlen"].tolist() == [max(sizes) for sizes in pieces_of(plan, step)]


def test_too_many_documents_for_a_row_of_megatron(plan: Plan) -> None:
    """As for cu_seqlens, the message has the number that is needed."""
    most = max(len(sizes) for step in range(plan.num_steps) for sizes in pieces_of(plan, step))
    if most > 1:
        with pytest.raises(ValueError, match="max_documents: expected at least"):
            batches(plan, "megatron", ("cu_seqlens",), max_documents=most - 1)


def test_nanotron_batches_equal_those_of_its_collator(plan: Plan) -> None:
    """input_ids, position_ids, label_ids, label_mask [B, L]: the mask is off at labels that are at position 0."""
    ours = batches(plan, "torch", ("input_ids", "targets", "position_ids"))
    for step, (batch, expected) in enumerate(zip(batches(plan, "nanotron"), ours, strict=True)):
        assert list(batch) == ["input_ids", "position_ids", "label_ids", "label_mask"]
        in_loss = expected["targets"] != IGNORE
        assert same(batch["input_ids"], expected["input_ids"])
        assert same(batch["label_mask"], in_loss)
        assert same(batch["label_ids"], expected["targets"] * in_loss)
        assert same(batch["position_ids"], expected["position_ids"])
        inside = expected["position_ids"][:, 1:] > 0
        padding = torch.tensor([[sum(p.stop - p.start for p in row)] for row in plan.documents(step)])
        inside &= torch.arange(1, LENGTH) < padding
        assert has_masks(plan) or batch["label_mask"][:, :-1][inside].all()
        inside &= in_loss[:, :-1]
        assert torch.equal(batch["label_ids"][:, :-1][inside], batch["input_ids"][:, 1:][inside])


@pytest.mark.parametrize("format", DICTS)
def test_no_format_has_an_attention_mask(plan: Plan, format: str) -> None:
    """With one, a Hugging Face model would let documents of a row attend to each other, so it cannot be requested."""
    assert "attention_mask" not in batches(plan, format)[0]
    with pytest.raises(ValueError, match="fields: expected some of"):
        TokenLoader(plan, format=format, fields=("attention_mask",))


@pytest.mark.parametrize(
    ("format", "fields"),
    [
        ("torch", ("targets",)),
        ("hf", ("shift_labels", "input_ids")),
        ("hf_flash", ("labels", "max_length_q", "cu_seq_lens_k")),
        ("megatron", ("tokens", "position_ids")),
        ("megatron", ("loss_mask", "labels")),
        ("nanotron", ("label_mask", "label_ids")),
        ("nanotron", ()),
    ],
)
def test_pipeline_stages_request_their_fields(plan: Plan, format: str, fields: tuple[str, ...]) -> None:
    """A stage gets the requested fields, in that order, with the same values as in a full batch."""
    for part, whole in zip(batches(plan, format, fields), batches(plan, format), strict=True):
        assert tuple(part) == fields
        assert all(same(part[name], whole[name]) for name in fields)


def test_a_stage_of_torchtitan_always_has_labels(plan: Plan) -> None:
    """Its loss is divided by the number of labels on all ranks, so the pair always has them."""
    for (inputs, labels), whole in zip(
        batches(plan, "torchtitan", ("labels",)), batches(plan, "torchtitan"), strict=True
    ):
        assert inputs == {}
        assert same(labels, whole[1])


def test_every_dict_can_have_sources_and_documents(plan: Plan) -> None:
    """For a loss per source: document_ids and source_ids exist in every format whose keys do not reach a model."""
    ours = batches(plan, "torch", ("document_ids", "source_ids"))
    for format in DICTS:
        for batch, expected in zip(batches(plan, format, ("document_ids", "source_ids")), ours, strict=True):
            assert same(batch["document_ids"].reshape(BATCH, LENGTH), expected["document_ids"])
            assert same(batch["source_ids"], expected["source_ids"])


@pytest.mark.parametrize(
    ("format", "fields", "text"),
    [
        (
            "olmo",
            None,
            r"format: expected one of \['hf', 'hf_flash', 'megatron', 'nanotron', 'rows', 'torch', 'torchtitan'",
        ),
        ("torchtitan", ("input",), r"expected \['labels'\] among them for format 'torchtitan', found \['input'\]"),
        ("torchtitan", ("input", "labels", "document_ids"), r"found \['document_ids'\]"),
        ("hf_flash", ("cu_seqlens",), r"for format 'hf_flash', found \['cu_seqlens'\]"),
    ],
)
def test_unknown_formats_and_fields_are_refused(plan: Plan, format: str, fields: tuple | None, text: str) -> None:
    """The message lists the known ones."""
    for make in (TokenLoader, TokenDataset):
        with pytest.raises(ValueError, match=text):
            make(plan, format=format, fields=fields)


def values_of(batch: Any) -> list[Any]:
    """The values of a batch, in order."""
    return [*batch[0].values(), batch[1]] if isinstance(batch, tuple) else list(batch.values())


def test_every_format_returns_new_memory(plan: Plan) -> None:
    """A batch may be kept and written to: no later one shares its memory."""
    for format in (*DICTS, "torchtitan_flat"):
        made = batches(plan, format)
        pointers = [{t.data_ptr() for t in values_of(batch) if isinstance(t, torch.Tensor)} for batch in made]
        assert len(set.union(*pointers)) == sum(map(len, pointers))


def test_pinned_memory_needs_a_device(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device to copy to, it is refused when the loader is created."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="pin_memory: requires a device such as CUDA, but this machine has none"):
        TokenLoader(plan, pin_memory=True)


def test_pinned_tensors_are_those_that_were_allocated(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA keeps memory alive during a copy only if it knows the allocation: never a second view of it."""
    allocated: set[int] = set()
    empty = torch.empty

    def pinned(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty(*args, **options)
        if pin_memory:
            allocated.add(tensor.untyped_storage()._cdata)
        return tensor

    expected = batches(plan, "torch", fields=FIELDS)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", pinned)
    for batch, other in zip(batches(plan, "torch", fields=FIELDS, pin_memory=True), expected, strict=True):
        for name, value in batch.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[name]))
            assert not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata in allocated


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("reuse", [1, 3])
def test_memory_is_reused_on_request(plan: Plan, reuse: int, prefetch: int) -> None:
    """A batch is valid until `reuse` more were returned, also with prefetching; memory does not grow with batches."""
    for format in (*DICTS, "torchtitan_flat"):
        fields = FIELDS if format == "torch" else None
        loader = TokenLoader(plan, format=format, fields=fields, microbatch_size=2, reuse=reuse, prefetch=prefetch)
        expected = batches(plan, format, fields=fields, microbatch_size=2)
        kept: list[Any] = []
        for number, batch in enumerate(loader):
            kept = [*kept[-reuse + 1 :], batch] if reuse > 1 else [batch]
            wanted = expected[number + 1 - len(kept) : number + 1]
            assert all(
                same(a, b)
                for pair in zip(map(values_of, kept), map(values_of, wanted), strict=True)
                for a, b in zip(*pair, strict=True)
            )
    loader = TokenLoader(plan, microbatch_size=2, reuse=reuse, prefetch=prefetch)
    pointers = {batch[name].data_ptr() for batch in loader for name in batch}
    assert len(pointers) <= 2 * (reuse + (prefetch + 1 if prefetch else 0))


def test_negative_reuse_is_refused(plan: Plan) -> None:
    """A number below 0 is an error."""
    with pytest.raises(ValueError, match="reuse: expected 0 or more microbatches, found -1"):
        TokenLoader(plan, reuse=-1)
