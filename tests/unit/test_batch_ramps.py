"""Batch ramps (ORD-17): the batch size changes gradually, and the mixture and the history continue across it."""

import json
from pathlib import Path

import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.command_lines import ok
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError

RAMP = {"to": 24, "steps": 8, "multiple_of": 4}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("stores")
    paths = {
        name: write_store(folder / name, random_documents(n, 90, 60), length_index=True) for n, name in enumerate("ab")
    }
    return {"a": {"path": str(paths["a"]), "weight": "0.7"}, "b": {"path": str(paths["b"]), "weight": "0.3"}}


def plan_of(sources: dict, **fields: object) -> Plan:
    return Plan(
        PlanConfig(**{"sequence_length": 32, "global_batch_size": 8, "num_steps": 14, "sources": sources, **fields})
    )


def sizes(plan: Plan) -> list[int]:
    return [plan.global_batch_size(step) for step in range(plan.num_steps)]


def test_sizes_follow_the_formula(sources: dict) -> None:
    """From step 0 or from a stage on; afterwards the batch size stays."""
    assert sizes(plan_of(sources, batch_ramp=RAMP)) == [8, 8, 12, 12, 16, 16, 20, 20, *[24] * 6]
    staged = plan_of(sources, stages=[{"from_step": 3, "batch_ramp": RAMP}])
    assert sizes(staged) == [8, 8, 8, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 24]
    falling = plan_of(sources, global_batch_size=24, batch_ramp={**RAMP, "to": 8})
    assert sizes(falling) == [24, 20, 20, 16, 16, 12, 12, 8, *[8] * 6]


def test_a_ramp_is_the_stages_it_stands_for(sources: dict) -> None:
    """ORD-5, P10: the same histories and batches as stages that set these sizes and no weights."""
    by_hand = [{"from_step": step, "global_batch_size": size} for step, size in [(2, 12), (4, 16), (6, 20), (8, 24)]]
    ramp, written = plan_of(sources, batch_ramp=RAMP), plan_of(sources, stages=by_hand)
    assert ramp.fingerprint == written.fingerprint
    assert all(ramp.history(step) == written.history(step) for step in range(15))
    assert (ramp.batch(7)["input_ids"] == written.batch(7)["input_ids"]).all()


def test_shares_stay_within_one_sequence_in_every_step_of_a_ramp(sources: dict) -> None:
    """P4: the interleave does not restart where the size changes."""
    plan = plan_of(sources, batch_ramp=RAMP)
    for step in range(1, plan.num_steps + 1):
        total = plan.schedule.cursor(step)
        assert all(abs(row.sequences - row.weight * total) < 1 for row in plan.progress(step).values())


def test_omitted_weights_differ_from_restated_ones(sources: dict) -> None:
    """ORD-5, P10: restating the weights starts the interleave again, so it is another history; omitting them continues it."""
    weights = {name: source["weight"] for name, source in sources.items()}
    omitted = plan_of(sources, stages=[{"from_step": 3, "global_batch_size": 12}])
    restated = plan_of(sources, stages=[{"from_step": 3, "global_batch_size": 12, "weights": weights}])
    assert omitted.history(3) == restated.history(3)
    assert omitted.history(4) != restated.history(4)
    shares = [stage.get("shares") for stage in json.loads(omitted.history(4))["stages"]]
    assert shares == [{"a": 7, "b": 3}, None]
    drawn = [[plan.schedule.segments_in(n, n + 1)[0].at(n)[0] for n in range(24, 34)] for plan in (omitted, restated)]
    assert drawn[0] != drawn[1] == [plan_of(sources).schedule.segments[0].at(n)[0] for n in range(10)]


