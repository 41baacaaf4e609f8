"""Run by the ranks of tests/support/processes/ranks.py: the rows that Accelerate yields, or its error."""

import os
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from tokenstore import Plan, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError


def accelerator(**options: Any) -> Accelerator:
    """An Accelerator of this rank, on the CPU."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= dict(zip(names, (rank, rank, size, size, "127.0.0.1", "0"), strict=True))
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def outcome(batches: Iterable[Any]) -> Any:
    """The rows, or the message of the error."""
    try:
        return [batch["input_ids"].tolist() for batch in batches]
    except ConfigError as error:
        return str(error)


def outcomes(plan: Plan) -> dict[str, Any]:
    """Every use on this rank, by name."""
    found: dict[str, Any] = {}
    dispatching, sharding = accelerator(), accelerator(dispatch_batches=False)

    def items(dataset: Any, **options: Any) -> DataLoader:
        return DataLoader(dataset, batch_size=None, **options)

    found["loader"] = outcome(dispatching.prepare(TokenLoader(plan, microbatch_size=2)))
    for workers in (0, 2):
        dataset = TokenDataset(plan, microbatch_size=2)
        found[f"own {workers}"] = outcome(dispatching.prepare(items(dataset, num_workers=workers)))
        dataset = TokenDataset(plan, rank=0, world_size=1, microbatch_size=2)
        found[f"all {workers}"] = outcome(dispatching.prepare(items(dataset, num_workers=workers)))
    whole = TokenDataset(plan, rank=0, world_size=1)
    found["whole steps"] = outcome(dispatching.prepare(items(whole)))

    def one(batches: list[Any]) -> Any:
        return batches[0]

    own, every = (TokenDataset(plan, microbatch_size=2, **more) for more in ({}, {"rank": 0, "world_size": 1}))
    found["own sharded"] = outcome(sharding.prepare(DataLoader(own, collate_fn=one)))
    found["all sharded"] = outcome(sharding.prepare(DataLoader(every, collate_fn=one)))
    found["unprepared"] = outcome(items(own))
    rows = SequenceDataset(plan)
    found["shuffled"] = outcome(dispatching.prepare(DataLoader(rows, batch_size=2, shuffle=True)))
    found["in order"] = outcome(dispatching.prepare(DataLoader(rows, batch_size=2)))
    return found
