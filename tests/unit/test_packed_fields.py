"""TokenLoader over packed plans: every field against plan.documents, padding and empty rows included; and evaluation."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import random_documents
from tests.support.stores.forge import forge
from tokenstore import Plan, PlanConfig, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError

LENGTH, BATCH, SIZES = 16, 8, {"a": (50, 12), "b": (21, 50)}  # documents, longest
FIELDS = ("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "source_ids")


@pytest.fixture
def two(make_store: Callable[..., Path]) -> dict[str, Path]:
    return {n: make_store(n, random_documents(i, *SIZES[n]), length_index=True) for i, n in enumerate(SIZES)}


@pytest.fixture(params=["best_fit", "none"])
def plan(request: pytest.FixtureRequest, two: dict[str, Path]) -> Plan:
    """One epoch of both stores; its last step is padded with empty rows."""
    plan = Plan.of(
        two, LENGTH, BATCH, packing=request.param, num_steps="all_exhausted", last_batch="pad", skip_steps=[(1, 2)]
    )
    assert sum(plan.num_sequences.values()) % BATCH
    return plan


def given_steps(plan: Plan) -> list[int]:
    return [step for step in range(plan.num_steps) if not plan.schedule.is_skipped(step)]


def sizes_of(pieces: list) -> list[int]:
    return [piece.stop - piece.start for piece in pieces]


def test_default_fields_are_those_of_the_plan(plan: Plan) -> None:
    """P2: input_ids and targets as plan.batch gives them, fresh int64 tensors, in every step and the padded one."""
    batches = list(TokenLoader(plan))
    for step, batch in zip(given_steps(plan), batches, strict=True):
        expected = plan.batch(step)
        assert list(batch) == ["input_ids", "targets"]
        for name, tensor in batch.items():
            assert tensor.dtype == torch.int64
            assert tensor.is_contiguous()
            assert (tensor.numpy() == expected[name]).all()
    assert len({tensor.data_ptr() for batch in batches for tensor in batch.values()}) == 2 * len(batches)


@pytest.mark.parametrize("microbatch", [1, 2, 8])
def test_the_length_counts_the_padded_step(plan: Plan, microbatch: int) -> None:
    """P5: len(loader) is what a rank is given, the step filled up with empty rows included, skipped ones not."""
    for world in (1, 2, 4):
        if microbatch * world > BATCH:
            continue
        loaders = [TokenLoader(plan, rank=r, world_size=world, microbatch_size=microbatch) for r in range(world)]
        expected = len(given_steps(plan)) * BATCH // (microbatch * world)
        assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == [expected] * world


def test_the_length_without_the_padded_step(two: dict[str, Path]) -> None:
    """P5: last_batch drop leaves the last step out of len and of what comes."""
    plans = [Plan.of(two, LENGTH, BATCH, num_steps="all_exhausted", last_batch=last) for last in ("pad", "drop")]
    lengths = [len(TokenLoader(plan)) for plan in plans]
    assert lengths[0] == lengths[1] + 1
    assert len(list(TokenLoader(plans[1]))) == lengths[1]


def test_positions_and_documents(plan: Plan) -> None:
    """position_ids begin again at every piece and where padding begins; document_ids count the pieces, -1 on padding."""
    padding = 0
    for step, batch in zip(given_steps(plan), TokenLoader(plan, fields=FIELDS), strict=True):
        assert tuple(batch) == FIELDS
        for row, pieces in enumerate(plan.documents(step)):
            sizes = sizes_of(pieces)
            left = LENGTH - sum(sizes)
            padding += left
            assert batch["position_ids"][row].tolist() == [i for size in [*sizes, left] for i in range(size)]
            numbers = [j for j, size in enumerate(sizes) for _ in range(size)]
            assert batch["document_ids"][row].tolist() == numbers + [-1] * left
            assert (batch["targets"][row][LENGTH - left :] == -100).all()
    assert padding


def borders_of(plan: Plan, step: int) -> list[int]:
    """Where pieces and padding begin in the flattened batch, and its end."""
    sizes = [size for pieces in plan.documents(step) for size in [*sizes_of(pieces), LENGTH - sum(sizes_of(pieces))]]
    return [0, *np.cumsum([size for size in sizes if size]).tolist()]


def test_borders_for_attention_kernels(plan: Plan) -> None:
    """cu_seqlens cut at every piece, row and padding; max_seqlen is the longest of them: an empty row is one of L."""
    for step, batch in zip(given_steps(plan), TokenLoader(plan, fields=FIELDS), strict=True):
        borders = borders_of(plan, step)
        assert batch["cu_seqlens"].dtype == torch.int32
        assert batch["cu_seqlens"].tolist() == borders
        assert batch["max_seqlen"] == max(np.diff(borders))
        assert type(batch["max_seqlen"]) is int
    assert batch["max_seqlen"] == LENGTH  # the last step has an empty row


def test_borders_of_one_shape(plan: Plan) -> None:
    """With max_documents every batch has one shape, padding counted as a document; too few names how many it takes."""
    most = max(len(borders_of(plan, step)) - 1 for step in given_steps(plan))
    loader = TokenLoader(plan, fields=("cu_seqlens", "max_seqlen"), max_documents=most)
    for step, batch in zip(given_steps(plan), loader, strict=True):
        borders = borders_of(plan, step)
        assert batch["cu_seqlens"].tolist() == borders + [BATCH * LENGTH] * (most + 1 - len(borders))
        assert batch["max_seqlen"] == LENGTH
    with pytest.raises(ValueError, match=rf"max_documents: expected at least {most} for this batch, found {most - 1}"):
        list(TokenLoader(plan, fields=("cu_seqlens",), max_documents=most - 1))


def test_sources_of_rows(plan: Plan) -> None:
    """source_ids are the numbers of the names in alphabetical order; -1 says that a row is empty."""
    empty = 0
    for step, batch in zip(given_steps(plan), TokenLoader(plan, fields=("source_ids",)), strict=True):
        names = [pieces[0].source if pieces else None for pieces in plan.documents(step)]
        assert batch["source_ids"].tolist() == [{"a": 0, "b": 1, None: -1}[name] for name in names]
        assert batch["source_ids"].dtype == torch.int64
        empty += names.count(None)
    assert empty == -sum(plan.num_sequences.values()) % BATCH


def test_the_source_of_a_row_is_the_pool(two: dict[str, Path]) -> None:
    """ORD-12: rows of a pool have its number, that of its name among the sources that take part by themselves."""
    sources = {name: {"path": str(path)} for name, path in two.items()}
    sources |= {"A": {"pool": ["b"], "weight": 1}}
    sources["a"]["weight"] = 1
    plan = Plan(PlanConfig(sequence_length=LENGTH, global_batch_size=BATCH, sources=sources, num_steps=3))
    for step, batch in enumerate(TokenLoader(plan, fields=("source_ids",))):
        names = [pieces[0].source for pieces in plan.documents(step)]
        assert batch["source_ids"].tolist() == [{"b": 0, "a": 1}[name] for name in names]


def test_hugging_face_labels(plan: Plan) -> None:
    """Labels repeat the ids, -100 at a document's first token and on padding; shift_labels are our targets."""
    for step, batch in zip(given_steps(plan), TokenLoader(plan, format="hf"), strict=True):
        assert list(batch) == ["input_ids", "labels", "shift_labels"]
        ours = plan.batch(step)
        assert (batch["shift_labels"].numpy() == ours["targets"]).all()
        for row, pieces in enumerate(plan.documents(step)):
            labels, at = np.full(LENGTH, -100), 0
            for piece, size in zip(pieces, sizes_of(pieces), strict=True):
                labels[at : at + size] = ours["input_ids"][row, at : at + size]
                if piece.start == 0:
                    labels[at] = -100
                at += size
            first_of_a_tail = [0, *np.cumsum(sizes_of(pieces))[:-1]]  # what these should be is the next test's
            keep = np.setdiff1d(np.arange(LENGTH), first_of_a_tail)
            assert (batch["labels"][row].numpy()[keep] == labels[keep]).all()


