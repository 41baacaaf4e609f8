"""The examples as a user runs them: killed with SIGKILL and resumed with another number of processes."""

import io
import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from os import environ, kill
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.processes.command_lines import ROOT
from tokenstore import Plan, PlanConfig
from tokenstore.examples import data, train_gpt, train_sft
from tokenstore.examples.evaluate import load_model

STEPS, KILL_AFTER = 24, 13
TOLERANCE = 1e-5  # difference between losses whose floats were added in another order
PAGE = 4096  # a small pipe holds few lines, so that a run is killed soon after the line that was read
ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "error"}
ALONE |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # train_gpt needs it if torchrun restarts it
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
Lines = dict[int, dict]  # by step; of a repeated step, the last line


def command(name: str, folder: Path, ranks: int, *options: object, restarts: int = 0) -> list[str]:
    """The command of an example, in one process or started by torchrun in several."""
    launcher = [*TORCHRUN, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"] if ranks > 1 else []
    return list(map(str, [sys.executable, *launcher, "-m", f"tokenstore.examples.{name}", folder, *options]))


@contextmanager
def started(*arguments: object, **options: int) -> Iterator[subprocess.Popen]:
    """A running example. All its processes are killed at the end."""
    pipes = {"stdout": subprocess.PIPE, "pipesize": PAGE, "text": True}
    process = subprocess.Popen(command(*arguments, **options), cwd=ROOT, env={**environ, **ALONE}, **pipes)
    try:
        yield process
    finally:
        kill_all(process)
        process.stdout.close()


def children(process: subprocess.Popen) -> list[int]:
    """Running processes that this one has started: under torchrun, the ranks."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        found += [int(stat.parent.name)] if int(parent) == process.pid else []
    return found


def kill_all(process: subprocess.Popen) -> None:
    """Kill a process and all its children at once, as in a machine failure."""
    if process.poll() is None:
        for pid in [process.pid, *children(process)]:
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    process.wait()


def lines_of(text: str) -> Lines:
    """The complete lines of a run."""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {line["step"]: line for line in lines if "step" in line}


def run(*arguments: object) -> str:
    """Run an example to its end; return its output."""
    with started(*arguments) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0
    return printed


def run_here(example: ModuleType, *arguments: object) -> str:
    """Run an example in this process, which has imported torch already."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", ["example", *map(str, arguments)])
        runpy.run_path(example.__file__, run_name="__main__")
    return printed.getvalue()


def read_to_kill(process: subprocess.Popen) -> str:
    """The output of a run up to the step after which it is killed."""
    printed = ""
    while not printed or KILL_AFTER not in lines_of(printed):
        line = process.stdout.readline()
        assert line, "the run ended before it could be killed"
        printed += line
    return printed


def run_killed(*arguments: object) -> Lines:
    """Start an example, kill all its processes after some steps; return its output."""
    with started(*arguments) as process:
        printed = read_to_kill(process)
        kill_all(process)
        lines = lines_of(printed + process.stdout.read())
        assert process.returncode == -signal.SIGKILL
    assert KILL_AFTER <= max(lines) < STEPS - 1
    return lines


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, as ranks do: on a busy machine, more threads are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stores and plans of the examples."""
    folder = tmp_path_factory.mktemp("built")
    data.build(folder, STEPS)
    return folder


@pytest.fixture(scope="module")
def plan(built: Path) -> Plan:
    return Plan(PlanConfig.load(built / "plan.yaml"))


@pytest.fixture(scope="module")
def trained(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which train_gpt ran to its end; `lines` is its output."""
    folder = shutil.copytree(built, tmp_path_factory.mktemp("trained"), dirs_exist_ok=True)
    (folder / "lines").write_text(run_here(train_gpt, folder))
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A new folder for a run."""
    return shutil.copytree(built, tmp_path / "run")


def check_lines(lines: Lines, trained: Path, plan: Plan) -> None:
    """Each step has the batch of the plan, its metrics, and the loss of the uninterrupted run."""
    whole = lines_of((trained / "lines").read_text())
    assert list(whole) == list(range(STEPS))
    for step, line in lines.items():
        assert line["rows"] == sum(zlib.crc32(row) for row in plan.batch(step)["input_ids"])
        assert line["loss"] == pytest.approx(whole[step]["loss"], abs=TOLERANCE)
        assert {name: line[name] for name in plan.metrics(step + 1)} == plan.metrics(step + 1)


def check_resumed(killed: Lines, resumed: Lines, trained: Path, plan: Plan) -> None:
    """A run resumed from its last checkpoint and ended like the uninterrupted run."""
    assert list(resumed) == list(range(min(resumed), STEPS))
    assert min(resumed) in range(train_gpt.CHECKPOINT_EVERY, max(killed) + 2, train_gpt.CHECKPOINT_EVERY)
    check_lines(killed, trained, plan)
    check_lines(resumed, trained, plan)


def test_the_loss_falls(trained: Path) -> None:
    """So that equal losses are evidence. The texts are this version's own code, so that any single batch may be a hard one."""
    losses = [line["loss"] for line in lines_of((trained / "lines").read_text()).values()]
    assert np.mean(losses[-8:]) < losses[0] - 1.5


