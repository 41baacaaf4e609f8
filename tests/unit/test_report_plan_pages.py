"""Pages of plans, read back: no text on them is active, and they show the content of the plan."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents
from tests.support.report_pages import (
    ATTACKS,
    Page,
    check_page,
    facts,
    hostile_store,
    is_harmless,
    make_plan,
)
from tests.support.stores.grown import Kind, documents_of, grow, write
from tests.support.twins.packed_plans import Stores, cases, limited, plan_of, quietly
from tokenstore import Plan, PlanConfig, open_store
from tokenstore.errors import ConfigError
from tokenstore.planning.plan_file import read_yaml
from tokenstore.report.plan_page import LINES, plan_page
from tokenstore.report.plan_report import PlanReport, plan_report
from tokenstore.report.store_report import store_page, store_report
from tokenstore.text import percentage, safe
from tokenstore.views.plan_curves import mixture_over_steps
from tokenstore.views.plan_summary import load_plan

PACKINGS = ("best_fit", "none", "concat")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_store(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def sources(make_store: Callable[..., Path]) -> dict[str, dict]:
    """Two sources, with 60 documents each."""
    paths = {
        name: make_store(name, random_documents(seed, 60, 20), length_index=True) for seed, name in enumerate("ab")
    }
    return {name: {"path": str(path), "weight": "0.5"} for name, path in paths.items()}


class TestPlans:
    def test_the_title_is_the_file_or_the_given_one(self, sources: dict) -> None:
        """Without both it is the fingerprint of the plan."""
        plan = make_plan(sources)
        for options, title in (
            ({}, f"Plan {plan.fingerprint[:12]}"),
            ({"file": "run.yaml"}, "run.yaml"),
            ({"file": "run.yaml", "title": "Run <17>"}, "Run &lt;17&gt;"),
        ):
            source = check_page(plan_page(plan_report(plan, **options))).source
            assert f"<title>{title}</title>" in source
            assert f"<h1><bdi>{title}</bdi></h1>" in source
            assert ("<dt>file</dt><dd><bdi>run.yaml</bdi></dd>" in source) == bool(options)

    def test_ranges_read_first_stop(self, sources: dict) -> None:
        """For stages and for skipped steps, which charts mark; as on the command line."""
        stages = [{"from_step": 8, "global_batch_size": 8}]
        page = check_page(plan_page(plan_report(make_plan(sources, stages=stages, skip_steps=[[3, 5]]))))
        assert "Steps 0:8" in page.shown
        assert "Steps 8:40" in page.shown
        assert "Skipped steps: 3:5" in page.shown
        assert page.source.count('<rect class="skipped"') == 3
        assert page.shown.count("skipped steps") >= 3

    def test_token_shares_differ_from_sequence_shares(self, make_store: Callable[..., Path]) -> None:
        """With packing none, short documents are half of the sequences and few of the tokens."""
        paths = {
            "long": make_store("long", [[7] * 15] * 40, length_index=True),
            "short": make_store("short", [[7]] * 40, length_index=True),
        }
        plan = make_plan({n: {"path": str(p), "weight": 1} for n, p in paths.items()}, packing="none", num_steps=20)
        report = plan_report(plan)
        point = report.mixture[-1]
        assert point.shares == {"long": 0.5, "short": 0.5}
        tokens = {
            name: store.num_tokens for name, store in plan.stores.items()
        }  # both have the same number of documents
        expected = {name: number / sum(tokens.values()) for name, number in tokens.items()}
        assert expected["long"] > 0.8
        assert point.token_shares == pytest.approx(expected)
        assert {row.name: row.token_share for row in report.plan.sources} == pytest.approx(expected, abs=0.001)

    def test_samples_are_closed(self, sources: dict) -> None:
        """A page begins with the summary; a reader opens the samples of a step."""
        page = check_page(plan_page(plan_report(make_plan(sources))))
        closed = [given for tag, given in page.elements if tag == "details" and given.get("class") == "sample"]
        assert len(closed) == 3
        assert not any("open" in given for given in closed)

    def check_samples(self, plan: Plan, report: PlanReport, page: Page) -> None:
        """The tokens on the page equal those of the batches."""
        boxes = iter(page.boxes)
        for sample in report.samples:
            batch = plan.batch(sample.step.step)["input_ids"]
            assert batch.shape[0] == sample.step.global_batch_size
            for row in sample.rows:
                at = 0
                for number, piece in enumerate(row.pieces):
                    size = piece.stop - piece.start
                    if number < 16:
                        box = next(boxes)
                        found = box.tokens
                        assert box.start == piece.start
                        assert found == batch[row.row][at : at + min(size, 64)].tolist()
                        assert (
                            found == plan.stores[piece.source][piece.document][piece.start :][: min(size, 64)].tolist()
                        )
                    at += size + piece.padding
                assert at + (0 if row.pieces else row.padding) == plan.config.sequence_length
        assert next(boxes, None) is None

    def check_charts(self, plan: Plan, report: PlanReport, page: Page) -> None:
        """The values of the charts equal those of the plan."""
        points = mixture_over_steps(plan, report.plan.steps, min(max(report.plan.sequences // 64, 10), 200))
        mixture, tokens, epochs = page.data
        assert mixture["steps"] == tokens["steps"] == epochs["steps"] == [point.step for point in points]
        for number, name in enumerate(tokens["names"]):
            assert tokens["values"][number] == [percentage(point.token_shares[name]) for point in points]
        for number, name in enumerate(mixture["names"]):
            assert mixture["values"][number] == [percentage(point.shares[name]) for point in points]
            assert mixture["targets"][number] == [percentage(point.weights[name]) for point in points]
        for number, name in enumerate(epochs["names"]):
            values = [float(value.replace(",", "")) for value in epochs["values"][number]]
            assert values == pytest.approx(
                [point.epochs[name] for point in points], abs=0.0005 + 1e-9
            )  # half of the last digit

    def check_reproduces(self, plan: Plan, page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The printed plan, saved anywhere, has the same fingerprint, also by the printed code.

        Its paths are names of folders without locations; the reader adds the locations.
        """
        config, lines = page.pres
        assert not [store.path for store in plan.stores.values() if str(store.path.parent) in config]
        (folder / "plan.json").write_text(config, "utf-8")
        fields = read_yaml(folder / "plan.json")
        for name, store in plan.stores.items():
            assert fields["sources"][name]["path"] == store.path.name
            fields["sources"][name]["path"] = str(store.path)
        (folder / "plan.json").write_text(json.dumps(fields), "utf-8")
        again = quietly(PlanConfig.load(folder / "plan.json"))
        assert again.fingerprint == plan.fingerprint
        assert set(again.config.sources) == set(plan.config.sources)
        assert again.history(again.num_steps or 5) == plan.history(plan.num_steps or 5)
        if 0 not in {step for a, b in plan.schedule.skip_steps for step in range(a, b)}:
            monkeypatch.chdir(folder)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(lines, {})

    @given(case=cases(PACKINGS), data=st.data())
    def test_pages_of_any_plan(
        self, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict, data: st.DataObject
    ) -> None:
        """Packings, pools, stages, skipped steps, epoch limits: samples, charts, facts and the printed plan."""
        try:
            plan, _ = plan_of(stores, data.draw(st.one_of(st.just(case), limited(case))))
        except ConfigError:
            return
        report = plan_report(plan, samples=data.draw(st.integers(0, 30)))
        page = check_page(plan_page(report))
        self.check_samples(plan, report, page)
        self.check_charts(plan, report, page)
        self.check_reproduces(plan, page, tmp_path, monkeypatch)
        assert facts(page)["fingerprint"] == plan.fingerprint
        assert f"{report.plan.sequences:,} sequences of {plan.config.sequence_length}" in page.shown
        assert all(store.digest in page.shown for store in plan.stores.values())

    @pytest.mark.parametrize("fields", [{"temperature": "2.5"}, {"seed": 10**30}, {"num_steps": None}])
    def test_the_printed_plan_names_versions(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: dict, fields: dict
    ) -> None:
        """Also if the store has grown since, and if the path was relative."""
        path = write(tmp_path / "grown", documents_of(1, [3, 10, 40, 7, 20, 11]), Kind(masks=False))
        monkeypatch.chdir(tmp_path)
        weights = {} if "temperature" in fields else {"weight": "1e-7"}
        given = {"🦊 \u202e\x7f\x85\U000e0041": {"path": "grown", **weights}, '<b>"\\': {"path": "a", **weights}}
        plan = make_plan(given, **fields)
        page = check_page(plan_page(plan_report(plan)))
        grow(path, documents_of(2, [2, 9, 30]), Kind(masks=False))
        (tmp_path / "elsewhere").mkdir()
        self.check_reproduces(plan, page, tmp_path / "elsewhere", monkeypatch)

    def test_hostile_names_are_harmless(self, hostile: Path) -> None:
        """In tables, charts, labels and the printed plan."""
        names = [*ATTACKS[:9], "a\nb", "constructor", "__proto__", "1 others"]
        plan = make_plan({name: {"path": str(hostile), "weight": "1"} for name in names}, sequence_length=64)
        page = check_page(plan_page(plan_report(plan, samples=8)))
        assert all(page.text.count(safe(name, lines=True)) >= 3 for name in names)
        assert all(is_harmless(name) for chart in page.data for name in chart["names"])
        assert {box.label.split(": use the left")[0] for box in page.boxes} <= {
            safe(f"{name}:{n}", lines=True) for name in names for n in range(len(ATTACKS))
        }

    @pytest.mark.parametrize(
        ("skips", "shown"),
        [
            ([], [0, 20, 39]),
            ([[0, 5], [5, 7]], [7, 20, 39]),
            ([[18, 25]], [0, 25, 39]),
            ([[30, 40]], [0, 20, 29]),
            ([[15, 60]], [0, 14]),
            ([[1, 40]], [0]),
            ([[0, 40]], []),
        ],
    )
    def test_skipped_steps_are_replaced_by_their_neighbours(self, sources: dict, skips: list, shown: list[int]) -> None:
        """By the next step that is not skipped, or else the previous one."""
        report = plan_report(make_plan(sources, skip_steps=skips))
        assert [sample.step.step for sample in report.samples] == shown
        check_page(plan_page(report))

    def test_given_steps_are_shown(self, sources: dict) -> None:
        """Any step of the plan, also after the summarized ones; wrong steps and sizes are refused."""
        plan = make_plan(sources, skip_steps=[[4, 6]])
        assert [sample.step.step for sample in plan_report(plan, 10, (39, 1)).samples] == [39, 1]
        for wrong in ({"sampled": (40,)}, {"sampled": (-1,)}, {"sampled": (4,)}, {"steps": 41}, {"world_size": 3}):
            with pytest.raises(ConfigError, match=r"expected|is skipped"):
                plan_report(plan, **wrong)

    @pytest.mark.parametrize(("steps", "points"), [(5, 5), (100, 10), (800, 50), (10_000, 200)])
    def test_the_number_of_points_follows_the_plan(self, sources: dict, steps: int, points: int) -> None:
        """Enough sequences per point for stable shares, and no more points than can be seen."""
        assert len(plan_report(make_plan(sources, num_steps=steps), samples=0).mixture) == points

    def test_ranks_and_microbatches_of_sequences(self, sources: dict) -> None:
        """They are shown only with sizes for ranks."""
        plan = make_plan(sources)
        page = check_page(plan_page(plan_report(plan, world_size=2, microbatch_size=1)))
        found = [word.split()[:3] for word in page.shown.split(", rank ")[1:5]]
        assert found == [
            ["0,", "microbatch", "0"],
            ["1,", "microbatch", "0"],
            ["0,", "microbatch", "1"],
            ["1,", "microbatch", "1"],
        ]
        assert ", rank " not in check_page(plan_page(plan_report(plan))).shown

    def test_pages_of_endless_plans(self, sources: dict) -> None:
        """The page says that the plan is endless."""
        page = check_page(plan_page(plan_report(make_plan(sources, num_steps=None))))
        assert "10,000 steps of an endless plan" in page.shown
        assert "From step 0" in page.shown

    def test_the_number_of_samples_is_limited(self, sources: dict) -> None:
        """0 samples: no text at all; too many: all sequences of the step."""
        plan = make_plan(sources)
        page = check_page(plan_page(plan_report(plan, samples=0)))
        assert (page.boxes, "Samples" in page.shown) == ([], False)
        assert len(plan_report(plan, samples=10**18).samples[0].rows) == 4
        assert check_page(plan_page(plan_report(plan, max_tokens=0))).boxes == []

    def test_many_sources_fit_on_a_page(self, make_store: Callable[..., Path]) -> None:
        """Eight sources have a line each, the others share one; the page is small enough to mail."""
        path = make_store("s", random_documents(1, 60, 20), length_index=True)
        given = {f"source {i}": {"path": str(path), "weight": str(1 + i % 7)} for i in range(300)}
        stages = [
            {"from_step": 10 * k, "weights": {f"source {k}": "1", **dict.fromkeys(given, "0.01")}} for k in range(1, 20)
        ]
        source = plan_page(plan_report(make_plan(given, stages=stages, num_steps=200, global_batch_size=32)))
        page = check_page(source)
        assert all(len(chart["names"]) == LINES + 1 for chart in page.data)
        assert page.data[0]["names"][-1] == "292 others"
        assert len(source) < 1_500_000

    def test_warnings_and_notes_are_shown(self, tmp_path: Path, sources: dict) -> None:
        """They are those of the plan summary."""
        (tmp_path / "plan.yaml").write_text(
            json.dumps({"sequence_length": 16, "global_batch_size": 4, "num_steps": 900, "sources": sources})
        )
        plan, warned = load_plan(tmp_path / "plan.yaml")
        report = plan_report(plan, warned=warned)
        page = check_page(plan_page(report))
        assert report.plan.warnings
        assert all(f"Warning: {text}" in page.shown for text in report.plan.warnings)
        assert all(f"Note: {text}" in page.shown for text in report.plan.notes)

    def test_without_a_length_index(self, make_store: Callable[..., Path]) -> None:
        """Packing concat needs none; the page says that piece lengths are unknown."""
        path = make_store("s", random_documents(1, 60, 20))
        plan = make_plan({"s": {"path": str(path)}}, packing="concat")
        assert "unknown without a length index" in check_page(plan_page(plan_report(plan))).shown


def test_pages_are_reproducible(hostile: Path, sources: dict) -> None:
    """The same store or plan gives the same bytes."""
    with open_store(hostile) as store:
        assert store_page(store_report(store)) == store_page(store_report(store))
    pages = {plan_page(plan_report(make_plan(sources))) for _ in range(2)}
    assert len(pages) == 1
