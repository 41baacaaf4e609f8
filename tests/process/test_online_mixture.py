"""The example of a mixture decided online, as a user runs it: killed with SIGKILL after a decision, and resumed."""

import json
import zlib
from pathlib import Path

import pytest

from tests.process.test_examples import STEPS, TOLERANCE, built, folder, lines_of, run, run_killed  # noqa: F401
from tokenstore import Plan
from tokenstore.examples.online_mixture import DECIDE_EVERY


def split(text: str) -> tuple[dict[int, dict], dict[int, dict]]:
    """(lines of steps, decisions by step) of a run."""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    decisions = [json.loads(line) for line in lines if "decided" in line]
    return lines_of("".join(line for line in lines if "decided" not in line)), {d["decided"]: d for d in decisions}


@pytest.mark.deep
def test_a_killed_run_decides_and_trains_as_an_uninterrupted_one(built: Path, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """P1, P10: the same decisions, none twice; each step has the rows of the final plan, and the loss of a whole run."""
    whole, decisions = split(run("online_mixture", built, 1))
    assert list(decisions) == list(range(DECIDE_EVERY, STEPS, DECIDE_EVERY))
    assert decisions[DECIDE_EVERY]["weights"] != decisions[2 * DECIDE_EVERY]["weights"]
    killed = run_killed("online_mixture", folder, 1)
    before = [stage.from_step for stage in Plan(folder / "online.yaml").config.stages]
    resumed, later = split(run("online_mixture", folder, 2, "--microbatch", 2))
    assert min(resumed) == 10
    assert [*before, *later] == list(decisions)
    plan = Plan(folder / "online.yaml")
    for step, line in {**killed, **resumed}.items():
        assert line["rows"] == sum(zlib.crc32(row) for row in plan.batch(step)["input_ids"])
        assert line["loss"] == pytest.approx(whole[step]["loss"], abs=TOLERANCE)
    first = [stage.weights for stage in Plan(built / "online.yaml").config.stages]
    assert [stage.weights for stage in plan.config.stages][: len(first) - len(later)] == first[
        : len(first) - len(later)
    ]
