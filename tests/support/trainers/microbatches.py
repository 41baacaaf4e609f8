"""The small plan of all trainer tests, and the batches that a rank must get from it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import random_documents
from tokenstore import Plan

LENGTH, BATCH, STEPS = 8, 8, 7
SKIPPED = (2, 4)
GIVEN = (0, 1, 4, 5, 6)  # steps of the plan that are not skipped


def small_plan(path: Path, **fields: Any) -> Plan:
    """7 steps of 8 sequences of 8 tokens, two of the steps skipped."""
    fields = {"num_steps": STEPS, "skip_steps": [SKIPPED], "packing": "concat", **fields}
    return Plan.of(path, sequence_length=LENGTH, global_batch_size=BATCH, **fields)


def small_store(make_store: Callable[..., Path], name: str = "a") -> Path:
    """A store of ids below 64; one epoch is longer than the small plan."""
    return make_store(name, random_documents(3, 60, 30, vocab_size=64), vocab_size=64, length_index=True)


def microbatches(
    plan: Plan,
    steps: Sequence[int],
    rank: int = 0,
    world_size: int = 1,
    size: int | None = None,
    field: str = "input_ids",
) -> list[np.ndarray]:
    """One field of every microbatch of a rank in these steps, from plan.batch."""
    found: list[np.ndarray] = []
    for step in steps:
        rows = plan.batch(step, rank, world_size, size)[field]
        found += np.split(rows, len(rows) // (size or len(rows)))
    return found


def same(got: Sequence[Any], wanted: Sequence[np.ndarray]) -> bool:
    """Whether two lists of microbatches are equal in number, shape and content."""
    return len(got) == len(wanted) and all(np.array_equal(np.asarray(a), b) for a, b in zip(got, wanted, strict=True))