def test_hugging_face_labels_never_cross_documents(two: dict[str, Path]) -> None:
    """Inside a row the model's own shift of labels gives our targets: a long document's tail is predicted by no stranger.

    Where a piece ends and its document continues elsewhere, the labels do not have the next token: there it is -100.
    """
    plan = Plan.of(two, LENGTH, BATCH, packing="best_fit", num_steps="all_exhausted")
    tails = 0
    for step, batch in enumerate(TokenLoader(plan, format="hf")):
        labels, targets = batch["labels"][:, 1:].numpy(), batch["shift_labels"][:, :-1].numpy()
        assert ((labels == targets) | (labels == -100)).all()
        tails += sum(piece.start > 0 for pieces in plan.documents(step) for piece in pieces[1:])
    assert tails  # there are such


def test_empty_rows_are_the_pad_id(two: dict[str, Path]) -> None:
    """ORD-11: padding is the tokenizer's pad id, else its end of text, else 0; labels and targets are -100 there."""
    for special, pad in (({"pad_id": 7, "eos_id": 9}, 7), ({"pad_id": None, "eos_id": 9}, 9), ({"eos_id": None}, 0)):
        for path in two.values():
            forge(path, lambda body, special=special: body["tokenizer"].update(special))
        plan = Plan.of(two, LENGTH, BATCH, num_steps="all_exhausted", last_batch="pad")
        *_, batch = TokenLoader(plan, fields=("input_ids", "labels", "shift_labels", "source_ids"), format="hf")
        empty = batch["source_ids"] == -1
        assert empty.any()
        assert (batch["input_ids"][empty] == pad).all()
        assert (batch["labels"][empty] == -100).all()
        assert (batch["shift_labels"][empty] == -100).all()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_give_the_same(plan: Plan, workers: int) -> None:
    """P2: every field through a DataLoader, padded step included, is what TokenLoader gives."""
    dataset = TokenDataset(plan, microbatch_size=4, fields=FIELDS)
    context = "fork" if workers else None
    batches = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
    for mine, theirs in zip(TokenLoader(plan, microbatch_size=4, fields=FIELDS), batches, strict=True):
        assert all(torch.equal(torch.as_tensor(mine[name]), torch.as_tensor(theirs[name])) for name in FIELDS)


