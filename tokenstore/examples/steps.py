"""Shared by the examples: the command line, the process group, the loss, the end of a step."""

import argparse
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tokenstore import Plan
from tokenstore.examples.model import GPT, by_mask

CHECKPOINT_EVERY = 10
FIELDS = ("input_ids", "targets", "position_ids", "document_ids")
Batch = dict[str, torch.Tensor]


def main(description: str, work: Callable[[Path, torch.device, int | None], None]) -> None:
    """Parse an example's command line, join the other processes, if any, and call `work`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder that tokenstore.examples.data filled")
    parser.add_argument(
        "--microbatch", type=int, help="sequences per microbatch and process (default: its whole share of a step)"
    )
    arguments = parser.parse_args()
    with process_group() as device:
        work(arguments.folder, device, arguments.microbatch)


@contextmanager
def process_group() -> Iterator[torch.device]:
    """Join the processes that torchrun started, if any; yield the device of this process."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def make_model(plan: Plan) -> GPT:
    """A model for the sequence length of the plan and the vocabularies of its stores."""
    vocabulary = max(store.vocab_size for store in plan.stores.values())
    return GPT(vocabulary, plan.config.sequence_length)


def loss_sum(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The sum of the losses over a batch's targets. The mean over all ranks is taken at the end of the step."""
    logits = model(batch["input_ids"], batch["position_ids"], by_mask(batch["document_ids"]))
    return functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")


def checksum(batch: Batch) -> int:
    """A checksum of the rows of a batch in any order. Its sum over a step does not depend on the world size."""
    return sum(zlib.crc32(row.numpy()) for row in batch["input_ids"].cpu())


class StepSums:
    """Sums over the microbatches of a step: loss, targets, checksum of the rows."""

    def __init__(self, device: torch.device):
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # exact for integers below 2**53

    def add(self, loss: torch.Tensor, batch: Batch) -> None:
        """Add a microbatch."""
        rows = torch.tensor(checksum(batch), device=loss.device)
        self._sums += torch.stack([loss.detach().double(), (batch["targets"] != -100).sum().double(), rows.double()])

    def finish(self) -> tuple[float, int, int]:
        """Over all ranks: mean loss per target, number of targets, checksum. Resets the sums."""
        dist.all_reduce(self._sums)
        loss, targets, rows = self._sums.tolist()
        self._sums.zero_()
        return loss / targets, int(targets), int(rows)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, num_targets: int) -> None:
    """Make a step of the optimizer.

    DDP and FSDP average the gradients of summed losses over ranks; this converts them to the mean over targets. Ranks and
    microbatches have unequal numbers of targets, so a mean of their means would weigh tokens unequally.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= dist.get_world_size() / num_targets
    optimizer.step()
    optimizer.zero_grad()


def report(step: int, loss: float, rows: int, metrics: dict[str, Any]) -> None:
    """Print one line of JSON, on rank 0 only."""
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "loss": loss, "rows": rows, **metrics}), flush=True)
