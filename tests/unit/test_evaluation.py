"""Evaluation: every token once on any number of ranks, losses equal to those by hand, sums by source."""

import math
import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.support.stores.masked import Documents, write_masked
from tokenstore import Evaluation, EvaluationResult, Plan
from tokenstore.errors import ConfigError

LENGTH, VOCAB = 16, 70_000
PACKINGS = ("none", "best_fit", "concat", "crossing")
SIZES = {"a": (37, 1, 16, 5, 1, 48, 2, 33, 1, 1), "b": (7, 90, 1, 17), "c": (20,)}


def documents_of(name: str, masked: bool = False) -> Documents:
    """Documents whose tokens all differ, also from those of other names; with masks, a third is not in the loss."""
    tokens, masks, token = [], [], {"a": 1000, "b": 2000, "c": 3000}[name]
    for size in SIZES[name]:
        tokens.append(list(range(token, token + size)))
        masks.append([not masked or (token + i) % 3 > 0 for i in range(size)])
        token += size
    return Documents(tokens, masks)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Path]]:
    """Three stores without masks, and with."""
    folder = tmp_path_factory.mktemp("stores")
    return {
        masked: {
            name: write_masked(
                folder / f"{name}-{masked}", documents_of(name, masked), VOCAB, length_index=True, masks=masked
            )
            for name in SIZES
        }
        for masked in (False, True)
    }


def plan_of(stores: dict[str, Path], packing: str, **fields: Any) -> Plan:
    crossing = packing == "crossing"
    fields = {"num_steps": "all_exhausted", **fields}
    return Plan.of(
        stores, LENGTH, 4, packing="concat" if crossing else packing, cross_document_targets=crossing, **fields
    )


def loss_of(tokens: Any, targets: Any) -> Any:
    """The "model": a loss for a token and its target, which differs for all pairs."""
    return (tokens * 31 + targets * 17) % 101 / 7.0