class TestEvaluation:
    """The recipe: packing none, num_steps all_exhausted, no weights; each rank the same number of steps."""

    @pytest.fixture
    def evaluation(self, two: dict[str, Path]) -> Plan:
        return Plan.of(two, sequence_length=50, global_batch_size=8, packing="none", num_steps="all_exhausted")

    @pytest.mark.parametrize("world", [1, 2, 4, 8])
    def test_every_document_once_and_all_ranks_step_equally(self, evaluation: Plan, world: int) -> None:
        """P3, P5: one whole document per row, none twice and none missing, over all ranks together."""
        fields = ("input_ids", "targets", "document_ids", "source_ids")
        loaders = [TokenLoader(evaluation, rank=r, world_size=world, fields=fields) for r in range(world)]
        seen = Counter()
        for batches in zip(*loaders, strict=True):
            for batch in batches:
                for ids, documents, source in zip(
                    batch["input_ids"], batch["document_ids"], batch["source_ids"], strict=True
                ):
                    if source >= 0:
                        seen["ab"[source], tuple(ids[documents >= 0].tolist())] += 1
        assert len(loaders[0]) == -(-71 // 8)
        expected = Counter((name, tuple(tokens.tolist())) for name in "ab" for tokens in evaluation.stores[name])
        assert seen == expected

    def test_a_mean_loss_over_real_targets_is_exact(self, evaluation: Plan) -> None:
        """P5: targets that are not -100 are, over the whole plan, each document's tokens but its first."""
        targets = np.concatenate([evaluation.batch(step)["targets"].ravel() for step in range(evaluation.num_steps)])
        tokens = sum(store.num_tokens for store in evaluation.stores.values())
        assert (targets != -100).sum() == tokens - sum(SIZES[name][0] for name in "ab")

    def test_it_is_given_again_the_same(self, evaluation: Plan) -> None:
        """P1: the same loader, iterated again, gives the same batches."""
        loader = TokenLoader(evaluation)
        first, second = list(loader), list(loader)
        assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, second, strict=True))

    def test_a_wrong_world_size_says_what_would_do(self, evaluation: Plan) -> None:
        """P5: ranks that cannot be given equally many rows are refused."""
        with pytest.raises(ConfigError, match=r"divisor of the global batch of 8 sequences, found 3"):
            TokenLoader(evaluation, rank=0, world_size=3)
