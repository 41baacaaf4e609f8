"""A lock for file systems without `flock`: a file that only one process can create. It names its holder.

The kernel does not remove it when its holder dies. Nobody can know from another host whether that process is alive, so only a
person decides: with `--break-lock`.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from tokenstore.errors import StoreBusyError, TokenStoreError
from tokenstore.store.files import read_bytes
from tokenstore.store.private import host_and_pid
from tokenstore.store.writing import create, remove, sync
from tokenstore.text import safe

LOCK_NAME = "lock.json"
_MAX_BYTES = 1 << 10


def take(folder: Path, break_lock: bool) -> None:
    """Create the lock file in `folder`.

    Raises:
        StoreBusyError: another process created it and is writing, or has died. Not if `break_lock`.
    """
    if break_lock:
        remove(folder / LOCK_NAME)
    host, pid = host_and_pid()
    holder = {"host": host, "pid": pid, "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
    try:
        with create(folder / LOCK_NAME) as file:
            file.write(json.dumps(holder).encode())
            sync(file)
    except FileExistsError:
        now = _holder(folder)
        raise StoreBusyError(
            f"store: process {safe(str(now.get('pid', 'unknown')))} on {safe(str(now.get('host', 'an unknown host')))} has been"
            f" writing it since {safe(str(now.get('since', 'an unknown time')))} ({folder / LOCK_NAME}); wait for it. This file"
            " system has no locks that end with their process: if that process has died, add --break-lock"
        ) from None


def leave(folder: Path) -> None:
    """Remove the lock file if this process holds it."""
    now = _holder(folder)
    if (now.get("host"), now.get("pid")) == host_and_pid():
        with contextlib.suppress(OSError):
            remove(folder / LOCK_NAME)


def _holder(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(folder / LOCK_NAME, _MAX_BYTES))
    except (TokenStoreError, OSError, ValueError, RecursionError):  # removed or being written, or made by somebody else
        return {}
    return found if isinstance(found, dict) else {}