def losses_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss for each position, NaN where there is no target."""
    return loss_of(batch["input_ids"], batch["targets"]).where(batch["targets"] != -100, float("nan"))


def by_hand(documents: Documents) -> tuple[float, int]:
    """The sum of the losses and the number of targets of documents, one document at a time."""
    total, count = 0.0, 0
    for tokens, mask in zip(documents.tokens, documents.masks, strict=True):
        for token, target, in_loss in zip(tokens, tokens[1:], mask[1:], strict=False):
            if in_loss:
                total, count = total + loss_of(token, target), count + 1
    return total, count


def on_ranks(
    plan: Plan, world: int, losses: Callable[[Any], torch.Tensor] = losses_of, **options: Any
) -> EvaluationResult:
    """The result of an evaluation on some ranks, one after the other; each gets equally many microbatches."""
    reduction = options.pop("reduction", "none")
    evaluations = [Evaluation(plan, rank=rank, world_size=world, **options) for rank in range(world)]
    assert len({len(evaluation) for evaluation in evaluations}) == 1
    for evaluation in evaluations:
        batches = list(evaluation)
        assert len(batches) == len(evaluation)
        for batch in batches:
            evaluation.add(batch, losses(batch), reduction)
    return evaluations[0].result(sums=sum(evaluation.sums for evaluation in evaluations))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("world", "size"), [(1, None), (1, 5), (2, 3), (3, 1), (3, None)])
def test_every_token_comes_once(
    stores: dict[bool, dict[str, Path]], packing: str, world: int, size: int | None, shuffle: bool
) -> None:
    """Of all stores, for any number of ranks and microbatches, which need not divide the plan's steps. Batches have one
    shape, and rows of one source.
    """
    plan = plan_of(stores[False], packing, shuffle=shuffle)
    seen: Counter[int] = Counter()
    for rank in range(world):
        fields = ("input_ids", "targets", "document_ids", "source_ids")
        for batch in Evaluation(plan, rank=rank, world_size=world, microbatch_size=size, fields=fields):
            assert batch["input_ids"].shape == (size or -(-4 // world), LENGTH)
            assert len({*batch["source_ids"].tolist()} - {-1}) <= 1
            seen.update(batch["input_ids"][batch["document_ids"] >= 0].tolist())
    expected = [token for name in SIZES for tokens in documents_of(name).tokens for token in tokens]
    assert seen == Counter(expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("packing", PACKINGS[:3])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_losses_equal_those_by_hand(
    stores: dict[bool, dict[str, Path]], packing: str, world: int, masked: bool
) -> None:
    """Over all and by source, although documents of one token have no target, and losses outside the targets are NaN."""
    result = on_ranks(plan_of(stores[masked], packing), world, microbatch_size=2)
    sums = {name: by_hand(documents_of(name, masked)) for name in SIZES}
    for name, (loss, targets) in sums.items():
        assert result.sources[name].targets == targets
        assert result.sources[name].loss == pytest.approx(loss / targets, rel=1e-6)
    loss, targets = (sum(each) for each in zip(*sums.values(), strict=True))
    assert (result.targets, result.loss) == (targets, pytest.approx(loss / targets, rel=1e-6))
    assert result.perplexity == pytest.approx(math.exp(result.loss))


def mean_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean over the targets of a batch; NaN without targets."""
    in_loss = batch["targets"] != -100
    return loss_of(batch["input_ids"], batch["targets"])[in_loss].mean()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_loss_that_is_one_number_is_enough(stores: dict[bool, dict[str, Path]], world: int, reduction: str) -> None:
    """A microbatch without targets weighs nothing, although its mean is NaN; means are weighted by their targets."""

    def losses(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        count = (batch["targets"] != -100).sum()
        return mean_of(batch) * (count if reduction == "sum" else 1)

    plan = plan_of(stores[True], "none")
    one_number = on_ranks(plan, world, losses, microbatch_size=1, reduction=reduction)
    expected = on_ranks(plan, 1)
    assert one_number.targets == expected.targets
    for name in SIZES:
        assert one_number.sources[name].loss == pytest.approx(expected.sources[name].loss, rel=1e-5)


def test_without_any_target_the_loss_is_nan(tmp_path: Path) -> None:
    """There is no mean. The sequences are counted."""
    path = write_masked(tmp_path / "a", Documents([[5], [6], [7]], [[True]] * 3), length_index=True)
    result = Evaluation(plan_of({"a": path}, "none")).run(losses_of)
    assert (result.targets, result.sequences) == (0, 3)
    assert math.isnan(result.loss)
    assert math.isnan(result.perplexity)


@pytest.mark.parametrize(
    ("format", "fields"),
    [
        ("hf", None),
        ("hf_flash", None),
        ("hf_flash", ("input_ids", "shift_labels")),
        ("torchtitan", None),
        ("torchtitan_flat", None),
        ("megatron", None),
        ("nanotron", None),
        ("rows", None),
    ],
)
def test_targets_are_known_in_every_format(stores: dict[bool, dict[str, Path]], format: str, fields: Any) -> None:
    """A loss of 1 for each position counts the targets. Labels of hf_flash have none for the first token of a row."""
    plan = plan_of(stores[True], "none")
    evaluation = Evaluation(plan, format=format, fields=fields, microbatch_size=3)
    result = evaluation.run(lambda batch: torch.ones(3 * LENGTH))
    expected = on_ranks(plan, 1)
    if format == "hf_flash" and fields is None:
        assert 0 < result.targets < expected.targets
    else:
        assert result.targets == expected.targets
    assert result.loss == 1


def test_unshifted_labels_count_what_the_model_predicts(stores: dict[bool, dict[str, Path]]) -> None:
    """A model that shifts labels itself cannot predict the next token after a row."""
    plan = plan_of(stores[False], "none")
    evaluation = Evaluation(plan, format="hf", fields=("input_ids", "labels"))
    result = evaluation.run(lambda batch: (batch["labels"][:, 1:] != -100).sum().double(), reduction="sum")
    assert result.loss == 1
    assert 0 < result.targets < on_ranks(plan, 1).targets


def test_every_loop_begins_at_the_start(stores: dict[bool, dict[str, Path]]) -> None:
    """With sums of 0, also after a loop that stopped early, whose result is that of the microbatches before."""
    evaluation = Evaluation(plan_of(stores[False], "none"), microbatch_size=2)
    first = evaluation.run(losses_of)
    for number, batch in enumerate(evaluation):
        evaluation.add(batch, losses_of(batch))
        if number == 2:
            break
    assert 0 < evaluation.result().targets < first.targets
    assert evaluation.run(losses_of) == first
    assert pickle.loads(pickle.dumps(evaluation)).run(losses_of) == first


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("limit", [1, 6, 1000])
def test_it_stops_after_some_sequences_of_the_plan(stores: dict[bool, dict[str, Path]], limit: int, world: int) -> None:
    """Those at the beginning of the plan, on any number of ranks."""
    plan = plan_of(stores[False], "none")
    result = on_ranks(plan, world, max_sequences=limit, microbatch_size=2)
    ids = np.concatenate([plan.batch(step)["input_ids"] for step in range(plan.num_steps or 0)])
    targets = np.concatenate([plan.batch(step)["targets"] for step in range(plan.num_steps or 0)])
    assert result.targets == (targets[:limit] != -100).sum()
    assert result.sequences == min(limit, int((ids[:, 0] > 0).sum()))


@pytest.mark.parametrize("packing", PACKINGS)
def test_sequence_ids_are_those_of_the_plan(stores: dict[bool, dict[str, Path]], packing: str) -> None:
    """Rows that are in no step of the plan have none: those of a dropped last step, and the rest of a stream."""
    plan = plan_of(stores[False], packing, last_batch="drop")
    rows = {}
    for batch in Evaluation(plan, fields=("input_ids", "targets", "sequence_ids", "source_ids"), microbatch_size=3):
        assert (batch["sequence_ids"][batch["source_ids"] < 0] == -1).all()
        rows |= zip(batch["sequence_ids"].tolist(), batch["input_ids"].tolist(), strict=True)
    del rows[-1]
    expected = np.concatenate([plan.batch(step)["input_ids"] for step in range(plan.num_steps or 0)])
    assert [rows[number] for number in range(len(expected))] == expected.tolist()
    assert len(rows) == len(expected)


def test_repeated_sequences_come_once(stores: dict[bool, dict[str, Path]]) -> None:
    """A plan that repeats a source evaluates it once; one that ends early evaluates what it has."""
    repeated = plan_of({"c": stores[False]["c"]}, "none", num_steps=1)
    assert on_ranks(repeated, 2).targets == by_hand(documents_of("c"))[1]
    early = plan_of({"b": stores[False]["b"]}, "none", num_steps=1)
    assert on_ranks(early, 1).sequences == 4


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_give_the_same(stores: dict[bool, dict[str, Path]]) -> None:
    """Through a DataLoader with workers: the same batches in the same order, and the same result."""
    evaluation = Evaluation(plan_of(stores[True], "best_fit"), microbatch_size=2, rank=0, world_size=1)
    expected = evaluation.run(losses_of)
    loader = DataLoader(evaluation, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert len(loader) == len(evaluation)
    for _ in range(2):
        evaluation.reset()
        for batch, other in zip(loader, Evaluation(evaluation.plan, microbatch_size=2), strict=True):
            assert torch.equal(batch["input_ids"], other["input_ids"])
            evaluation.add(batch, losses_of(batch))
        assert evaluation.result() == expected


def test_what_cannot_be_right_is_refused(stores: dict[bool, dict[str, Path]]) -> None:
    plan = plan_of(stores[False], "none")
    with pytest.raises(ConfigError, match="evaluation plan: the plan is endless; set num_steps"):
        Evaluation(plan_of(stores[False], "none", num_steps=None))
    with pytest.raises(ValueError, match="microbatch_size: expected 1 or more, found 0"):
        Evaluation(plan, microbatch_size=0)
    with pytest.raises(ValueError, match="max_sequences: expected 1 or more, found -1"):
        Evaluation(plan, max_sequences=-1)
    with pytest.raises(ValueError, match=re.escape("which tokens are in the loss (targets), found ['input_ids']")):
        Evaluation(plan, fields=("input_ids",))
    with pytest.raises(ValueError, match=re.escape("in the loss (labels, loss_mask), found ['tokens', 'labels']")):
        Evaluation(plan, format="megatron", fields=("tokens", "labels"))
    evaluation = Evaluation(plan, rank=0, world_size=3, microbatch_size=1)
    batch = next(iter(evaluation))
    with pytest.raises(ValueError, match="losses: expected 16 for reduction='none', found 1; return a loss for each"):
        evaluation.add(batch, torch.tensor(1.0))
    with pytest.raises(ValueError, match="losses: expected 1 for reduction='mean', found 16"):
        evaluation.add(batch, torch.ones(16), "mean")
    with pytest.raises(ConfigError, match="expected a group of 3 data-parallel ranks, found 1 process; pass group="):
        evaluation.result()
    evaluation = Evaluation(plan)
    for batch in evaluation:
        evaluation.add(batch, losses_of(batch))
    with pytest.raises(ValueError, match=f"expected {len(evaluation)} microbatches, found one more"):
        evaluation.add(batch, losses_of(batch))
