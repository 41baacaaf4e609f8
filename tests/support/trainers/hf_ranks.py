"""One rank of the Trainer of transformers: `python -m tests.support.trainers.hf_ranks FOLDER`, on the CPU."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator

from tests.support.processes.launched import leave
from tests.support.trainers.hf_model import Recording, TokenTrainer, quiet_arguments, tiny_model
from tests.support.trainers.microbatches import small_plan
from tokenstore import Plan, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError


def train(folder: Path, name: str, size: int, accumulation: int, after: Path | None = None, **options: Any) -> None:
    """One run of two ranks; saves its results."""
    eval_plan = Plan.of(folder / "v", 8, 4, num_steps=3)
    arguments = quiet_arguments(folder / name, size, accumulation, ddp_backend="gloo", **options)
    trainer = TokenTrainer(tiny_model(), arguments, train_plan=small_plan(folder / "a"), eval_plan=eval_plan)
    trainer.train(resume_from_checkpoint=after and str(after))
    weights = trainer.model.lm_head.weight.detach().numpy().copy()
    leave(folder, name, {"trained": trainer.trained, "evaluated": trainer.evaluated, "weights": weights})


def prepare(folder: Path) -> None:
    """The loader as prepared by Accelerate."""
    loader = TokenLoader(small_plan(folder / "a"), microbatch_size=2)
    prepared = Accelerator(cpu=True).prepare(loader)
    leave(folder, "prepared", (prepared is loader, [batch["input_ids"].numpy() for batch in prepared]))


def datasets(folder: Path) -> None:
    """Datasets in a plain Trainer: the rows, or the error."""
    plan = small_plan(folder / "a", num_steps=3, skip_steps=[])
    sequential = {"train_sampling_strategy": "sequential"}
    uses: list[tuple[str, Any, dict]] = [
        ("own", TokenDataset(plan, microbatch_size=2, format="hf"), {}),
        ("all", TokenDataset(plan, rank=0, world_size=1, microbatch_size=2, format="hf"), {"max_steps": 3}),
        ("shuffled", SequenceDataset(plan, format="hf"), {}),
        ("sequential", SequenceDataset(plan, format="hf"), sequential),
    ]
    for name, dataset, options in uses:
        whole = isinstance(dataset, TokenDataset)
        arguments = quiet_arguments(
            folder / name, 1 if whole else 2, 2, ddp_backend="gloo", save_strategy="no", **options
        )
        collator = (lambda batches: batches[0]) if whole else None
        trainer = Recording(tiny_model(), arguments, train_dataset=dataset, data_collator=collator)
        try:
            trainer.train()
            leave(folder, name, trainer.ids)
        except ConfigError as error:
            leave(folder, name, str(error))


def main(folder: Path) -> None:
    """All runs of two ranks, in the same processes, because starting them takes most of the time."""
    torch.set_num_threads(1)
    train(folder, "whole", 2, 2, eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=1)
    train(folder, "again", 4, 1, folder / "whole" / "checkpoint-2")
    train(folder, "from_one", 1, 4, folder / "one" / "checkpoint-3")
    prepare(folder)
    datasets(folder)
    dist.destroy_process_group()  # gloo's threads must not be running when the process ends: it may abort then


if __name__ == "__main__":
    main(Path(sys.argv[1]))
