"""Metrics: progress as a flat dict of numbers, recounted from the documents of every step."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tokenstore import Plan, PlanConfig, TokenLoader

LENGTH, BATCH = 16, 8


@pytest.fixture
def paths(make_store: Callable[..., Path]) -> dict[str, Path]:
    return {name: make_store(name, random_documents(i, 90, 40), length_index=True) for i, name in enumerate("ab")}


@pytest.fixture
def plan(paths: dict[str, Path]) -> Plan:
    return Plan.of(paths, LENGTH, BATCH, weights={"a": 3, "b": 1}, packing="concat", num_steps=40, skip_steps=[(3, 5)])


def test_keys_are_constant(plan: Plan) -> None:
    """The same keys at every step, each an int or a float."""
    fields = ["sequences", "epochs", "tokens", "padding", "weight", "realised_weight", "piece_p50", "piece_p95"]
    keys = ["step", "sequences", "tokens", "padding", *(f"{name}/{field}" for name in "ab" for field in fields)]
    for step in (0, 1, 40):
        metrics = plan.metrics(step)
        assert list(metrics) == [f"data/{key}" for key in keys]
        assert {type(value) for value in metrics.values()} == {int, float}


def test_sequences_and_tokens_equal_the_batches(plan: Plan) -> None:
    """P4: before every step, over all ranks; skipped steps count as used."""
    sequences, tokens = Counter(), Counter()
    for step in range(plan.num_steps):
        if not plan.schedule.is_skipped(step):
            for pieces in plan.documents(step):
                sequences[pieces[0].source] += 1
                tokens[pieces[0].source] += sum(piece.stop - piece.start for piece in pieces)
        metrics = plan.metrics(step + 1)
        assert metrics["data/step"] == step + 1
        assert metrics["data/sequences"] == (step + 1) * BATCH
        if step < 3:  # before the skips
            assert all(metrics[f"data/{name}/sequences"] == sequences[name] for name in "ab")
            assert all(metrics[f"data/{name}/tokens"] == tokens[name] for name in "ab")
    skipped = 2 * BATCH
    assert plan.metrics(40)["data/sequences"] == sum(sequences.values()) + skipped
    assert plan.metrics(40)["data/tokens"] == sum(tokens.values()) + skipped * LENGTH


def test_totals_after_an_epoch_equal_the_stores(paths: dict[str, Path]) -> None:
    """P3: the tokens are those of the stores, and padding is the rest of the rows."""
    plan = Plan.of(paths, LENGTH, BATCH, num_steps="all_exhausted", last_batch="pad")
    metrics = plan.metrics(plan.num_steps)
    tokens = {name: store.num_tokens for name, store in plan.stores.items()}
    sequences = sum(plan.num_sequences.values())
    assert {name: metrics[f"data/{name}/tokens"] for name in "ab"} == tokens
    assert metrics["data/tokens"] == sum(tokens.values())
    assert metrics["data/padding"] == pytest.approx(1 - sum(tokens.values()) / (sequences * LENGTH))
    for name, progress in plan.progress(plan.num_steps).items():
        assert metrics[f"data/{name}/epochs"] == 1.0
        assert metrics[f"data/{name}/padding"] == progress.padding
        assert metrics[f"data/{name}/piece_p95"] == progress.pieces.p95


def test_a_loader_reports_its_step(plan: Plan) -> None:
    """P2: every rank has the same numbers without communication; inside a step, those of its start."""
    loaders = [TokenLoader(plan, rank=rank, world_size=2, microbatch_size=2) for rank in range(2)]
    assert [loader.metrics() for loader in loaders] == [plan.metrics(0)] * 2
    reached = [at for step in range(40) if not plan.schedule.is_skipped(step) for at in (step, step + 1)]
    for at, _ in zip(reached, zip(*loaders, strict=True), strict=True):
        assert [loader.metrics() for loader in loaders] == [plan.metrics(at)] * 2
    assert loaders[0].metrics() == plan.metrics(40)


def test_without_a_length_index_there_are_no_piece_lengths(make_store: Callable[..., Path]) -> None:
    """All other keys are there, also before the first step."""
    plan = Plan.of(make_store("s/x", random_documents(1, 30, 40)), LENGTH, BATCH, packing="concat")
    metrics = plan.metrics(0)
    assert [key for key in metrics if "piece" in key] == []
    assert metrics["data/x/weight"] == 1.0
    assert metrics["data/padding"] == 0.0
    with pytest.raises(ValueError, match="step: expected a step"):
        plan.metrics(-1)


def test_members_of_a_pool_have_metrics(paths: dict[str, Path]) -> None:
    """P3: after whole epochs of a pool, epochs and tokens of each member equal those counted from documents."""
    sources = {"a": {"path": str(paths["a"])}, "b": {"path": str(paths["b"])}, "mix": {"pool": {"a": 1, "b": 2}}}
    fields = {"sequence_length": LENGTH, "global_batch_size": 1, "seed": 0, "sources": sources}
    plan = Plan(PlanConfig(**fields))
    epoch = plan.num_sequences["mix"]
    tokens: Counter[str] = Counter()
    for step in range(epoch):
        for piece in plan.documents(step)[0]:
            tokens[piece.source] += piece.stop - piece.start
    metrics = plan.metrics(epoch)
    assert [key for key in metrics if key.startswith("data/mix/a/")] == ["data/mix/a/epochs", "data/mix/a/tokens"]
    assert (metrics["data/mix/a/epochs"], metrics["data/mix/b/epochs"]) == (1.0, 2.0)
    assert {name: metrics[f"data/mix/{name}/tokens"] for name in "ab"} == dict(tokens)
    assert plan.metrics(0)["data/mix/b/tokens"] == 0
