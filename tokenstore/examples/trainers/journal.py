"""Records what a run really trained: the rows that reached the model, and the losses that the trainer reported.

It does nothing unless the environment variable JOURNAL names a folder. `python -m tools.trainer_matrix` sets it, and compares
the lines with the plan. KILL_AT=n kills the process with SIGKILL before microbatch n (from 0) of the training.
"""

import json
import os
import signal
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tokenstore import Plan

IGNORED = -100


def write(kind: str, **values: Any) -> None:
    """Write a line of JSON to the journal of this process."""
    if folder := os.environ.get("JOURNAL"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"{_rank()}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")


def resumed(step: int, given: int = 0) -> None:
    """Record where a run starts: the number of trained steps, and of trained microbatches of this rank in the next step."""
    write("resumed", step=int(step), given=int(given))


def loss(step: int, value: float) -> None:
    """Record the loss that the trainer reported for a step of the plan."""
    write("loss", step=int(step), value=float(value))


def evaluated(value: float) -> None:
    """Record the loss that the trainer reported for a whole evaluation."""
    write("evaluated", value=float(value))


def batch(rows: np.ndarray, training: bool, losses: tuple[float, int] | None) -> None:
    """Record a microbatch: int64[B, L] token ids; (sum of the losses, number of targets), or None for a dry run."""
    kill_here(training)
    total, targets = losses or (None, None)
    _count["train"] += training and losses is not None
    write("train" if training else "eval", rows=[checksum(row) for row in rows], sum=total, targets=targets)


def kill_here(training: bool = True) -> None:
    """Kill this process with SIGKILL if KILL_AT is the number of the microbatches trained so far."""
    if training and os.environ.get("KILL_AT") == str(_count["train"]):
        os.kill(os.getpid(), signal.SIGKILL)


def checksum(row: np.ndarray) -> int:
    """The checksum of the token ids of a sequence."""
    return zlib.crc32(np.ascontiguousarray(row, np.int64).tobytes())


def watch(
    model: nn.Module,
    plan: Plan,
    eval_plan: Plan | None = None,
    ids: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
    logits: Callable[[Any], torch.Tensor] | None = None,
) -> None:
    """Record every forward pass of a model: the rows, and the loss computed by hand from the targets of the plans.

    Args:
        model: called with token ids, [B, L] or flat, as `input_ids`, `tokens` or the first argument.
        plan: the plan that is trained.
        eval_plan: the plan that is evaluated.
        ids: finds the token ids among the arguments of the model.
        logits: finds float[..., vocabulary] in the output of the model, in the order of the token ids.
    """
    if "JOURNAL" not in os.environ:
        return
    length = plan.config.sequence_length

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kill_here(module.training)

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        found: Any = (
            ids(args, kwargs) if ids else kwargs.get("input_ids", kwargs.get("tokens", args[0] if args else None))
        )
        if found.is_meta:
            return
        rows = np.asarray(found.detach().cpu()).reshape(-1, length)
        scores = logits(output) if logits else getattr(output, "logits", output)
        batch(rows, module.training, by_hand(rows, scores, plan, eval_plan))

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)


def by_hand(
    rows: np.ndarray, logits: torch.Tensor, plan: Plan, eval_plan: Plan | None = None
) -> tuple[float, int] | None:
    """Sum of the losses and number of targets, from the targets of the plans. None for rows of neither, as in a dry run."""
    known = {**targets_by_row(eval_plan), **targets_by_row(plan)}
    if any(checksum(row) not in known for row in rows):
        return None
    targets = torch.from_numpy(np.stack([known[checksum(row)] for row in rows])).flatten()
    scores = logits.detach().float().cpu().reshape(targets.numel(), -1)
    total = functional.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    return total.item(), int((targets != IGNORED).sum())


@cache
def targets_by_row(plan: Plan | None) -> dict[int, np.ndarray]:
    """{checksum of a row: its targets} for a whole plan that ends."""
    found: dict[int, np.ndarray] = {}
    for step in range(plan.num_steps or 0) if plan is not None else ():
        arrays = plan.batch(step)  # type: ignore[union-attr]  # there are no steps without a plan
        found |= {checksum(row): targets for row, targets in zip(arrays["input_ids"], arrays["targets"], strict=True)}
    return found


_count = {"train": 0}


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))
