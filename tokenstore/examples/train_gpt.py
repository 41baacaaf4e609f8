"""Train a small GPT with plain PyTorch, on any number of processes. If it is killed, the same command resumes it.

    python -m tokenstore.examples.data RUN
    python -m tokenstore.examples.train_gpt RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.train_gpt RUN --microbatch 2

A step has the same 8 sequences on 1, 2, 4 or 8 processes, in microbatches of any size that divides a process's share. So a
run may resume with other numbers: its losses equal those of an uninterrupted run, except for the order in which floats are
added. Each step prints a line of JSON; `rows` is a checksum of the step's sequences.

torchrun --max-restarts 3 restarts by itself. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or the new processes may find the
addresses of the dead ones (pytorch/pytorch#135712).
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tokenstore
from tokenstore import TokenLoader
from tokenstore.examples.steps import CHECKPOINT_EVERY, FIELDS, StepSums, loss_sum, main, make_model, report, update


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TokenLoader[Any]) -> None:
    """Write a checkpoint atomically."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TokenLoader[Any]) -> None:
    """Continue from a checkpoint. The loader refuses one from a run with another history."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])


def train(folder: Path, device: torch.device, microbatch: int | None) -> None:
    """Train to the end of the plan, from the checkpoint if there is one."""
    plan = tokenstore.Plan(tokenstore.PlanConfig.load(folder / "plan.yaml"))
    loader = tokenstore.TokenLoader(plan, microbatch_size=microbatch, fields=FIELDS, device=device)
    model = DistributedDataParallel(make_model(plan).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        load(checkpoint, model.module, optimizer, loader)

    sums = StepSums(device)
    for batch in loader:
        # Ranks exchange gradients at the last microbatch of a step only
        with nullcontext() if loader.step_ended else model.no_sync():
            loss = loss_sum(model, batch)
            loss.backward()
        sums.add(loss, batch)
        if loader.step_ended:
            mean, num_targets, rows = sums.finish()
            update(model, optimizer, num_targets)
            report(loader.step - 1, mean, rows, loader.metrics())
            if dist.get_rank() == 0 and (loader.step % CHECKPOINT_EVERY == 0 or loader.step == plan.num_steps):
                save(checkpoint, model.module, optimizer, loader)


if __name__ == "__main__":
    main(__doc__, train)
