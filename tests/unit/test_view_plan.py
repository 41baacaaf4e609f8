"""A plan on one screen: its figures against counted batches, its warnings, its ranks, and differences between plans."""

import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.twins.packed_plans import Stores, cases, limited, plan_of
from tokenstore import Plan
from tokenstore.errors import ConfigError
from tokenstore.format.differences import differences
from tokenstore.views.plan_curves import mixture_over_steps
from tokenstore.views.plan_diff import FieldDifference, compare_plans
from tokenstore.views.plan_epochs import steps_of_epochs
from tokenstore.views.plan_ranks import ranks_of_plan
from tokenstore.views.plan_summary import epoch_starts, load_plan, summarize_plan

PACKINGS = ("best_fit", "none", "concat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores a, b, and `ended`, whose documents end with an end-of-text token."""
    folder = tmp_path_factory.mktemp("plans")
    for seed, name in enumerate("ab"):
        write_store(folder / name, random_documents(seed, 60, 30), length_index=True)
    write_store(folder / "ended", [[*d, 0] for d in random_documents(3, 60, 30)], eos=True, length_index=True)
    return folder


Load = Callable[..., tuple[Plan, tuple[str, ...]]]


@pytest.fixture
def load(folder: Path, tmp_path: Path) -> Load:
    """Load a plan of 20 steps over a and b, with other fields, from a file."""

    def make(**fields: object) -> tuple[Plan, tuple[str, ...]]:
        sources = {"a": {"path": str(folder / "a"), "weight": 0.5}, "b": {"path": str(folder / "b"), "weight": 0.5}}
        plan = {"sequence_length": 16, "global_batch_size": 4, "num_steps": 20, "sources": sources, **fields}
        (tmp_path / "plan.yaml").write_text(json.dumps(plan))
        return load_plan(tmp_path / "plan.yaml")

    return make


def counted(plan: Plan, steps: int) -> Counter:
    """Count the sequences of each source in steps [0, steps), row by row, including skipped steps."""
    sampler, names, found = plan.sampler(), tuple(plan.num_sequences), Counter()
    for step in range(steps):
        rows = sampler.locate(step, 0, plan.global_batch_size(step))[:, 0].tolist()
        found.update(names[number] for number in rows if number >= 0)
    return found


class TestSummary:
    @given(case=cases(PACKINGS), data=st.data())
    def test_figures_equal_counted_rows(self, stores: Stores, case: dict, data: st.DataObject) -> None:
        """Sequences, epochs, weights and the first steps of epochs equal those of all rows of all steps."""
        try:
            plan, _ = plan_of(stores, data.draw(st.one_of(st.just(case), limited(case))))
        except ConfigError:
            return
        steps = data.draw(st.integers(1, plan.num_steps))
        summary, counts = summarize_plan(plan, steps, most_epochs=3), counted(plan, steps)
        assert {row.name: row.progress.sequences for row in summary.sources if row.progress.sequences} == counts
        assert summary.sequences == counts.total()
        assert summary.steps == steps
        progress = plan.progress(steps)
        for row in summary.sources:
            assert row.progress.realised_weight == counts[row.name] / counts.total()
            assert row.progress == progress[row.name]
            first = [counted(plan, step)[row.name] for step in range(steps + 1)]
            per_epoch = plan.num_sequences[row.name]
            begins = [
                next(k for k in range(steps) if first[k + 1] > epoch * per_epoch)
                for epoch in range(-(-first[-1] // per_epoch))
            ]
            assert [start.step for start in epoch_starts(plan, row.name, steps)] == begins
            assert [start.step for start in row.epoch_starts] == begins[:3]
            assert row.num_epoch_starts == len(begins)

    def test_target_weights_cover_all_stages(self, load: Load, folder: Path) -> None:
        """Each stage counts with its number of sequences."""
        stages = [{"from_step": 10, "weights": {"a": 1, "b": 3}, "global_batch_size": 8}]
        plan, _ = load(stages=stages)
        targets = [{row.name: row.weight_target for row in summarize_plan(plan, n).sources} for n in (10, 20)]
        assert targets == [{"a": 0.5, "b": 0.5}, {"a": (20 + 20) / 120, "b": (20 + 60) / 120}]
        summary = summarize_plan(plan)
        assert [(s.first_step, s.stop_step, s.global_batch_size) for s in summary.stages] == [(0, 10, 4), (10, 20, 8)]
        assert summary.stages[1].weights == {"a": 0.25, "b": 0.75}
        assert len(summarize_plan(plan, 10).stages) == 1

    def test_an_endless_plan_is_summarized_in_part(self, load: Load) -> None:
        """10,000 steps by default; any number on request."""
        plan, _ = load(num_steps=None)
        assert (summarize_plan(plan).steps, summarize_plan(plan).stages[0].stop_step) == (10_000, None)
        assert summarize_plan(plan, 10**9).sequences == 4 * 10**9

    @pytest.mark.parametrize("steps", [0, -1, 21])
    def test_missing_steps_are_refused(self, load: Load, steps: int) -> None:
        """The message has the number of steps of the plan."""
        with pytest.raises(ConfigError, match=rf"steps: expected 1 to 20, the steps of the plan, found {steps}"):
            summarize_plan(load()[0], steps)

    def test_exhausted_sources_are_listed(self, load: Load, folder: Path) -> None:
        """The step is listed, and the other sources continue."""
        sources = {n: {"path": str(folder / n), "weight": 1, "max_epochs": 1 if n == "a" else None} for n in "ab"}
        plan, _ = load(sources=sources, on_exhausted="drop", num_steps=200)
        (dropped,) = summarize_plan(plan).dropped
        assert dropped.source == "a"
        assert counted(plan, dropped.step + 1)["a"] == plan.num_sequences["a"] > counted(plan, dropped.step)["a"]
        assert summarize_plan(plan, dropped.step).dropped == ()


class TestWarnings:
    def test_a_good_plan_has_no_warnings(self, load: Load, folder: Path) -> None:
        """Its weights add up to 1, and its stores end documents with an end-of-text token."""
        plan, warned = load(sources={"x": {"path": str(folder / "ended"), "weight": 1}}, num_steps=5)
        summary = summarize_plan(plan, None, warned)
        assert summary.warnings == summary.notes == ()

    def test_each_mistake_has_a_warning(self, load: Load, folder: Path) -> None:
        """Repeats (once, up to the last step), an unused source, no end-of-text token, the same store twice."""
        paths = {"a": "a", "again": "a", "never": "b"}
        sources = {n: {"path": str(folder / p), "weight": 0 if n == "never" else 2} for n, p in paths.items()}
        plan, warned = load(sources=sources, num_steps=500, shuffle=False, skip_steps=[[3, 5]])
        warnings = summarize_plan(plan, None, warned).warnings
        assert sum("source a is repeated" in text for text in warnings) == 1
        assert [text for text in warnings if "sources a and again are the same store" in text]
        assert [text for text in warnings if "source never does not appear" in text]
        assert [
            text for text in warnings if "documents of a, again, never do not end with an end-of-text token" in text
        ]
        assert not [text for text in summarize_plan(plan, 5, warned).warnings if "repeated" in text]
        notes = " ".join(summarize_plan(plan, None, warned).notes)
        assert "sources: the weights add up to 4, not 1" in notes
        assert "shuffle is off" in notes
        assert "skipped steps count as used" in notes

    def test_weights_of_a_stage_are_noted(self, load: Load) -> None:
        """The weights of each stage add up on their own."""
        plan, _ = load(stages=[{"from_step": 3, "weights": {"a": 0.7, "b": 0.6}}])
        assert summarize_plan(plan).notes == (
            "stage from step 3: the weights add up to 1.3, not 1; each source gets its share of that sum",
        )

    def test_an_early_end_is_a_warning(self, load: Load, folder: Path) -> None:
        """It is the warning of the plan itself."""
        sources = {"a": {"path": str(folder / "a"), "weight": 1, "max_epochs": 1}}
        plan, warned = load(sources=sources, num_steps=10**6, on_exhausted="stop")
        assert "this plan ends after" in summarize_plan(plan, None, warned).warnings[0]


class TestEpochs:
    @given(epochs=st.decimals("0.01", "9", places=2), case=cases(PACKINGS, most_steps=30))
    def test_steps_are_the_fewest_that_contain_the_epochs(self, stores: Stores, case: dict, epochs: Decimal) -> None:
        """One step fewer does not contain them; None if the plan ends before."""
        plan, _ = plan_of(stores, case)
        for name in plan.num_sequences:
            answer = steps_of_epochs(plan, name, epochs)
            wanted = epochs * plan.num_sequences[name]
            if answer.steps is None:
                assert counted(plan, plan.num_steps)[name] < wanted
                assert answer.steps_if_endless is None or answer.steps_if_endless > plan.num_steps
            else:
                assert counted(plan, answer.steps)[name] >= wanted > counted(plan, answer.steps - 1)[name]
                assert answer.steps_if_endless == answer.steps

    def test_steps_of_epochs_are_exact(self, load: Load, folder: Path) -> None:
        """With one source and one sequence per step, an epoch takes as many steps as it has sequences."""
        plan, _ = load(sources={"a": {"path": str(folder / "a"), "weight": 1}}, global_batch_size=1, num_steps=None)
        for epochs in (Decimal(1), Decimal(3)):
            assert steps_of_epochs(plan, "a", epochs).steps == epochs * plan.num_sequences["a"]

    def test_unknown_sources_and_bad_numbers_are_refused(self, load: Load) -> None:
        """0, negative, infinite and undefined numbers of epochs are refused."""
        plan, _ = load()
        with pytest.raises(ConfigError, match="source: expected one of a, b, found 'c'"):
            steps_of_epochs(plan, "c", Decimal(1))
        for epochs in ("0", "-1", "NaN", "Infinity", "1e100"):
            with pytest.raises(ConfigError, match="epochs: expected a number above 0"):
                steps_of_epochs(plan, "a", Decimal(epochs))


def test_mixture_equals_counted_sequences(load: Load) -> None:
    """Points are evenly spaced and at each stage; shares are since the previous point, epochs are totals."""
    plan, _ = load(stages=[{"from_step": 7, "weights": {"a": 1, "b": 3}}])
    points = mixture_over_steps(plan, 20, 4)
    assert [point.step for point in points] == [5, 7, 10, 15, 20]
    for point in points:
        assert point.sequences == {"a": 0, "b": 0} | counted(plan, point.step)
        assert point.epochs == {name: row.epochs for name, row in plan.progress(point.step).items()}
        assert point.weights == ({"a": 0.5, "b": 0.5} if point.step <= 7 else {"a": 0.25, "b": 0.75})
        assert point.shares["a"] == pytest.approx(point.weights["a"], abs=0.2)


def test_a_stage_without_weights_keeps_the_previous_ones(load: Load) -> None:
    """No note is made about weights that it does not set."""
    plan, _ = load(stages=[{"from_step": 7, "global_batch_size": 8}])
    summary = summarize_plan(plan)
    assert [(stage.first_step, stage.global_batch_size, stage.weights) for stage in summary.stages] == [
        (0, 4, {"a": 0.5, "b": 0.5}),
        (7, 8, {"a": 0.5, "b": 0.5}),
    ]
    assert not any("stage from step" in note for note in summary.notes)


class TestRanks:
    def test_batches_divide_among_ranks(self, load: Load) -> None:
        """Every batch size of the plan is listed, with the sizes that divide all of them."""
        plan, _ = load(stages=[{"from_step": 7, "weights": {"a": 1}, "global_batch_size": 12}])
        ranks = ranks_of_plan(plan, 2, 2)
        assert ranks.divides
        assert [(b.global_batch_size, b.from_steps, b.sequences_per_rank, b.microbatches_per_step) for b in ranks.batches] == [
            (4, (0,), 2, 1),
            (12, (7,), 6, 3),
        ]  # fmt: skip
        assert (ranks.world_sizes, ranks.microbatch_sizes) == ((1, 2), (1, 2))
        assert not ranks_of_plan(plan, 4, 2).divides
        assert ranks_of_plan(plan, 4).microbatch_sizes == (1,)
        assert ranks_of_plan(plan, 3).batches[0].sequences_per_rank is None
        assert [b.microbatches_per_step for b in ranks_of_plan(plan, 1).batches] == [1, 1]

    def test_sizes_below_1_are_refused(self, load: Load) -> None:
        """0 is not a size."""
        for sizes in ((0, None), (1, 0)):
            with pytest.raises(ConfigError, match="expected 1 or more, found 0"):
                ranks_of_plan(load()[0], *sizes)


STAGE = {"from_step": 8, "weights": {"a": "0.3", "b": "0.7"}}


class TestDifference:
    @pytest.mark.parametrize(
        ("first", "second", "step", "fields"),
        [
            ({}, {"seed": 1}, 0, [("seed", 0, 1)]),
            ({}, {"sequence_length": 15}, 0, None),
            ({}, {"global_batch_size": 8}, 0, [("stages.from 0.global_batch_size", 4, 8)]),
            ({"stages": [STAGE]}, {}, 8, None),
            ({"stages": [STAGE]}, {"stages": [{**STAGE, "weights": {"a": "0.3", "b": "0.6"}}]}, 8,
             [("stages.from 8.weights.a", "3/10", "1/3"), ("stages.from 8.weights.b", "7/10", "2/3")]),
            ({"stages": [STAGE]}, {"stages": [{"from_step": 8, "global_batch_size": 8}]}, 8,
             [("stages.from 8.global_batch_size", 4, 8), ("stages.from 8.weights", {"a": "3/10", "b": "7/10"}, None)]),
            ({"skip_steps": [[4, 9]]}, {"skip_steps": [[4, 6]]}, 6, [("skip_steps[0][1]", 7, 6)]),
            ({"num_steps": None}, {"num_steps": None, "skip_steps": [[1000, 1001]]}, 1000, None),
            ({"num_steps": None}, {"num_steps": None, "stages": [{**STAGE, "from_step": 10**9}]}, 10**9, None),
        ],
    )  # fmt: skip
    def test_the_first_different_step_is_found(
        self, load: Load, first: dict, second: dict, step: int, fields: list | None
    ) -> None:
        """The first step whose history differs, and the fields that differ there."""
        for one, other, order in ((first, second, 1), (second, first, -1)):
            found = compare_plans(load(**one)[0], load(**other)[0])
            assert (found.same, found.first_step, found.common_steps) == (False, step, step)
            assert found.fields
            if fields is not None:
                assert found.fields == tuple(FieldDifference(f, *values[::order]) for f, *values in fields)

    def test_equal_plans_have_no_difference(self, load: Load) -> None:
        """Also if they are written differently, and if they are endless."""
        for steps, common in ((20, 20), (None, None)):
            plans = load(num_steps=steps)[0], load(num_steps=steps, skip_steps=[])[0]
            found = compare_plans(*plans)
            assert (found.same, found.first_step, found.common_steps, found.fields) == (True, None, common, ())

    def test_other_dealing_is_no_difference_of_steps(self, load: Load) -> None:
        """ORD-19: `balance` decides which rank gets which row, and is reported beside what differs in the steps."""
        balanced = {"balance": {"linear": 5}}
        found = compare_plans(load()[0], load(**balanced)[0])
        assert (found.same, found.fields, found.balance) == (True, (), (None, (1, 5)))
        found = compare_plans(load(**balanced)[0], load(num_steps=30)[0])
        assert (found.same, found.balance) == (False, ((1, 5), None))

    def test_a_different_end_is_a_difference(self, load: Load) -> None:
        """All steps that both plans have are equal."""
        found = compare_plans(load()[0], load(num_steps=30)[0])
        assert (found.same, found.first_step, found.common_steps) == (False, None, 20)
        assert found.fields == (FieldDifference("num_steps", 20, 30),)

    @given(case=cases(PACKINGS, most_steps=12), data=st.data())
    def test_common_steps_are_equal(self, stores: Stores, case: dict, data: st.DataObject) -> None:
        """P10: the documents of all common steps are equal."""
        other = {**case, **data.draw(st.sampled_from([{"stages": []}, {"skip_steps": []}, {"num_steps": 7}]))}
        first, second = plan_of(stores, case)[0], plan_of(stores, other)[0]
        found = compare_plans(first, second)
        for step in range(found.common_steps):
            skipped = [plan.schedule.is_skipped(step) for plan in (first, second)]
            assert skipped[0] == skipped[1]
            if not skipped[0]:
                assert first.documents(step) == second.documents(step)


def test_differences_name_the_innermost_fields() -> None:
    """A field on one side only is None on the other; of lists of unequal length the first entry that differs."""
    first = {"a": {"x": 1, "y": [1, 2]}, "b": [1], "same": 0}
    second = {"a": {"x": 2, "y": [1, 3]}, "b": [1, 2], "same": 0, "c": "new"}
    assert differences(first, second) == [
        ("a.x", 1, 2), ("a.y[1]", 2, 3), ("b[1]", None, 2), ("c", None, "new"),
    ]  # fmt: skip
