"""Shared by the examples: the command line, the plans, a tiny model, and a loop for libraries that have none."""

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tokenstore import Plan
from tokenstore.examples.trainers import journal


@dataclass
class Options:
    """The command line of an example.

    Attributes:
        plan: the plan to train.
        eval_plan: the plan to evaluate.
        run: the folder of the run's checkpoints.
        microbatch: sequences per microbatch and process.
        workers: worker processes, or microbatches to prefetch for trainers that need no workers.
        inside: save inside a step, after its first microbatch, where the trainer is able to.
        ranks: processes to start, for trainers that torchrun does not start.
    """

    plan: Plan
    eval_plan: Plan
    run: Path
    microbatch: int
    workers: int
    inside: bool
    ranks: int

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary of the stores."""
        return max(store.vocab_size for store in self.plan.stores.values())


def main(description: str | None, train: Callable[[Options], None]) -> None:
    """Parse the command line of an example and call `train`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder that tokenstore.examples.data filled")
    parser.add_argument("run", type=Path, help="the folder for checkpoints; if it has one, the run continues")
    parser.add_argument("--microbatch", type=int, default=2, help="sequences per microbatch and process (default: 2)")
    parser.add_argument("--workers", type=int, default=0, help="worker processes or prefetched batches (default: 0)")
    parser.add_argument("--inside", action="store_true", help="also save inside a step, if the trainer is able to")
    parser.add_argument("--ranks", type=int, default=1, help="processes to start, without torchrun (default: 1)")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    given.run.mkdir(parents=True, exist_ok=True)
    given.run = given.run.resolve()
    os.chdir(given.data)
    plans = Plan("plan.yaml"), Plan("evaluation.yaml")
    train(Options(*plans, given.run, given.microbatch, given.workers, given.inside, given.ranks))
    if dist.is_initialized():  # its threads can abort a process that ends before them
        dist.destroy_process_group()


class Tiny(nn.Module):
    """Logits of the next token from the current token only: enough to see which rows and targets are trained."""

    def __init__(self, vocab_size: int, width: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """float[..., vocabulary] for int[...] token ids."""
        logits: torch.Tensor = self.head(self.embedding(input_ids))
        return logits


def world() -> tuple[int, int]:
    """Rank and number of processes that torchrun started; the process group is made if there are several."""
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Loop:
    """A training loop for libraries that have none: the gradients of a step are summed over microbatches and ranks.

    Attributes:
        model: a Tiny.
        path: the checkpoint.
        step: the step that is trained.
        given: microbatches of this step that were trained.
    """

    def __init__(self, options: Options):
        self.options, self.path = options, options.run / "checkpoint.pt"
        self.rank, self.world_size = world()
        self.model = Tiny(options.vocab_size)
        journal.watch(self.model, options.plan, options.eval_plan)
        self.step = self.given = 0
        self._sums = torch.zeros(2, dtype=torch.float64)

    def load(self) -> Any:
        """Restore the last checkpoint, if there is one. Returns the state of the data."""
        saved = torch.load(self.path, weights_only=False) if self.path.exists() else None
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            self.step, self.given, self._sums = saved["step"], saved["given"], saved["sums"]
            for name, parameter in self.model.named_parameters():
                parameter.grad = saved["gradients"].get(name)
        journal.resumed(self.step, self.given)
        return saved and saved["data"]

    def save(self, data: Any) -> None:
        """Write a checkpoint, on rank 0."""
        if self.rank == 0:
            gradients = {name: each.grad for name, each in self.model.named_parameters() if each.grad is not None}
            saved = {"model": self.model.state_dict(), "gradients": gradients, "data": data, "sums": self._sums}
            torch.save({**saved, "step": self.step, "given": self.given}, self.path.with_suffix(".new"))
            self.path.with_suffix(".new").replace(self.path)

    def train(self, batches: Iterable[Any], state: Callable[[], Any]) -> None:
        """Train all batches: dicts with `input_ids` and `targets`, int64[B, L]. `state` returns the state of the data."""
        per_step = self.options.plan.global_batch_size(0) // (self.options.microbatch * self.world_size)
        for batch in batches:
            loss = self.loss(batch)
            loss.backward()
            self.add(loss, batch)
            self.given += 1
            if self.given == per_step:
                self.update()
            elif not self.options.inside:
                continue
            self.save(state())

    def loss(self, batch: Any) -> torch.Tensor:
        """The sum of the losses over a batch's targets."""
        logits = self.model(torch.as_tensor(batch["input_ids"]))
        targets = torch.as_tensor(batch["targets"])
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")

    def add(self, loss: torch.Tensor, batch: Any) -> None:
        """Count the loss and the targets of a microbatch."""
        targets = torch.as_tensor(batch["targets"])
        self._sums += torch.tensor([loss.item(), (targets != -100).sum()], dtype=torch.float64)

    def mean(self) -> tuple[float, float]:
        """Mean loss per target over all ranks since the last call, and the number of targets."""
        if self.world_size > 1:
            dist.all_reduce(self._sums)
        total, targets = self._sums.tolist()
        self._sums.zero_()
        return total / targets, targets

    def update(self) -> None:
        """End a step: a step of SGD with the mean gradient per target."""
        mean, targets = self.mean()
        journal.loss(self.step, mean)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                if self.world_size > 1:
                    dist.all_reduce(parameter.grad)
                parameter.data -= 0.5 * parameter.grad / targets
                parameter.grad = None
        self.step, self.given = self.step + 1, 0

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Any]) -> None:
        """Evaluate all batches of this rank."""
        self.model.eval()
        for batch in batches:
            self.add(self.loss(batch), batch)
        journal.evaluated(self.mean()[0])
        self.model.train()
