"""Progress, epoch_start and state (P10) of plans of packed sources, against a scan of their batches."""

import copy
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents
from tests.support.twins.packed_plans import Stores, Twin, cases, limited, plan_of
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError


def tokens_of(twin: Twin, sequences: list[tuple[str, int]]) -> Counter:
    """Tokens of these sequences, by source."""
    counts = Counter()
    for source, number in sequences:
        counts[source] += sum(stop - start for _, _, start, stop in twin.pieces(source, number))
    return counts


@given(case=cases(), data=st.data())
def test_progress_equals_a_scan(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P3, P5: sequences, epochs and realised weight at every step, counting skipped steps, up to a padded end."""
    try:
        plan, documents = plan_of(stores, data.draw(st.one_of(st.just(case), limited(case))))
    except ConfigError:  # not one step
        return
    twin = Twin(plan.config, documents)
    counts = Counter()
    for step in range(plan.num_steps + 1):
        after = plan.progress(step)
        assert list(after) == sorted(plan.config.drawn_sources)
        for name, row in after.items():
            assert row.sequences == counts[name]
            assert row.sequences_per_epoch == twin.num_sequences[name]
            assert row.epochs == counts[name] / twin.num_sequences[name]
            assert row.realised_weight == counts[name] / max(counts.total(), 1)
        if step < plan.num_steps:
            counts.update(name for name, _ in filter(None, twin.sequences(step)))


@given(case=cases(stages=False, skips=False), epochs=st.integers(1, 3))
def test_tokens_and_padding_are_exact_at_whole_epochs(stores: Stores, case: dict, epochs: int) -> None:
    """P3: if tokens_exact is set they equal a scan; it is set after whole cycles of every repeat factor."""
    case = {**case, "num_steps": "all_exhausted", "last_batch": "pad"}
    for source in case["sources"].values():
        if "weight" in source:
            source["max_epochs"] = epochs
    plan, documents = plan_of(stores, case)
    twin = Twin(plan.config, documents)
    found = tokens_of(twin, twin.run)
    for name, row in plan.progress(plan.num_steps).items():
        assert row.epochs == epochs
        repeats = [twin.repeat(name, member) for member in twin.members[name]]
        if epochs % lcm(*(repeat.denominator for repeat in repeats)) == 0:
            assert row.tokens_exact
            places = row.sequences * plan.config.sequence_length
            assert Fraction(row.padding).limit_denominator(10**9) == Fraction(places - found[name], places)
        if row.tokens_exact and all(repeat.denominator == 1 for repeat in repeats):
            assert row.tokens == found[name]


def test_tokens_of_half_a_pool_are_not_called_exact(stores: Stores) -> None:
    """P3: repeat 0.5 uses half of the documents in the first epoch, whose tokens are not the mean."""
    case = {"vocabulary": 300, "sequence_length": 32, "global_batch_size": 1, "num_steps": 400}
    for number in range(5):  # of documents and tokens of several numbers
        sources = {"b": {"path": number}, "p": {"pool": {"b": "0.5"}}}
        plan, documents = plan_of(stores, {**case, "sources": sources})
        twin = Twin(plan.config, documents)
        for epoch in range(1, 4):
            step = epoch * plan.num_sequences["p"]
            row = plan.progress(step)["p"]
            assert not row.tokens_exact or row.tokens == tokens_of(twin, twin.run[:step])["p"]


@given(case=cases(stages=False, skips=False))
def test_tokens_inside_an_epoch_are_within_its_padding(stores: Stores, case: dict) -> None:
    """P3: the promise of SourceProgress.tokens inside an epoch, without fractional repeats."""
    for source in case["sources"].values():
        if isinstance(source.get("pool"), dict):
            source["pool"] = dict.fromkeys(source["pool"], 2)
    plan, documents = plan_of(stores, case)
    twin = Twin(plan.config, documents)
    for step in range(plan.num_steps + 1):
        found = tokens_of(twin, [sequence for k in range(step) for sequence in twin.sequences(k)])
        for name, row in plan.progress(step).items():
            places = row.sequences_per_epoch * plan.config.sequence_length
            assert abs(row.tokens - found[name]) <= row.padding * places + 1


@given(case=cases(), data=st.data())
def test_epochs_begin_where_a_scan_finds_them(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P3: epoch_start is the step of the epoch's first sequence; None if the plan never reaches it."""
    try:
        plan, documents = plan_of(stores, data.draw(st.one_of(st.just(case), limited(case))))
    except ConfigError:  # not one step
        return
    twin = Twin(plan.config, documents)
    step_of = {sequence: k for k in range(plan.num_steps) for sequence in twin.sequences(k) if sequence}
    for name, count in plan.num_sequences.items():
        for epoch in range(5):
            assert plan.epoch_start(name, epoch) == step_of.get((name, epoch * count))
    with pytest.raises(ValueError, match="source: expected one of"):
        plan.epoch_start("none", 0)
    with pytest.raises(ValueError, match="epoch: expected 0 or more, found -1"):
        plan.epoch_start(name, -1)


def test_steps_per_epoch_after_a_source_has_run_out(make_store: Callable[..., Path]) -> None:
    """Before a drop according to the weights, after it to the remaining shares; None for the dropped source."""
    paths = {name: make_store(name, random_documents(i, 300, 20), length_index=True) for i, name in enumerate("ab")}
    sources = {
        "a": {"path": str(paths["a"]), "weight": 1},
        "b": {"path": str(paths["b"]), "weight": 1, "max_epochs": 1},
    }
    plan = Plan(
        PlanConfig(sequence_length=16, global_batch_size=4, sources=sources, num_steps=120, on_exhausted="drop")
    )
    early, late = plan.progress(2), plan.progress(120)
    a, b = (plan.num_sequences[name] for name in "ab")
    assert (early["a"].steps_per_epoch, early["b"].steps_per_epoch) == (a / 2, b / 2)
    assert (late["a"].steps_per_epoch, late["b"].steps_per_epoch) == (a / 4, None)


class TestIdentity:
    """P10: a state of a packed plan resumes in a plan with the same history, and in no other."""

    CASE: ClassVar[dict] = {
        "vocabulary": 300,
        "sequence_length": 40,
        "global_batch_size": 24,
        "packing": "best_fit",
        "sources": {
            "a": {"path": 0},
            "b": {"path": 1},
            "c": {"path": 5, "weight": "0.5"},
            "p": {"pool": {"a": "1.5", "b": "1"}, "weight": "0.5"},
        },
        "num_steps": 20,
    }

    def changed(self, stores: Stores, **changes: object) -> Plan:
        """The plan with changed fields of it, or of a source (`c={...}`)."""
        case = copy.deepcopy(self.CASE)
        for name, value in changes.items():
            if name in case["sources"]:
                case["sources"][name] |= value
            else:
                case[name] = value
        return plan_of(stores, case)[0]

    @pytest.mark.parametrize(
        ("change", "fields"),
        [
            ({"packing": "none"}, ['packing was "best_fit", is "none"', "sources.c.num_sequences was"]),
            ({"p": {"pool": {"a": "1.5", "b": "2"}}}, ['sources.p.pool.b.repeat was "1", is "2"']),
            ({"p": {"pool": {"a": "1.25", "b": "1"}}}, ['sources.p.pool.a.repeat was "3/2", is "5/4"']),
            ({"p": {"pool": ["a", "b"]}}, ['sources.p.pool.a.repeat was "3/2", is "1"']),
            ({"a": {"path": 5}}, ["sources.p.pool.a.digest was"]),
            ({"sequence_length": 41}, ["sequence_length was 40, is 41"]),
            ({"shuffle": False}, ["shuffle was true, is false"]),
        ],
    )
    def test_a_changed_history_is_refused_with_the_fields(
        self, stores: Stores, change: dict, fields: list[str]
    ) -> None:
        """The message names each field that differs, with its old and new value."""
        state = self.changed(stores).state(10)
        with pytest.raises(StateMismatchError) as error:
            TokenLoader(self.changed(stores, **change)).load_state_dict(state)
        for field in fields:
            assert field in str(error.value)

    def test_two_ways_to_write_a_pool_are_one_plan(self, stores: Stores) -> None:
        """A list is a pool of repeat factors 1, in any order."""
        pools = (["a", "b"], ["b", "a"], {"a": 1, "b": "1.0"}, {"b": 1.0, "a": 1})
        assert len({self.changed(stores, p={"pool": pool}).fingerprint for pool in pools}) == 1

    def test_an_unused_store_can_join_a_pool_of_a_later_stage(self, stores: Stores) -> None:
        """A store without a part so far that joins a pool of a later stage does not change the history."""
        state = self.changed(stores).state(10)
        later = [{"from_step": 10, "weights": {"q": 1}}]
        case = {**copy.deepcopy(self.CASE), "stages": later}
        case["sources"] |= {"d": {"path": 2}, "q": {"pool": {"d": "0.5"}}}
        loader = TokenLoader(plan_of(stores, case)[0])
        loader.load_state_dict(state)
        assert loader.step == 10

    def ending(self, stores: Stores, **changes: object) -> Plan:
        """A plan that ends inside step 2, after 60 sequences."""
        case = {**copy.deepcopy(self.CASE), "packing": "none", "sequence_length": 64, "on_exhausted": "stop"}
        case["sources"] = {"x": {"path": 4, "max_epochs": changes.pop("epochs", 1)}}
        return plan_of(stores, {**case, "num_steps": 100, **changes})[0]

    def test_a_padded_step_in_the_history_fixes_the_end(self, stores: Stores) -> None:
        """A padded plan's state resumes in a plan with a later end, unless the padded step is in its history."""
        plan, longer = self.ending(stores), self.ending(stores, epochs=2)
        assert (plan.num_steps, longer.num_steps) == (3, 5)
        for step in (0, 1, 2):
            loader = TokenLoader(longer)
            loader.load_state_dict(plan.state(step))
            assert loader.step == step
        with pytest.raises(StateMismatchError, match=r"end was 60, is null"):
            TokenLoader(longer).load_state_dict(plan.state(3))
        inside = plan.state(2, plan.schedule.cursor(2) + 12)
        with pytest.raises(StateMismatchError, match=r"end was 60, is null"):
            TokenLoader(longer).load_state_dict(inside)
        with pytest.raises(StateMismatchError, match=r"end was null, is 60"):
            TokenLoader(plan).load_state_dict(longer.state(3))

    def test_last_batch_matters_only_after_the_padded_step(self, stores: Stores) -> None:
        """Dropping the last step instead of padding it changes nothing before it; after it, the plan is too short to
        resume.
        """
        padded, dropped = self.ending(stores), self.ending(stores, last_batch="drop")
        assert (padded.num_steps, dropped.num_steps) == (3, 2)
        assert padded.fingerprint != dropped.fingerprint
        for step in (0, 1, 2):
            for one, other in ((padded, dropped), (dropped, padded)):
                loader = TokenLoader(one)
                loader.load_state_dict(other.state(step))
                assert loader.step == step
        with pytest.raises(StateMismatchError, match=r"expected a step in 0\.\.2, found 3"):
            TokenLoader(dropped).load_state_dict(padded.state(3))

    def test_last_batch_does_not_matter_if_all_steps_are_full(self, stores: Stores) -> None:
        """Such a plan is the same with pad and with drop."""
        plans = [self.changed(stores, last_batch=last) for last in ("pad", "drop")]
        assert plans[0].history(20) == plans[1].history(20)
        TokenLoader(plans[0]).load_state_dict(plans[1].state(20))
