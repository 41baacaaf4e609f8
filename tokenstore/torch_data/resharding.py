"""Detects that Accelerate, or the Trainer of transformers, would divide or shuffle a dataset whose plan has done so already.

`accelerator.prepare(DataLoader(dataset))` makes another loader. While it is iterated, Accelerate keeps a reference to it, and
this is how a dataset finds the loader that reads it. Accelerate is not imported here: if the program has not imported it,
there is nothing to find.
"""

import sys
from typing import Any

from torch.utils.data import RandomSampler

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.position import Split

_ADVICE = (
    "Iterate over a tokenstore.TokenLoader, which accelerator.prepare() returns unchanged; with the Trainer of transformers"
    " use TokenTrainerMixin of tokenstore.trainers.huggingface"
)


def check_dealing(dataset: Any, split: Split) -> None:
    """Refuse a TokenDataset of one rank whose batches Accelerate would distribute to all processes.

    In every round, Accelerate sends one batch (or `loader.batch_size` batches) to each process. This is right for a dataset
    with all rows, if a step has a whole number of rounds.

    Raises: ConfigError: processes would train on the wrong rows.
    """
    loader = _prepared_loader(dataset)
    if loader is None or (processes := _processes(loader)) == 1:
        return
    if split.place.world_size > 1:
        raise _refused(
            loader,
            f"TokenDataset: Accelerate distributes the batches of process 0 to all {processes} processes, but this dataset"
            f" has only the rows of rank {split.place.rank} of {split.place.world_size}; most rows would never be trained on."
            f" {_ADVICE}; or let Accelerate distribute: TokenDataset(plan, rank=0, world_size=1, microbatch_size=...)",
        )
    for stage in split.plan.schedule.stages:
        microbatches = stage.global_batch_size // split.rows_a_microbatch(stage.from_step)
        round = processes * (loader.batch_size or 1)
        if getattr(loader, "split_batches", False) or microbatches % round:
            raise _refused(
                loader,
                f"TokenDataset: Accelerate distributes {round} batches at a time, but steps from step {stage.from_step} have"
                f" {microbatches}, so steps would be mixed. Choose a microbatch_size such that a step has a multiple of"
                f" {round} microbatches, without split_batches. Or: {_ADVICE}",
            )


def check_sampler(dataset: Any, plan: Plan) -> None:
    """Refuse a loader that would read a SequenceDataset in an order other than the plan's, such as the Trainer's default.

    Raises: ConfigError: a RandomSampler would shuffle the sequences, or skipped steps would be read.
    """
    loader = _prepared_loader(dataset)
    if loader is None:
        return
    sampler = loader.batch_sampler
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    if isinstance(getattr(sampler, "sampler", None), RandomSampler):
        raise _refused(
            loader,
            "SequenceDataset: a RandomSampler would shuffle the plan's sequences again, so no step would be that of the plan."
            ' Set TrainingArguments(train_sampling_strategy="sequential"), or omit shuffle=True in a DataLoader. To resume'
            f" exactly: {_ADVICE}",
        )
    if plan.schedule.skip_steps:
        raise _refused(
            loader,
            "SequenceDataset: Accelerate would also read the sequences of skipped steps, which keep their numbers."
            f" {_ADVICE}",
        )


def _refused(loader: Any, message: str) -> ConfigError:
    """The error. Ends the iteration of the loader, so that the dataset can be used without it."""
    loader.end()
    return ConfigError(message)


def _prepared_loader(dataset: Any) -> Any | None:
    """Accelerate's loader that is currently iterating over `dataset`, if any."""
    module = sys.modules.get("accelerate.state")
    references = module.GradientState().dataloader_references if module else ()
    for loader in references:
        found = getattr(loader, "dataset", None)
        while found is not None:
            if found is dataset:
                return loader
            found = getattr(found, "dataset", None)  # IterableDatasetShard, Subset and other wrappers
    return None


def _processes(loader: Any) -> int:
    """Number of processes among which a loader of Accelerate distributes the items of an iterable dataset."""
    if isinstance(loader, sys.modules["accelerate.data_loader"].DataLoaderDispatcher):
        return 1 if loader.submesh_tp else loader.state.num_processes
    return getattr(loader.dataset, "num_processes", 1)
