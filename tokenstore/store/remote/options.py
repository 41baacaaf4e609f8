"""How the tokens of a store at a URL travel: a matter of this process and machine, never of a plan or a run.

The environment variables TOKENSTORE_CACHE, TOKENSTORE_CACHE_LIMIT, TOKENSTORE_TRANSPORT and TOKENSTORE_DEADLINE give the
options that are not passed.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.store.files import environment
from tokenstore.store.remote.client import DEADLINE

TRANSPORTS = ("auto", "spans", "blocks", "mirror")
_UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class RemoteOptions:
    """How to read stores at URLs. The batches do not depend on it.

    Attributes:
        cache: folder for what is downloaded, on a local disk; several runs and ranks can share it. Default:
            TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
        cache_limit: most bytes of tokens to keep there, as an int or a text such as "500 GB". Default:
            TOKENSTORE_CACHE_LIMIT, otherwise half of what is free on that disk or used by the cache.
        transport: "spans" fetches the rows of each batch and keeps nothing; "mirror" keeps what it fetches in the cache, and
            is refused if the store does not fit; "blocks" keeps the blocks that the lanes of a source are reading, is refused
            if they do not fit, and reads sources without `locality` as spans; "auto" uses blocks for a source with
            `locality` and a mirror for any other, where that fits, otherwise spans. Default: TOKENSTORE_TRANSPORT, otherwise
            "auto".
        deadline: seconds after which a request that keeps failing is an error. Default: TOKENSTORE_DEADLINE, otherwise 120.

    Raises:
        ConfigError: an option has an invalid value.

    Example:
        >>> remote = RemoteOptions(cache="/nvme/cache", cache_limit="2 TB")
        >>> plan = Plan("plan.yaml", remote=remote)
    """

    cache: Path | str | None = None
    cache_limit: int | str | None = None
    transport: str | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.transport is not None and self.transport not in TRANSPORTS:
            raise ConfigError(f"transport: expected one of {', '.join(TRANSPORTS)}, found {self.transport!r}")
        if self.deadline is not None and not (isinstance(self.deadline, int | float) and 0 < self.deadline < 1e6):
            raise ConfigError(f"deadline: expected seconds above 0, found {self.deadline!r}")
        if self.cache_limit is not None:
            object.__setattr__(self, "cache_limit", num_bytes_of("cache_limit", self.cache_limit))
        if self.cache is not None:
            if not isinstance(self.cache, str | Path):
                raise ConfigError(f"cache: expected the path of a folder, found {self.cache!r}")
            object.__setattr__(self, "cache", Path(self.cache).expanduser().absolute())

    def resolved(self) -> "ResolvedOptions":
        """These options, with the environment's and the defaults in place of those that were not passed.

        Raises:
            ConfigError: an environment variable has an invalid value.
        """
        given: dict[str, Any] = {
            name: value
            for name in ("cache", "cache_limit", "transport")
            if getattr(self, name) is None and (value := environment(f"TOKENSTORE_{name.upper()}"))
        }
        if self.deadline is None and (text := environment("TOKENSTORE_DEADLINE")):
            given["deadline"] = _seconds(text)
        try:
            all_ = replace(self, **given)
        except ConfigError as error:
            raise ConfigError(f"{error} (in the environment, as TOKENSTORE_...)") from None
        cache = Path(all_.cache) if all_.cache else Path("~/.cache/tokenstore").expanduser()
        limit = None if all_.cache_limit is None else int(all_.cache_limit)
        return ResolvedOptions(cache, limit, all_.transport or "auto", all_.deadline or DEADLINE)


@dataclass(frozen=True)
class ResolvedOptions:
    """RemoteOptions with all defaults filled in; `cache_limit` is None for half of the free disk."""

    cache: Path
    cache_limit: int | None
    transport: str
    deadline: float


def num_bytes_of(name: str, value: int | str) -> int:
    """A size such as 5000 or "500 GB" in bytes. Raises: ConfigError: `value` is none; the message begins with `name`."""
    found = _SIZE.fullmatch(str(value))
    if isinstance(value, bool) or found is None or found[2].lower() not in _UNITS:
        raise ConfigError(f'{name}: expected a number of bytes such as 500000000 or "500 GB", found {value!r}')
    return int(float(found[1]) * _UNITS[found[2].lower()]) if found[2] or "." in found[1] else int(found[1])


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"TOKENSTORE_DEADLINE: expected a number of seconds, found {text!r}") from None
