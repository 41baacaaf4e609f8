"""Build two stores, train, kill -9, and resume from one integer with another world size."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any

import yaml

import tokenstore
from tokenstore.builder import BuildOptions, build_store
from tokenstore.examples.demo.train import CHECKPOINT_EVERY
from tokenstore.examples.sources import standard_library_files, write_prose

PLAN = {
    "sequence_length": 256,
    "global_batch_size": 8,
    "seed": 1234,
    "num_steps": 60,
    "sources": {"code": {"path": "stores/code", "weight": 0.7}, "prose": {"path": "stores/prose", "weight": 0.3}},
}
KILL_AFTER = 34


def build(folder: Path) -> None:
    """Build two stores: the code of the standard library, and its docstrings."""
    files = standard_library_files()
    prose = folder / "prose.jsonl"
    count = write_prose(files, prose)
    print(f"    {len(files)} modules of Python {sys.version.split()[0]} as code, their {count} docstrings as prose")
    for name, inputs in (("code", tuple(map(str, files))), ("prose", (str(prose),))):
        result = build_store(
            BuildOptions(inputs=inputs, output=folder / "stores" / name, tokenizer="bytes", text_endings=(".py",))
        )
        findings = tokenstore.verify(result.path)
        print(
            f"    {name:5} {result.num_documents:6,} documents {result.num_tokens:10,} tokens as {result.dtype},"
            f" verified: {findings if findings else 'no damage'}"
        )


def start(folder: Path, name: str, ranks: int, *options: str) -> list[subprocess.Popen[bytes]]:
    """Start the training script in `ranks` processes."""
    port = _free_port()
    processes = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [
            sys.executable,
            "-m",
            "tokenstore.examples.demo.train",
            folder / "plan.yaml",
            folder / f"{name}.pt",
            folder / name,
        ]
        processes.append(subprocess.Popen([*map(str, command), *options], env={**environ, **variables}))
    return processes


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all processes; exit if one failed."""
    try:
        for process in processes:
            if process.wait() != 0:
                raise SystemExit(f"the training process failed with code {process.returncode}")
    finally:
        for process in processes:  # after an interrupt, or where one process failed, the others would wait
            process.kill()
            process.wait()


def read_log(folder: Path, name: str, ranks: int) -> dict[int, dict[str, Any]]:
    """{step: {"loss", "rows"}} with the rows of all ranks. Of a repeated step, the last run counts."""
    steps: dict[int, dict[str, Any]] = {}
    for rank in range(ranks):
        seen = {}
        for line in (folder / f"{name}.{rank}").read_text().splitlines():
            row = json.loads(line)
            seen[row["step"]] = row
        for step, row in seen.items():
            together = steps.setdefault(step, {"loss": row["loss"], "rows": []})
            together["rows"] += row["rows"]
    return steps


def kill_midway(folder: Path) -> int:
    """Train, and kill -9 the process after some steps; return its last step."""
    (process,) = start(folder, "killed", 1)
    log = folder / "killed.0"
    while process.poll() is None and (not log.exists() or log.read_text().count("\n") <= KILL_AFTER):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return max(read_log(folder, "killed", 1))


def show_losses(
    whole: dict[int, dict[str, Any]], killed: dict[int, dict[str, Any]], resumed: dict[int, dict[str, Any]]
) -> None:
    """Print a table of the three losses, with a bar chart of the first."""
    top = max(row["loss"] for row in whole.values())
    print("    step   uninterrupted   killed    resumed   (loss)")
    for step in sorted({*range(0, len(whole), 6), *(s for s in whole if abs(s - min(resumed)) < 2), len(whole) - 1}):
        cells = [f"{run[step]['loss']:9.4f}" if step in run else "        -" for run in (whole, killed, resumed)]
        print(f"    {step:4}       {'  '.join(cells)}   {'#' * round(28 * whole[step]['loss'] / top)}")


def check(folder: Path) -> None:
    """Check that the batches of the resumed and the uninterrupted run are equal, and their losses except for rounding."""
    whole, killed = read_log(folder, "whole", 1), read_log(folder, "killed", 1)
    resumed = read_log(folder, "resumed", 2)
    show_losses(whole, killed, resumed)
    rows_same = all(row["rows"] == whole[step]["rows"] for run in (killed, resumed) for step, row in run.items())
    complete = set(killed) | set(resumed) == set(whole)
    worst = max(abs(row["loss"] - whole[step]["loss"]) for step, row in resumed.items())
    print(
        f"\n    every row of every batch equals that of the uninterrupted run: {'yes' if rows_same and complete else 'NO'}"
    )
    print(f"    largest difference in loss after resuming with 2 processes: {worst:.1e} (the order of float sums)")
    if not (rows_same and complete and worst < 1e-2):
        raise SystemExit("the runs differ")


def mixture(folder: Path) -> None:
    """Print what the model has seen, computed from the plan."""
    plan = tokenstore.Plan(tokenstore.PlanConfig.load(folder / "plan.yaml"))
    for name, seen in plan.progress(plan.last_start).items():
        print(
            f"    {name:5} {seen.sequences:4} sequences, {seen.tokens:7,} tokens, {seen.epochs:.4f} epochs,"
            f" weight: target {seen.weight:.3f}, actual {seen.realised_weight:.3f}"
        )
    piece = plan.documents(40)[0][0]
    print(f"    step 40, row 0 begins with {piece.source} document {piece.document}, tokens {piece.start}:{piece.stop}")


@contextmanager
def chapter(title: str) -> Iterator[None]:
    """Print a title, run the block, and print its seconds."""
    print(f"{title}")
    begin = time.monotonic()
    yield
    print(f"    ({time.monotonic() - begin:.1f} s)\n")


def run(folder: Path) -> None:
    """Run the demo in an empty folder. Raises SystemExit if a training process fails or two runs differ."""
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN, sort_keys=False))
    with chapter("1. Build two stores from real text"):
        build(folder)
    with chapter(f"2. Train {PLAN['num_steps']} steps without interruption, 1 process"):
        finish(start(folder, "whole", 1))
    with chapter(f"3. Train again, and kill -9 the process after step {KILL_AFTER}"):
        last = kill_midway(folder)
        print(
            f"    killed after step {last}; its last checkpoint is for step {last + 1 - (last + 1) % CHECKPOINT_EVERY}"
        )
    with chapter("4. Resume from that step alone, with 2 processes instead of 1"):
        shutil.copy(folder / "killed.pt", folder / "resumed.pt")
        finish(start(folder, "resumed", 2, "--resume"))
    with chapter("5. Compare"):
        check(folder)
    with chapter("6. Ask the plan what the model saw"):
        mixture(folder)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port
