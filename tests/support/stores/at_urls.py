"""Stores at URLs, for tests of how tokens travel."""

from pathlib import Path
from typing import Any

from tokenstore import Plan, RemoteOptions
from tokenstore.store.remote.token_files import TokenFiles


def plan_at(url: str, cache: Path, fields: dict[str, Any] | None = None, **options: Any) -> Plan:
    """A plan over one store at a URL."""
    remote = RemoteOptions(cache=cache, **{"deadline": 60, **options})
    all_: dict[str, Any] = {
        "sequence_length": 64,
        "global_batch_size": 8,
        "packing": "concat",
        "seed": 3,
        "num_steps": 40,
        **(fields or {}),
    }
    return Plan.of(url, remote=remote, **all_)


def files_of(plan: Plan, name: str | None = None) -> TokenFiles:
    """The token files of a store of the plan, by default of the first one."""
    found = plan.stores[name or next(iter(plan.stores))].token_files
    assert found is not None
    return found


def cached_files(cache: Path) -> list[Path]:
    """The files of all mirrors in a cache folder."""
    return sorted(path for path in cache.rglob("*.blocks"))
