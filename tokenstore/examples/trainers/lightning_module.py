"""Train a plan with the Trainer of Lightning.

python -m tokenstore.examples.trainers.lightning_module DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.lightning_module DATA RUN
"""

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, Tiny, main, world
from tokenstore.trainers.lightning import TokenDataModule


class Model(LightningModule):
    """A Tiny that reports its losses over all targets of a step and of an evaluation."""

    def __init__(self, options: Options):
        super().__init__()
        self.model = Tiny(options.vocab_size)
        journal.watch(self.model, options.plan, options.eval_plan)
        self._sums = torch.zeros(2)

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, targets = self.model(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten()
        total = functional.cross_entropy(logits, targets, reduction="sum")
        count = (targets != -100).sum()
        self._sums += torch.tensor([total.item(), count])
        return total / count

    def _mean(self) -> float:
        if dist.is_initialized():
            dist.all_reduce(self._sums)
        total, count = self._sums.tolist()
        self._sums.zero_()
        return float(total / count)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The mean loss of a microbatch."""
        return self._loss(batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The gradients of a step are complete."""
        journal.loss(self.trainer.global_step, self._mean())

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Count the losses of a microbatch."""
        self._loss(batch)

    def on_validation_epoch_end(self) -> None:
        """Report the loss of the evaluation."""
        journal.evaluated(self._mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.5)


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    _, world_size = world()
    # data
    data = TokenDataModule(
        options.plan,
        microbatch_size=options.microbatch,
        val_plan=options.eval_plan,
        eval_microbatch_size=options.microbatch,
        prefetch=options.workers,
    )
    # end
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        accumulate_grad_batches=options.plan.global_batch_size(0) // (options.microbatch * world_size),
        callbacks=[ModelCheckpoint(options.run, "{step}", every_n_train_steps=1, save_top_k=-1)],
        default_root_dir=options.run,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
    )
    saved = sorted(options.run.glob("step=*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    journal.resumed(int(saved[-1].stem.removeprefix("step=")) if saved else 0)
    trainer.fit(Model(options), data, ckpt_path=saved[-1] if saved else None, weights_only=False)


if __name__ == "__main__":
    main(__doc__, train)
