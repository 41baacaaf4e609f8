"""Random amendments of random plans: P1, P2, P4, P10, with slices, ramps, pools, stages, skips, balance and alignment."""

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.support.twins.packed_plans import Stores, Twin, cases, plan_of, quietly
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import ConfigError


@st.composite
def changes(draw: st.DrawFn, plan: Plan, step: int, stores: Stores, vocabulary: int) -> dict:
    """One or more changes from `step` on that are valid for a plan."""
    names, weight = list(plan.num_sequences), st.sampled_from(["1", "0.3", "2.5"])
    found: dict = {}
    if draw(st.booleans()):
        found["weights"] = {
            name: draw(weight) for name in draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        }
        if draw(st.booleans()):
            new = draw(st.sampled_from(["0new", "new"]))  # before and after the other names
            found["sources"] = {new: {"path": str(stores[vocabulary][3][0])}}
            found["weights"][new] = draw(weight)
    if draw(st.booleans()):
        found |= draw(
            st.sampled_from(
                [
                    {"global_batch_size": 48},
                    {"global_batch_size": 12},
                    {"batch_ramp": {"to": 240, "steps": 3, "multiple_of": 4}},
                ]
            )
        )
    if draw(st.booleans()):
        found["skip_steps"] = [(step + 1, step + 2)]
    if not found or draw(st.booleans()):
        found["num_steps"] = plan.num_steps + draw(st.integers(1, 4))
    return found


@given(case=cases(packings=("best_fit", "none", "concat"), most_steps=6), data=st.data())
def test_amended_plans_keep_their_past(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P10: the history and the rows before the step are equal; a loader that switches there gives the rows of each plan."""
    plan, _ = plan_of(stores, case)
    step = data.draw(st.integers(1, plan.num_steps))
    asked = data.draw(changes(plan, step, stores, case["vocabulary"]))
    if not plan.config.skip_steps or "skip_steps" not in asked:
        asked.setdefault("num_steps", plan.num_steps + 1)
    after = quietly_amended(plan, step, asked)
    assert after.history(step) == plan.history(step)
    world = data.draw(st.sampled_from([1, 2, 4]))
    options = {"rank": world - 1, "world_size": world, "prefetch": data.draw(st.sampled_from([0, 2]))}
    if plan.num_steps == plan.schedule.num_skipped(plan.num_steps):
        return
    loader, rows = TokenLoader(plan, **options), []
    while loader.step < step and plan.schedule.next_step(loader.step) < step:
        rows += next(loader)["input_ids"].tolist()
    if loader.step < step:  # the steps in between are skipped
        loader = TokenLoader(plan, **{**options, "step": step})
    loader.switch_plan(after)
    rows += [row for batch in loader for row in batch["input_ids"].tolist()]
    expected = []
    for number in range(after.num_steps):
        owner = plan if number < step else after
        if not owner.schedule.is_skipped(number):
            expected += owner.batch(number, world - 1, world)["input_ids"].tolist()
    assert rows == expected


def quietly_amended(plan: Plan, step: int, asked: dict) -> Plan:
    """`plan.amended`, without warnings about repetition. An example is left out if a later ramp is refused after the new sizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plan.amended(step, **asked)
        except ConfigError as error:
            if {"global_batch_size", "batch_ramp"} & set(asked) and "].batch_ramp: " in str(error):
                reject()
            raise


@given(case=cases(most_steps=6), data=st.data())
def test_amended_plans_equal_the_slow_twin(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P3, P4, ORD-5: an amended plan is the plan of its configuration; every batch equals packing by hand."""
    plan, documents = plan_of(stores, case)
    step = data.draw(st.integers(1, plan.num_steps))
    asked = data.draw(changes(plan, step, stores, case["vocabulary"]))
    after = quietly_amended(plan, step, asked)
    for name in asked.get("sources", {}):
        documents[name] = stores[case["vocabulary"]][3][1]
    twin = Twin(after.config, documents)
    assert after.num_steps == twin.num_steps
    for number in [*twin.given_steps[:2], *twin.given_steps[-2:]]:
        pieces, ids, _ = twin.batch(number)
        assert after.documents(number) == pieces
        assert (after.batch(number)["input_ids"] == ids).all()


@given(case=cases(most_steps=6))
def test_saved_plans_are_equal(stores: Stores, case: dict, tmp_path_factory: pytest.TempPathFactory) -> None:
    """P10: a plan that is written to YAML and read again has the same fingerprint and fields."""
    plan, _ = plan_of(stores, case)
    file = Path(tmp_path_factory.mktemp("saved")) / "plan.yaml"
    plan.config.save(file)
    again = PlanConfig.load(file)
    assert quietly(again).fingerprint == plan.fingerprint
    assert json.dumps(again.as_json(), sort_keys=True) == json.dumps(plan.config.as_json(), sort_keys=True)
