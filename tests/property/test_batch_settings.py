"""P1 and P2 over the settings of a loader, pairwise: whatever they are, batches are those of `plan.batch`."""

import itertools
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.stores.masked import random_masked, write_masked
from tests.support.tensors import same
from tokenstore import Plan, TokenLoader
from tokenstore.planning.row_fields import BalanceConfig
from tokenstore.torch_data import prefetch
from tokenstore.torch_data.formats import FORMATS

LENGTH, BATCH = 16, 12
SETTINGS: dict[str, tuple] = {
    "packing": (
        "concat",
        "best_fit",
        "none",
        "crossing",
    ),  # the last one is concat, with lanes and targets across documents
    "align": (None, 1, 4),  # not with concat
    "balance": (None, "attention", BalanceConfig(attention=2, linear=9)),
    "vocab_size": (300, 70_000),
    "masked": (False, True),
    "format": (*FORMATS, "all of torch", "one of hf"),
    "dtype": (torch.int64, "int32", "stored", torch.uint32),
    "ignore_index": (None, -1),
    "reuse": (0, 1, 3),
    "readahead": (0, 1, 4),
    "faults": (False, True),
    "prefetch": (0, 2),
    "skip_empty": (False, True),
    "staged": (False, True),
    "microbatch_size": (None, 1, 3, 6),
    "world_size": (1, 2),
    "taken": (0, 1, 5),
}


def pairwise_cases() -> list[dict[str, Any]]:
    """Settings such that every two values of two settings meet, found greedily from a fixed seed."""
    rng = random.Random(0)
    names = list(SETTINGS)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in SETTINGS[a] for y in SETTINGS[b]}
    cases = []
    while missing:
        (a, x), (b, y) = rng.choice(sorted(missing, key=repr))
        tries = [{name: rng.choice(values) for name, values in SETTINGS.items()} | {a: x, b: y} for _ in range(30)]
        case = max(tries, key=lambda each: len(missing & pairs_of(each)))
        missing -= pairs_of(case)
        cases.append(case)
    return cases


def pairs_of(case: dict[str, Any]) -> set[tuple]:
    return set(itertools.combinations(case.items(), 2))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], dict[str, Path]]:
    """Two sources of several shards, by vocabulary and whether one of them has loss masks."""
    folder, made = tmp_path_factory.mktemp("stores"), {}
    for vocab_size, masked in itertools.product(SETTINGS["vocab_size"], SETTINGS["masked"]):
        paths = made[vocab_size, masked] = {}
        for seed, name in enumerate("ab"):
            documents = random_masked(seed, [1 + (7 * n) % 37 for n in range(40)], vocab_size)
            path = folder / f"{name}-{vocab_size}-{masked}"
            masks = masked and name == "a"
            paths[name] = write_masked(path, documents, vocab_size, shard_bytes=500, length_index=True, masks=masks)
    return made