def test_a_stage_with_weights_does_not_end_a_ramp(sources: dict) -> None:
    """A stage with a batch size does, and a stage can begin a ramp at a size of its own."""
    weights = {"from_step": 5, "weights": {"a": 1, "b": 1}}
    plan = plan_of(sources, batch_ramp=RAMP, stages=[weights])
    assert sizes(plan) == sizes(plan_of(sources, batch_ramp=RAMP))
    assert [stage.from_step for stage in plan.schedule.stages if not stage.continues] == [0, 5]
    ended = plan_of(sources, batch_ramp=RAMP, stages=[{"from_step": 5, "global_batch_size": 10}])
    assert sizes(ended) == [8, 8, 12, 12, 16, *[10] * 9]
    again = {"from_step": 5, "global_batch_size": 4, "batch_ramp": {"to": 8, "steps": 2, "multiple_of": 4}}
    assert sizes(plan_of(sources, batch_ramp=RAMP, stages=[again])) == [8, 8, 12, 12, 16, 4, 4, *[8] * 7]


def test_the_rest_of_a_ramp_may_change(sources: dict) -> None:
    """P10: a state inside a ramp resumes in a plan with other sizes later on, and in no plan with other sizes before."""
    state = plan_of(sources, batch_ramp=RAMP).state(5)
    stopped = plan_of(
        sources,
        batch_ramp=RAMP,
        stages=[{"from_step": 5, "global_batch_size": 16}, {"from_step": 9, "global_batch_size": 64}],
    )
    assert stopped.check_state(state) == (5, 0)
    with pytest.raises(StateMismatchError, match="stages"):
        plan_of(sources, batch_ramp={**RAMP, "steps": 9}).check_state(state)


def test_ranks_load_every_size(sources: dict) -> None:
    """P5: each rank gets the same number of microbatches in each step."""
    plan = plan_of(sources, batch_ramp=RAMP)
    loader = TokenLoader(plan, rank=1, world_size=2, microbatch_size=2)
    assert len(list(loader)) == len(loader) == sum(sizes(plan)) // 4


REFUSALS = {
    r"plan: batch_ramp: the batch size is 24 already; set `to` to another size": {"global_batch_size": 24},
    r"plan: batch_ramp: expected sizes that are multiples of 4, found 10 to 24; set multiple_of to a divisor of 2": {
        "global_batch_size": 10
    },
    r"plan: batch_ramp: expected at most 1,000 sizes, found 4,992 from 8 to 5000 in multiples of 1; use a greater multiple_of": {
        "batch_ramp": {"to": 5000, "steps": 9, "multiple_of": 1}
    },
    r"plan: batch_ramp.multiple_of: expected a value, found none": {"batch_ramp": {"to": 24, "steps": 8}},
    r"plan: stages\[0\]: expected weights, global_batch_size or batch_ramp, found none": {"stages": [{"from_step": 2}]},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_say_what_works(sources: dict, message: str) -> None:
    """The field, the numbers, and what to set."""
    with pytest.raises(ConfigError, match=f"^{message}$"):
        plan_of(sources, **{"batch_ramp": RAMP, **REFUSALS[message]})


def test_a_size_that_does_not_divide_names_multiple_of(sources: dict) -> None:
    """The loader refuses before the run, and says which multiples work."""
    with pytest.raises(
        ConfigError, match=r"a rank's 3 sequences .* or set multiple_of of the batch ramp to a multiple of 8$"
    ):
        TokenLoader(plan_of(sources, batch_ramp=RAMP), rank=0, world_size=4, microbatch_size=2)


def test_the_command_shows_a_ramp_in_one_row(sources: dict, tmp_path: Path) -> None:
    """And the last size in another; with a world size, how each size divides."""
    text = (
        "sequence_length: 32\nglobal_batch_size: 4\nnum_steps: 400\nbatch_ramp: {to: 400, steps: 200, multiple_of: 4}\n"
    )
    (tmp_path / "plan.yaml").write_text(f"{text}sources: {{a: {{path: {sources['a']['path']}}}}}\n")
    rows = [" ".join(line.split()[:4]) for line in ok("plan", tmp_path / "plan.yaml", "--world-size", 4).splitlines()]
    assert {"0:3 4 a 100.00", "3:200 8 to 396", "200:400 400 a 100.00"} <= set(rows)
    assert "and 88 more sizes of a batch ramp; all divide evenly" in ok(
        "plan", tmp_path / "plan.yaml", "--world-size", 4
    )
