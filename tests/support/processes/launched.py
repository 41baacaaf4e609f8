"""Real processes of a training run, started by torchrun, which connect over gloo and save what they trained."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 240  # reached only by a process that hangs, even on a busy machine


def run_ranks(module: str, world_size: int, *arguments: object, cuda: bool = False) -> None:
    """Run a test module on several processes of this machine to its end; with `cuda`, each may see all CUDA devices."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    command = [*torchrun, "-m", module, *map(str, arguments)]
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | ({} if cuda else {"CUDA_VISIBLE_DEVICES": ""})
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]


def leave(folder: Path, name: str, trained: Any) -> None:
    """In a process: save what this rank loaded in one run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.{os.environ['RANK']}").write_bytes(pickle.dumps(trained))


def left(folder: Path, name: str, world_size: int) -> list[Any]:
    """In the test: what every rank loaded in one run."""
    return [pickle.loads((folder / f"{name}.{rank}").read_bytes()) for rank in range(world_size)]
