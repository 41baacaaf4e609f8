"""Stores whose tokens come from an object store, while their indexes are read from a local copy."""

from pathlib import Path
from typing import Any

from tokenstore import Plan
from tokenstore.store.remote.client import Client
from tokenstore.store.remote.location import Location
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.remote.token_files import TokenFiles


def tokens_at(plan: Plan, url: str, **options: Any) -> Plan:
    """Let the stores of `plan`, of which nothing has been read yet, read tokens and masks from URL/NAME. Returns the plan."""
    for name, store in plan.stores.items():
        resolved = RemoteOptions(**options).resolved()
        client = Client(Location.of(f"{url}/{name}"), resolved.deadline)
        store.token_files = TokenFiles(client, store.manifest, {}, resolved, store.block_checksums)
    return plan


def files_of(plan: Plan, name: str | None = None) -> TokenFiles:
    """The token files of a store of the plan, by default of the first one."""
    found = plan.stores[name or next(iter(plan.stores))].token_files
    assert found is not None
    return found


def cached_files(cache: Path) -> list[Path]:
    """The files of all mirrors in a cache folder."""
    return sorted(path for path in cache.rglob("*.blocks"))
