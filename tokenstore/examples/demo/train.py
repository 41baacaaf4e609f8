"""Train on a plan, in one process or under torch.distributed. The data part of a checkpoint is one integer.

Run by `tokenstore demo`, or by hand: python -m tokenstore.examples.demo.train plan.yaml checkpoint.pt log.jsonl --resume
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

import tokenstore
from tokenstore.examples.model import GPT, causal

CHECKPOINT_EVERY = 10


def digest_rows(ids: torch.Tensor) -> list[str]:
    """A short hash of every row."""
    return [hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16] for row in ids]


def train(plan_file: Path, checkpoint: Path, log: Path, resume: bool) -> None:
    """Train from step 0, or from the step in the checkpoint; write one line per step and rank to `log`.rank."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    plan = tokenstore.Plan(tokenstore.PlanConfig.load(plan_file))
    vocabulary = next(iter(plan.stores.values())).vocab_size
    model = GPT(vocabulary, plan.config.sequence_length, width=96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if resume:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]

    loader = tokenstore.TokenLoader(plan, rank=rank, world_size=world_size, step=step)
    with log.with_name(f"{log.name}.{rank}").open("a") as lines:
        for batch in loader:
            loss = _update(model, optimizer, batch, world_size)
            row = {"step": loader.step - 1, "loss": loss, "rows": digest_rows(batch["input_ids"])}
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            if rank == 0 and loader.step % CHECKPOINT_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": loader.step}
                torch.save(state, checkpoint.with_suffix(".tmp"))
                checkpoint.with_suffix(".tmp").replace(checkpoint)


def _update(model: GPT, optimizer: torch.optim.Optimizer, batch: tokenstore.Batch, world_size: int) -> float:
    """Make one step. The loss and the gradients are means over the tokens of all ranks."""
    targets = batch["targets"]
    logits = model(batch["input_ids"], torch.arange(targets.shape[1]), causal)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    total = torch.tensor([loss.detach(), (targets != -100).sum()], dtype=torch.float64)
    optimizer.zero_grad()
    loss.backward()
    if world_size > 1:
        dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.grad is not None:
            if world_size > 1:
                dist.all_reduce(parameter.grad)
            parameter.grad /= total[1].item()
    optimizer.step()
    return (total[0] / total[1]).item()


def main() -> None:
    """Parse the command line and join the other processes, if any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--resume", action="store_true", help="continue from the step in the checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    train(arguments.plan, arguments.checkpoint, arguments.log, arguments.resume)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
