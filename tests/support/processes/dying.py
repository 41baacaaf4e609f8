"""A `--map` function whose process dies once, in the middle of a unit."""

import os
import signal
from pathlib import Path
from typing import Any


def once(record: dict[str, Any]) -> dict[str, Any]:
    """Kill this process at the record that names a file that does not exist yet, and create that file."""
    if path := record.get("die"):
        try:
            Path(path).touch(exist_ok=False)
        except FileExistsError:
            return record
        os.kill(os.getpid(), signal.SIGKILL)
    return record


def always(record: dict[str, Any]) -> dict[str, Any]:
    """Kill this process at the records that `once` would die at, every time."""
    if record.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return record