def plan_of(case: dict[str, Any], stores: dict[tuple[int, bool], dict[str, Path]]) -> Plan:
    crossing = case["packing"] == "crossing"
    packing = "concat" if crossing else case["packing"]
    fields: dict[str, Any] = {"packing": packing, "cross_document_targets": crossing, "weights": {"a": 2, "b": 1}}
    fields |= {"num_steps": 9} if packing == "concat" else {"num_steps": "all_exhausted", "last_batch": "pad"}
    fields |= {"skip_steps": [(2, 3)], "balance": case["balance"]}
    fields["align"] = None if packing == "concat" else case["align"]
    if case["staged"]:
        fields["stages"] = [{"from_step": 4, "weights": {"a": 1, "b": 1}, "global_batch_size": 2 * BATCH}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = Plan.of(stores[case["vocab_size"], case["masked"]], LENGTH, BATCH, **fields)
        if not crossing:
            return plan
        local = replace(plan.config.sources["a"], locality={"block_sequences": 3, "lanes": 5})
        return Plan(replace(plan.config, sources={**plan.config.sources, "a": local}))


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the loader."""
    names = ("dtype", "ignore_index", "reuse", "readahead", "prefetch", "skip_empty", "microbatch_size", "world_size")
    options = {name: case[name] for name in names} | {"rank": case["world_size"] - 1, "inside_step": "continue"}
    if case["format"] == "all of torch":
        return options | {"format": "torch", "fields": tuple(FORMATS["torch"].fields)}
    if case["format"] == "one of hf":
        return options | {"format": "hf", "fields": ("labels",)}
    return options | {"format": case["format"]}


def walk(loader: TokenLoader, most: int = 1000) -> Iterator[tuple[Any, dict]]:
    """Copies of the batches, as memory may be used again, and the state after each."""
    for _, batch in zip(range(most), loader, strict=False):
        parts = {"labels": batch[1], **batch[0]} if isinstance(batch, tuple) else batch
        yield {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in parts.items()}, loader.state_dict()


IDS = ("input_ids", "input", "tokens")
TARGETS = {"torch": "targets", "hf": "shift_labels", "torchtitan": "labels", "torchtitan_flat": "labels"}
ZEROED = {"megatron": "labels", "nanotron": "label_ids"}
DTYPES = {"int32": torch.int32, ("stored", 300): torch.uint16, ("stored", 70_000): torch.uint32}


def check_batch(batch: dict[str, Any], rows: dict[str, np.ndarray], case: dict[str, Any]) -> None:
    """Tokens and targets of a batch are `rows`; what follows from them does."""
    format, ignored, dtype = case["format"], case["ignore_index"], case["dtype"]
    dtype = DTYPES.get(dtype, DTYPES.get((dtype, case["vocab_size"]), dtype))
    ids, targets = (torch.from_numpy(rows[name]).reshape(-1) for name in ("input_ids", "targets"))
    for name in IDS:
        if name in batch:
            given = batch[name][:, :-1] if format == "rows" else batch[name]
            assert given.dtype == dtype
            assert torch.equal(given.reshape(-1).long(), ids)
    if TARGETS.get(format) in batch:
        expected = targets.where(targets != -100, -100 if ignored is None else ignored)
        assert torch.equal(batch[TARGETS[format]].reshape(-1), expected)
    if ZEROED.get(format) in batch:
        expected = targets.where(targets != -100, 0 if ignored is None else ignored)
        assert torch.equal(batch[ZEROED[format]].reshape(-1), expected)
    if format == "rows":
        next_ids = batch["tokens"][:, 1:].reshape(-1).long()
        assert torch.equal(next_ids.where(targets != -100, -100), targets)
    for name in ("loss_mask", "label_mask"):
        assert name not in batch or torch.equal(batch[name].reshape(-1).bool(), targets != -100)
    if "cu_seqlens_padded" in batch and batch["cu_seqlens_padded"].ndim == 1:
        starts = torch.nonzero(batch["position_ids"].reshape(-1) == 0).reshape(-1)
        assert batch["cu_seqlens_padded"].tolist() == [*starts.tolist(), len(ids)]
        assert batch["max_seqlen"] == batch["cu_seqlens_padded"].diff().max()
        in_documents = (batch["document_ids"] >= 0).reshape(-1)
        if case["align"] is None or case["packing"] in ("concat", "crossing"):
            assert torch.equal(batch["cu_seqlens"], batch["cu_seqlens_padded"])
        else:
            assert batch["cu_seqlens"].tolist() == [int(in_documents[:start].sum()) for start in [*starts, len(ids)]]


def has_tokens(plan: Plan, step: int, number: int, size: int, world: int) -> bool:
    """Whether microbatch `number` of a step holds a token on some rank."""
    part = slice(number * size, (number + 1) * size)
    return any(any(plan.documents(step, rank, world, size)[part]) for rank in range(world))


@pytest.mark.parametrize("case", pairwise_cases(), ids=lambda case: "-".join(map(str, case.values())))
def test_batches_are_those_of_the_plan(
    case: dict[str, Any], stores: dict[tuple[int, bool], dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a run, resumed after some microbatches; a plain loader of one batch at a time gives the same fields."""
    if case["faults"]:
        monkeypatch.setattr(prefetch, "major_faults", count().__next__)
    plan, options = plan_of(case, stores), options_of(case)
    first = TokenLoader(plan, **options)
    got = list(walk(first, case["taken"]))
    second = TokenLoader(plan, **options)
    second.load_state_dict(first.state_dict())
    got += list(walk(second))
    plain = list(walk(TokenLoader(plan, **options | {"reuse": 0, "readahead": 0, "prefetch": 0})))
    assert len(got) == len(plain)
    for (batch, state), (expected, expected_state) in zip(got, plain, strict=True):
        assert state == expected_state
        assert list(batch) == list(expected)
        assert all(same(batch[name], expected[name]) for name in batch)
    check_rows(case, plan, options, [batch for batch, _ in got])
    step = plan.schedule.next_step(case["taken"] % 4)  # balance changes which rank gets a row, and no row
    plain_rows = plan_of({**case, "balance": None}, stores).batch(step)
    assert all((plan.batch(step)[name] == rows).all() for name, rows in plain_rows.items())


def check_rows(case: dict[str, Any], plan: Plan, options: dict[str, Any], batches: list[dict[str, Any]]) -> None:
    """The tokens of all batches are those of `plan.batch`, and none is missing."""
    rank, world = options["rank"], options["world_size"]
    left = iter(batches)
    for step in range(plan.num_steps or 0):
        if plan.schedule.is_skipped(step):
            continue
        size = plan.global_batch_size(step)
        rows_of_batch = case["microbatch_size"] or size // world
        rows = plan.batch(step, rank, world, case["microbatch_size"])
        for number in range(size // world // rows_of_batch):
            last = case["skip_empty"] and step + 1 == plan.num_steps
            if last and not has_tokens(plan, step, number, rows_of_batch, world):
                continue
            part = slice(number * rows_of_batch, (number + 1) * rows_of_batch)
            check_batch(next(left), {name: array[part] for name, array in rows.items()}, case)
    assert next(left, None) is None
