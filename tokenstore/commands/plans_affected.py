"""Which sources of plans use a store, and in which version."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.paths import resolved


@dataclass(frozen=True)
class PlanUse:
    """A source of a plan that reads a store, in a version; None for the newest."""

    plan: Path
    source: str
    version: int | None


def uses_of(plans: Sequence[Path], store: Path) -> list[PlanUse]:
    """The sources of the plans that read the store, or a store in its folder. ConfigError for a plan that cannot be read."""
    if not plans:
        return []
    from tokenstore.planning.config import PlanConfig  # numba comes with planning

    found = []
    place = resolved(store)
    for plan in plans:
        for name, source in PlanConfig.load(plan).sources.items():  # members of pools are sources with a path too
            path = None if source.path is None else resolved(source.path)
            if path is not None and (path == place or place in path.parents):
                found.append(PlanUse(plan, name, source.version))
    return found
