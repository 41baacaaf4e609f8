"""A tiny model for Lightning that records its batches, and a silent Trainer."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Broken(Exception):
    """Raised by a Recorder where it is to stop."""


class Recorder(LightningModule):
    """A model with one weight, whose gradient depends on the batch.

    Attributes:
        trained: (global_step, input_ids) of every microbatch, in order.
        evaluated: input_ids of every microbatch, one list per validation.
        stop_at: number of the microbatch of this process at which training_step raises before it does anything.
    """

    def __init__(self, total_steps: bool = False, manual: bool = False, stop_at: int | None = None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[tuple[int, Any]] = []
        self.evaluated: list[list[Any]] = []
        self.total_steps, self.stop_at = total_steps, stop_at
        self.automatic_optimization = not manual

    @property
    def ids(self) -> list[Any]:
        """input_ids of the trained batches."""
        return [ids for _, ids in self.trained]

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor | None:
        if len(self.trained) == self.stop_at:
            raise Broken
        self.trained.append((self.trainer.global_step, batch["input_ids"].numpy().copy()))
        loss = (self.weight - batch["input_ids"].float().mean()) ** 2
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        self.optimizers().step()
        return None

    def on_validation_epoch_start(self) -> None:
        self.evaluated.append([])

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.evaluated[-1].append(batch["input_ids"].numpy().copy())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if not self.total_steps:
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def quiet_trainer(folder: Path, every: int | None = None, **options: Any) -> Trainer:
    """A Trainer on the CPU that saves checkpoints as step=N.ckpt in `folder`."""
    callbacks = list(options.pop("callbacks", ()))
    if every:
        saved = ModelCheckpoint(folder, "{step}", every_n_train_steps=every, save_top_k=-1)
        callbacks.append(saved)
    defaults = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    defaults |= {
        "enable_model_summary": False,
        "enable_checkpointing": every is not None,
        "use_distributed_sampler": True,
    }
    return Trainer(**{**defaults, "default_root_dir": folder, "callbacks": callbacks, **options})
