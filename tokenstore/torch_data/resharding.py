"""What Accelerate, and so the Trainer of transformers, does to datasets: it splits and shuffles what a plan has split and shuffled.

`accelerator.prepare(DataLoader(dataset))` makes another loader. While that is iterated over, Accelerate keeps a reference to
it; this is how a dataset finds out who reads it. Accelerate is not imported: where nobody has, there is nothing to find.
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
    """Refuse (ConfigError) batches of one rank that Accelerate would deal out to all processes.

    Process p is dealt batches p, p + 1, ... of every round. That is right for a dataset of all rows, if each step has
    whole rounds.
    """
    loader = _prepared_loader(dataset)
    if loader is None or (processes := _processes(loader)) == 1:
        return
    if split.place.world_size > 1:
        raise _refused(
            loader,
            f"TokenDataset: Accelerate deals out what process 0 reads to all {processes} processes, but this dataset gives"
            f" rank {split.place.rank} of {split.place.world_size} its own rows already; most rows would never be trained."
            f" {_ADVICE}; or let Accelerate split: TokenDataset(plan, rank=0, world_size=1, microbatch_size=...)",
        )
    for stage in split.plan.schedule.stages:
        microbatches = stage.global_batch_size // split.rows_a_microbatch(stage.from_step)
        round = processes * (loader.batch_size or 1)
        if getattr(loader, "split_batches", False) or microbatches % round:
            raise _refused(
                loader,
                f"TokenDataset: Accelerate deals out {round} batches at a time, and a step from step {stage.from_step} on has"
                f" {microbatches}, so steps would be mixed. Choose a microbatch_size of which a step has a multiple of"
                f" {round}, without split_batches. Or: {_ADVICE}",
            )


def check_sampler(dataset: Any, plan: Plan) -> None:
    """Refuse (ConfigError) an order of sequences that is not the plan's where nobody may have asked for it: the Trainer's."""
    loader = _prepared_loader(dataset)
    if loader is None:
        return
    sampler = loader.batch_sampler
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    if isinstance(getattr(sampler, "sampler", None), RandomSampler):
        raise _refused(
            loader,
            "SequenceDataset: a RandomSampler would shuffle the plan's sequences again, so that no step is the plan's. Give"
            ' TrainingArguments(train_sampling_strategy="sequential"), or omit shuffle=True in a DataLoader. For exact'
            f" resuming: {_ADVICE}",
        )
    if plan.schedule.skip_steps:
        raise _refused(
            loader,
            "SequenceDataset: Accelerate would also read the sequences of the steps in skip_steps, which keep their numbers."
            f" {_ADVICE}",
        )


def _refused(loader: Any, message: str) -> ConfigError:
    """The error, with the loader's iteration ended: the dataset may be used without it."""
    loader.end()
    return ConfigError(message)


def _prepared_loader(dataset: Any) -> Any | None:
    """Accelerate's loader of `dataset` that is being iterated over, if there is one."""
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
    """The processes among which a loader of Accelerate deals out the items of an iterable dataset."""
    if isinstance(loader, sys.modules["accelerate.data_loader"].DataLoaderDispatcher):
        return 1 if loader.submesh_tp else loader.state.num_processes
    return getattr(loader.dataset, "num_processes", 1)
