"""Train a plan with plain PyTorch and torch.distributed.checkpoint.

python -m tokenstore.examples.trainers.plain DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.plain DATA RUN
"""

from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from tokenstore import TokenLoader
from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Loop, Options, main
from tokenstore.trainers.common import evaluation_loader


class Checkpointed(Loop):
    """The loop of the examples, with sharded checkpoints. Each has a folder; a file names the last one."""

    def __init__(self, options: Options, loader: TokenLoader[Any]):
        super().__init__(options)
        self.loader, self.last = loader, options.run / "last"

    def load(self) -> None:
        """Restore the last checkpoint, if there is one."""
        if self.last.exists():
            counts = torch.zeros(4, dtype=torch.float64)
            gradients = {f"gradient.{name}": torch.zeros_like(each) for name, each in self.model.named_parameters()}
            state = {"model": self.model, "loader": self.loader, "counts": counts, **gradients}
            dcp.load(state, checkpoint_id=self.options.run / self.last.read_text())
            self.step, self.given, self._sums = int(counts[0]), int(counts[1]), counts[2:]
            for name, parameter in self.model.named_parameters():
                parameter.grad = gradients[f"gradient.{name}"] if self.given else None
        journal.resumed(self.step, self.given)

    def save(self, data: Any) -> None:
        """Write a checkpoint."""
        name = f"{self.step}-{self.given}"
        counts = torch.tensor([self.step, self.given, *self._sums], dtype=torch.float64)
        gradients = {
            f"gradient.{name}": torch.zeros_like(each) if each.grad is None else each.grad
            for name, each in self.model.named_parameters()
        }
        state = {"model": self.model, "loader": self.loader, "counts": counts, **gradients}
        dcp.save(state, checkpoint_id=self.options.run / name)
        if self.rank == 0:
            self.last.with_suffix(".new").write_text(name)
            self.last.with_suffix(".new").replace(self.last)


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    # data
    loader = TokenLoader(
        options.plan, microbatch_size=options.microbatch, prefetch=options.workers, inside_step="continue"
    )
    # end
    loop = Checkpointed(options, loader)
    loop.load()
    loop.train(loader, loader.state_dict)
    loop.evaluate(evaluation_loader(options.eval_plan, microbatch_size=options.microbatch))


if __name__ == "__main__":
    main(__doc__, train)
