"""Runs the example of a trainer in each scenario and compares its journal with the plan."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore import Plan
from tokenstore.examples.trainers.journal import IGNORED, checksum
from tools.trainer_matrix.trainers import SCENARIOS, Trainer

MICROBATCH, STEPS = 2, 6
PER_STEP = 4  # microbatches per step with one rank
KILL_BETWEEN, KILL_INSIDE = 3 * PER_STEP, 3 * PER_STEP + 2  # after three steps, and inside the fourth
WAIT_SECONDS = 1800  # reached only by a run that hangs, even on a busy machine
TOLERANCE = 2e-4  # relative; the trainers add floats in other orders, and some print few digits
LOCAL = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
}
LOCAL |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "RAY_TRAIN_V2_ENABLED": "1", "JAX_PLATFORMS": "cpu"}


class Wrong(Exception):
    """A run did something else than its plan."""


@dataclass
class Data:
    """The plans of all runs.

    Attributes:
        folder: what tokenstore.examples.data made.
        plan: 6 steps of 8 sequences.
        eval_plan: every document of the validation store once.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.plan, self.eval_plan = Plan(self.folder / "plan.yaml"), Plan(self.folder / "evaluation.yaml")


@dataclass
class Runner:
    """Runs the example of one trainer.

    Attributes:
        trainer: the trainer.
        python: the interpreter of its environment.
        data: the plans.
        work: an empty folder for checkpoints and journals.
        checkouts: {name: folder} of code that is no package.
    """

    trainer: Trainer
    python: Path
    data: Data
    work: Path
    checkouts: dict[str, Path]

    def cells(self) -> Iterator[tuple[str, str]]:
        """Run every scenario; yield (scenario, "yes" or what was wrong)."""
        self.work.mkdir(parents=True)
        for scenario in SCENARIOS:
            if reason := self.trainer.not_run.get(scenario):
                yield scenario, f"not run: {reason}"
                continue
            try:
                getattr(self, "_" + scenario.replace(" ", "_").replace("-", "_"))()
                yield scenario, "yes"
            except (Wrong, subprocess.TimeoutExpired) as error:
                yield scenario, f"no: {error}"

    # ---- scenarios

    def _uninterrupted(self) -> None:
        self._run("whole")
        self._check("whole", from_step=0)

    def _resumed(self) -> None:
        self._killed("killed", KILL_BETWEEN)
        self._resume("killed", "resumed", 3)

    def _other_world(self) -> None:
        self._killed("killed", KILL_BETWEEN)
        self._resume("killed", "two", 3, ranks=2)

    def _other_workers(self) -> None:
        self._killed("killed", KILL_BETWEEN)
        self._resume("killed", "workers", 3, workers=2)

    def _mid_step_state(self) -> None:
        """Saved inside a step, or else a step that starts again."""
        self._killed("inside", KILL_INSIDE)
        self._resume("inside", "inside-resumed", 3, given=KILL_INSIDE % PER_STEP if self.trainer.inside else 0)

    def _evaluation(self) -> None:
        """On one rank, and on two if that scenario was run."""
        self._check_evaluation("whole", 1)
        if "other world" not in self.trainer.not_run:
            self._check_evaluation("two", 2)

    # ---- runs

    def _killed(self, name: str, at: int) -> None:
        """A run that is killed before microbatch `at`, once."""
        if (self.work / "runs" / name).exists():
            return
        self._run(name, kill_at=at)
        rows = [line["rows"] for line in self._lines(name, 0, "train")]
        _same(rows, self._planned(0, 0, 1)[: len(rows)], f"{name}, rank 0")
        if len(rows) != at:
            raise Wrong(f"{name}: trained {len(rows)} microbatches before it was killed, not {at}")

    def _resume(self, killed: str, name: str, step: int, ranks: int = 1, workers: int = 0, given: int = 0) -> None:
        shutil.copytree(self.work / "runs" / killed, self.work / "runs" / name, symlinks=True)
        self._run(name, ranks=ranks, workers=workers)
        self._check(name, step, ranks, given)

    def _run(self, name: str, ranks: int = 1, workers: int = 0, kill_at: int | None = None) -> None:
        """Run the example to its end, or until it is killed."""
        paths = [os.getcwd(), *map(str, self.checkouts.values())]
        environment = {**os.environ, **LOCAL, "JOURNAL": str(self.work / "journals" / name)}
        environment |= {"PYTHONPATH": os.pathsep.join(paths)} | {
            f"CHECKOUT_{name.upper().replace('-', '_')}": str(path) for name, path in self.checkouts.items()
        }
        environment |= {} if kill_at is None else {"KILL_AT": str(kill_at)}
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launcher = torchrun if self.trainer.launcher and ranks > 1 else []
        options = ["--microbatch", self._microbatch(ranks), "--workers", workers]
        options += [] if self.trainer.launcher else ["--ranks", ranks]
        options += ["--inside"] if self.trainer.inside and name.startswith("inside") else []
        module = f"tokenstore.examples.trainers.{self.trainer.example}"
        command = [self.python, *launcher, "-m", module, self.data.folder, self.work / "runs" / name, *options]
        log = self.work / f"{name}.log"
        with log.open("w") as file:
            done = subprocess.run(
                list(map(str, command)),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=WAIT_SECONDS,
                check=False,
            )
        if (done.returncode == 0) == (kill_at is not None):
            raise Wrong(f"{name}: exited with {done.returncode}; {_last_line(log)}")

    # ---- comparisons

    def _microbatch(self, ranks: int) -> int:
        return MICROBATCH // ranks if self.trainer.scaled else MICROBATCH

    def _planned(self, from_step: int, rank: int, ranks: int, given: int = 0) -> list[list[int]]:
        """Checksums of the rows of every microbatch of a rank from a position on."""
        found: list[list[int]] = []
        size = self._microbatch(ranks)
        dealt = None if self.trainer.whole_steps else size
        for step in range(from_step, STEPS):
            rows = [checksum(row) for row in self.data.plan.batch(step, rank, ranks, dealt)["input_ids"]]
            found += [rows[first : first + size] for first in range(0, len(rows), size)]
        return found[given:]

    def _lines(self, name: str, rank: int, kind: str) -> list[dict[str, Any]]:
        path = self.work / "journals" / name / f"{rank}.jsonl"
        lines = list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
        if kind == "eval":  # only the last evaluation, if a trainer has several
            begins = [number for number, line in enumerate(lines) if line["kind"] == "evaluating"]
            lines = lines[begins[-1] :] if begins else lines
        return [line for line in lines if line["kind"] == kind and line.get("targets", 0) is not None]

    def _check(self, name: str, from_step: int, ranks: int = 1, given: int = 0) -> None:
        """Check the rows of every rank, and the losses that were reported."""
        start = [(line["step"], line["given"]) for line in self._lines(name, 0, "resumed")]
        if start not in [[(max(from_step - late, 0), given)] for late in range(self.trainer.lag + 1)]:
            raise Wrong(f"{name}: expected to start at step {from_step} after {given} microbatches, found {start}")
        from_step = start[0][0]
        for rank in range(ranks):
            rows = [line["rows"] for line in self._lines(name, rank, "train")]
            _same(rows, self._planned(from_step, rank, ranks, given), f"{name}, rank {rank} of {ranks}")
        reported = {line["step"]: line["value"] for line in self._lines(name, 0, "loss")}
        by_hand = self._losses(name, from_step + (given > 0), ranks, given and PER_STEP - given)
        if not set(by_hand) <= set(reported):
            raise Wrong(f"{name}: no loss was reported for steps {sorted(set(by_hand) - set(reported))}")
        for line in self._lines(name, 0, "tokens"):
            tokens = (
                (line["step"] - from_step + 1)
                * self.data.plan.global_batch_size(0)
                * self.data.plan.config.sequence_length
            )
            if line["value"] != tokens:
                raise Wrong(f"{name}: {line['value']} tokens were reported at step {line['step']}, expected {tokens}")
        for step, value in by_hand.items():
            _close(reported[step], value, f"{name}: loss of step {step}")

    def _losses(self, name: str, from_step: int, ranks: int, skip: int) -> dict[int, float]:
        """The loss of each whole step, computed by hand."""
        found, per_step = {}, PER_STEP if self.trainer.scaled else PER_STEP // ranks
        lines = [self._lines(name, rank, "train")[skip:] for rank in range(ranks)]
        for step in range(from_step, STEPS):
            first = (step - from_step) * per_step
            found[step] = self._mean([of_rank[first : first + per_step] for of_rank in lines], self.trainer.loss)
        return found

    def _mean(self, lines: list[list[dict[str, Any]]], definition: str) -> float:
        """The mean loss of microbatches, a list for each rank. `definition` is one of Trainer.loss."""
        groups = {
            "targets": [[line for of_rank in lines for line in of_rank]],
            "microbatches": [[line] for line in lines[0]],  # one without targets counts as 0
            "ranks": lines,
            "last": [lines[0][-1:]],
        }[definition]
        return float(
            np.mean([sum(x["sum"] for x in each) / max(sum(x["targets"] for x in each), 1) for each in groups])
        )

    def _check_evaluation(self, name: str, ranks: int) -> None:
        """Check that every row with a target was evaluated once, and the loss over all targets."""
        plan, lines = self.data.eval_plan, [self._lines(name, rank, "eval") for rank in range(ranks)]
        rows = sorted(row for of_rank in lines for line in of_rank for row in line["rows"])
        wanted: list[int] = []
        empty: set[int] = set()
        for step in range(plan.num_steps or 0):
            arrays = plan.batch(step)
            for row, targets in zip(arrays["input_ids"], arrays["targets"], strict=True):
                (empty.add if (targets == IGNORED).all() else wanted.append)(checksum(row))
        _same(
            [row for row in rows if row not in empty],
            sorted(set(wanted) - empty) and sorted(wanted),
            f"{name}: evaluated rows",
        )
        reported = [line["value"] for line in self._lines(name, 0, "evaluated")]
        if not reported:
            raise Wrong(f"{name}: no loss of an evaluation was reported")
        definition = "microbatches" if self.trainer.loss == "microbatches" else "targets"
        _close(reported[-1], self._mean(lines, definition), f"{name}: loss of the evaluation")


def _same(found: list[Any], wanted: list[Any], what: str) -> None:
    if found != wanted:
        first = next(
            (n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
        )
        raise Wrong(f"{what}: {len(found)} microbatches, expected {len(wanted)}; the first difference is at {first}")


def _close(found: float, wanted: float, what: str) -> None:
    if not abs(found - wanted) <= TOLERANCE * abs(wanted):
        raise Wrong(f"{what}: reported {found:.6f}, by hand {wanted:.6f}")


def _last_line(log: Path) -> str:
    lines = [
        line.strip() for line in log.read_text(errors="replace").splitlines() if "Error" in line or "error:" in line
    ]
    return f"{(lines or ['no error was printed'])[-1][:200]} (log: {log})"


def python_of(environments: Path | None, name: str) -> Path | None:
    """The interpreter of an environment of .ci/trainers; None if it does not exist."""
    if name == "base" and environments is None:
        return Path(sys.executable)
    path = environments / name / "bin" / "python" if environments else None
    return path if path and path.is_file() else None