@pytest.mark.deep
def test_a_killed_run_resumes_on_two_ranks(folder: Path, trained: Path, plan: Plan) -> None:
    """P1, P2: with microbatches of two, and with the batches and losses of the uninterrupted run."""
    killed = run_killed("train_gpt", folder, 1)
    resumed = lines_of(run("train_gpt", folder, 2, "--microbatch", 2))
    check_resumed(killed, resumed, trained, plan)


@pytest.mark.deep
@pytest.mark.parametrize(("ranks", "microbatch"), [(1, 1), (4, 2)])
def test_killed_ranks_resume_on_one_or_four_ranks(
    folder: Path, trained: Path, plan: Plan, ranks: int, microbatch: int
) -> None:
    """P1, P2: torchrun and its two ranks are killed."""
    killed = run_killed("train_gpt", folder, 2, "--microbatch", 1)
    resumed = lines_of(run("train_gpt", folder, ranks, "--microbatch", microbatch))
    check_resumed(killed, resumed, trained, plan)


@pytest.mark.deep
def test_torchrun_restarts_a_killed_rank(folder: Path, trained: Path, plan: Plan) -> None:
    """P1: with --max-restarts, all ranks continue from the checkpoint without help."""
    with started("train_gpt", folder, 2, restarts=1) as process:
        before = read_to_kill(process)
        kill(children(process)[-1], signal.SIGKILL)
        after = process.stdout.read()
        assert process.wait() == 0
    before, after = lines_of(before), lines_of(after)
    assert sorted(before | after) == list(range(STEPS))
    check_lines(before, trained, plan)
    check_lines(after, trained, plan)


@pytest.mark.deep
def test_a_sharded_checkpoint_resumes_on_one_rank(folder: Path, trained: Path, plan: Plan) -> None:
    """P1, P2: FSDP2 on two ranks is killed; one rank continues with the losses of plain training."""
    killed = run_killed("train_fsdp", folder, 2, "--microbatch", 2)
    resumed = lines_of(run("train_fsdp", folder, 1, "--microbatch", 4))
    check_resumed(killed, resumed, trained, plan)


@pytest.mark.deep
def test_evaluation_on_three_ranks_equals_a_plain_loop(trained: Path) -> None:
    """P5: equally many batches per rank, every document once, although 3 ranks do not divide the plan's steps."""
    ranks = [json.loads(line) for line in run("evaluate", trained, 3, "--microbatch", 2).splitlines()]
    losses = losses_one_by_one(trained)
    assert sorted(line.pop("rank") for line in ranks) == [0, 1, 2]
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[0]["targets"] == losses.numel()
    assert ranks[0]["loss"] == pytest.approx(losses.mean().item(), abs=TOLERANCE)


@torch.inference_mode()
def losses_one_by_one(folder: Path) -> torch.Tensor:
    """The loss of every token except the first of a document: one document at a time, without a loader."""
    plan = Plan(PlanConfig.load(folder / "evaluation.yaml"))
    length, model, losses = plan.config.sequence_length, load_model(folder / "checkpoint.pt", plan), []
    for store in plan.stores.values():
        for document in store:
            ids = torch.from_numpy(document.astype("int64"))
            for start in range(0, len(ids) - 1, length):
                given, wanted = ids[start : start + length], ids[start + 1 : start + length + 1]
                logits = model(given[None], torch.arange(len(given))[None], causal)[0, : len(wanted)]
                losses.append(functional.cross_entropy(logits, wanted, reduction="none"))
    return torch.cat(losses).double()


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_fine_tuning_learns_the_answers(tmp_path: Path) -> None:
    """Only the text of assistants is in the loss, and the loss falls."""
    printed = run_here(train_sft, tmp_path, "--steps", 8).splitlines()
    shown = [line for line in printed if line.startswith("<|im_start|>")]
    losses = [json.loads(line)["loss"] for line in printed if line.startswith("{")]
    known = [[turn["content"] for turn in each["messages"]] for each in train_sft.conversations()]
    assert len(shown) > 1
    for line in shown:
        said = re.findall(r"<\|im_start\|>(user|assistant)\\n(\[?)(.*?)<\|im_end\|>(\]?)\\n", line)
        assert [turn[2] for turn in said] in known
        assert all(
            (before, after) == (("[", "]") if role == "assistant" else ("", "")) for role, before, _, after in said
        )
        assert line.count("[") == line.count("]") == len(said) // 2
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 2
