"""Claims: from an object store with 50 ms of latency, batches come as from a disk, and hardly a byte is fetched that is not used.

Resources: requests hide latency by being many at once; one core serves and one reads. The server is that of the tests, in a
process of its own on the loopback interface: no TLS, no signature check, no limit on bandwidth. Every loader reads an epoch of
the same tokens, shuffled, in batches of 8 x 2048 with a step of 5 ms; indexes are cached by a start before. The limit is the same
loader on the local disk.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benches.remote_peers import BATCH, LENGTH, PEERS
from benches.scenes import Row, show, token_store
from tokenstore import open_store

LATENCY = 0.05
_WAIT_SECONDS = 600


class Server:
    """A process that serves a folder as bucket `data`."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self._process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()

    def count(self) -> tuple[int, int]:
        """Requests and bytes since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        requests, num_bytes = self._process.stdout.readline().split()
        return int(requests), int(num_bytes)

    @property
    def environment(self) -> dict[str, str]:
        """What clients of S3 need."""
        names = {"AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        return {**os.environ, **names, "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}


@contextmanager
def served(root: Path, rate: float = 0) -> Iterator[Server]:
    """Serve a folder with latency. rate: most answers per second; 0 for no limit."""
    command = [sys.executable, "-m", "tests.support.servers.range_server", str(root), str(LATENCY), "0", str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            process.wait(10)


def ask(name: str, root: Path, cache: Path, steps: int | str, environment: dict[str, str]) -> Any:
    """What the process of a loader prints; RuntimeError with its last line if it fails."""
    command = [sys.executable, "-m", "benches.remote_peers", name, str(root), str(cache), str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_WAIT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return json.loads(done.stdout) if done.stdout else None


def run(folder: Path, smoke: bool) -> list[Row]:
    """One row per loader."""
    num_tokens = 1 << (19 if smoke else 24)
    root, rows = folder / "root", []
    root.mkdir()
    with open_store(token_store(root / "store", 9, num_tokens)) as store:
        steps = store.num_tokens // LENGTH // BATCH
    usable = {}
    for name, peer in PEERS.items():
        if not all(find_spec(module.split(".")[0]) for module in peer.modules):
            rows.append(Row(f"an epoch over S3 by {name}", "not installed", "", "benches/requirements-peers.txt"))
            continue
        try:
            ask(name, root, folder / "unused", "prepare", dict(os.environ))
            usable[name] = folder / f"cache of {name}"
        except RuntimeError as error:
            rows.append(Row(f"an epoch over S3 by {name}", "fails here", "", str(error)[:200]))
    local: dict[str, Any] = {}
    with served(root) as server:
        for name, cache in usable.items():
            cache.mkdir()
            try:
                if name.startswith("tokenstore"):  # caches the indexes
                    ask("tokenstore, spans", root, cache, 0, server.environment)
                server.count()
                found = ask(name, root, cache, steps, server.environment)
            except RuntimeError as error:
                rows.append(Row(f"an epoch over S3 by {name}", "fails here", "", str(error)[:200]))
                continue
            local = local or found
            rows.append(_row(name, found, server.count(), local))
    return rows


_REACH = {
    "tokenstore, spans": "first batch <= 1 s above the disk, <= 1.02 bytes per byte",
    "tokenstore, blocks": "first batch <= 1 s above the disk",
    "tokenstore, mirror": "first batch <= 1 s above the disk, <= 1.05 bytes per byte",
}


def _row(name: str, found: dict[str, Any], count: tuple[int, int], local: dict[str, Any]) -> Row:
    requests, num_bytes = count
    waits = [1000 * wait for wait in found["waits"]]
    used = 2 * found["batches"] * BATCH * LENGTH
    late = waits[len(waits) // 10 :]  # after the start
    value = f"wait {show(median(waits), 'ms')} (p99 {show(float(np.percentile(waits, 99)), 'ms')})"
    beside = (
        f"first batch {found['first']:.2f} s, {found['first'] - local['first']:+.2f} s to the disk; after a tenth of the epoch"
        f" p99 {show(float(np.percentile(late, 99)), 'ms')}; {num_bytes / used:.3f} bytes fetched per byte used in {requests:,}"
        f" requests; {found['disk'] / used:.2f} bytes of disk per byte; {found['batches']:,} batches"
    )
    return Row(f"an epoch over S3 by {name}, wait for a batch with a 5 ms step", value, _REACH.get(name, ""), beside)
