"""Amendments: later steps of a plan change, and the steps before do not (P10); plan files that are written."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.command_lines import ok, run_here
from tests.support.stores.grown import Kind, documents_of, grow, write
from tokenstore import Plan, PlanConfig, RemoteOptions
from tokenstore.errors import ConfigError, StateMismatchError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stores a, b and c."""
    folder = tmp_path_factory.mktemp("run")
    for number, name in enumerate("abc"):
        write_store(folder / name, random_documents(number, 400, 70), length_index=True)
    return folder


def plan_of(folder: Path, weights: tuple[object, object] = ("0.7", "0.3"), **fields: object) -> Plan:
    sources = {name: {"path": str(folder / name), "weight": weight} for name, weight in zip("ab", weights, strict=True)}
    return Plan(
        PlanConfig(**{"sequence_length": 32, "global_batch_size": 8, "num_steps": 20, "sources": sources, **fields})
    )


def rows(plan: Plan, step: int) -> list[list[int]]:
    return plan.batch(step)["input_ids"].tolist()


CHANGES = {
    "weights": {"weights": {"a": "0.2", "b": "0.8"}},
    "one source": {"weights": {"b": 1}},
    "batch size": {"global_batch_size": 16},
    "ramp": {"batch_ramp": {"to": 24, "steps": 4, "multiple_of": 4}},
    "new source": {"sources": {"c": {"take": "0/2"}}, "weights": {"a": 1, "b": 1, "c": 2}},
    "skips": {"skip_steps": [(9, 11), (14, 15)]},
    "longer": {"num_steps": 40},
    "endless": {"num_steps": "endless"},
    "everything": {
        "weights": {"a": 1, "c": 1},
        "sources": {"c": {}},
        "global_batch_size": 24,
        "skip_steps": [(8, 9)],
        "num_steps": 30,
    },
}


@pytest.mark.parametrize("weights", [("0.7", "0.3"), (None, None)], ids=["weights", "no weights"])
@pytest.mark.parametrize("change", CHANGES)
def test_earlier_steps_stay_and_later_ones_change(folder: Path, change: str, weights: tuple) -> None:
    """P10: equal histories and batches before the step, a state from there resumes, and its later history differs."""
    changes = {**CHANGES[change]}
    if "sources" in changes:
        changes["sources"] = {"c": {"path": str(folder / "c"), **changes["sources"]["c"]}}
    before = plan_of(folder, weights)
    after = before.amended(8, **changes)
    assert after.history(8) == before.history(8)
    assert [rows(after, step) for step in (0, 7)] == [rows(before, step) for step in (0, 7)]
    assert after.check_state(before.state(8)) == (8, 0)
    assert after.fingerprint != before.fingerprint
    if change not in ("longer", "endless"):
        assert after.history(16) != before.history(16)


def test_an_amended_plan_reads_its_stores_as_before(folder: Path) -> None:
    """With the same links that may be followed, and the same options for stores at URLs."""
    options = RemoteOptions(deadline=7)
    before = Plan(plan_of(folder).config, folder, options)
    after = before.amended(3, num_steps=30)
    assert (after.allow_links, after.remote) == (before.allow_links, options)


def test_temperature_is_written_out_as_weights(folder: Path) -> None:
    """A plan without weights keeps its shares when a source is added, also with a temperature."""
    before = plan_of(folder, (None, None), temperature="1.7")
    after = before.amended(3, sources={"c": {"path": str(folder / "c")}}, weights={"a": 1, "c": 1})
    assert after.history(3) == before.history(3)
    assert after.config.temperature is None


def test_later_stages_stay(folder: Path) -> None:
    """A stage at the step itself is changed, not replaced; earlier and later ones are kept."""
    stages = [
        {"from_step": 4, "weights": {"a": 1}},
        {"from_step": 8, "weights": {"b": 1}},
        {"from_step": 12, "global_batch_size": 4},
    ]
    after = plan_of(folder, stages=stages).amended(8, global_batch_size=16)
    stages[1]["global_batch_size"] = 16
    assert after.history(None) == plan_of(folder, stages=stages).history(None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"batch_ramp": {"to": 24, "steps": 2, "multiple_of": 4}}, [8, 16, 20, 24, 24]),
        ({"global_batch_size": 12, "batch_ramp": {"to": 24, "steps": 2, "multiple_of": 4}}, [8, 12, 16, 24, 24]),
        ({"global_batch_size": 12}, [8, 12, 12, 12, 12]),
    ],
)
def test_a_ramp_begins_at_the_size_of_a_stage_at_its_step(folder: Path, change: dict, expected: list[int]) -> None:
    """Unless the amendment gives another size. A size alone ends the ramp of that stage."""
    stage = {"from_step": 8, "global_batch_size": 16, "batch_ramp": {"to": 32, "steps": 4, "multiple_of": 4}}
    after = plan_of(folder, stages=[stage]).amended(8, **change)
    assert [after.global_batch_size(step) for step in range(7, 12)] == expected


def test_skips_are_merged(folder: Path) -> None:
    """New ranges are added to the old ones, also where they overlap."""
    after = plan_of(folder, skip_steps=[(2, 4), (10, 14)]).amended(5, skip_steps=[(12, 16), (7, 8)])
    assert after.config.skip_steps == ((2, 4), (7, 8), (10, 16))


def test_amendments_can_follow_each_other(folder: Path) -> None:
    """A stage per decision; a state of any of them resumes in all later ones."""
    plan = plan_of(folder)
    for step in range(4, 20, 4):
        state = plan.state(step)
        plan = plan.amended(step, weights={"a": step, "b": 20 - step})
        assert plan.check_state(state) == (step, 0)
    assert [stage.from_step for stage in plan.config.stages] == [4, 8, 12, 16]


def test_an_amended_plan_keeps_the_versions_of_its_stores(tmp_path: Path) -> None:
    """FMT-13: a store that grows later does not change it."""
    kind = Kind(masks=False, origins=False, ids=False)
    path = write(tmp_path / "web", documents_of(1, [3, 10, 40, 7, 20, 11]), kind)
    plan = Plan.of({"web": path}, 8, 2)
    grow(path, documents_of(2, [2, 9, 30]), kind)
    after = plan.amended(3, global_batch_size=4)
    assert after.history(3) == plan.history(3)
    assert after.config.sources["web"].version == 1
    with pytest.raises(StateMismatchError, match="version: 1"):
        Plan.of({"web": path}, 8, 2).check_state(after.state(3))


REFUSALS = {
    "nothing changes; give some of weights, global_batch_size": (5, {}),
    r"expected a step above 0, found 0; before step 0, change the plan itself": (0, {"num_steps": 30}),
    r"step: expected a step in 0\.\.20, found 21": (21, {"num_steps": 30}),
    r"num_steps: expected 5 or more, the amended step, found 4": (5, {"num_steps": 4}),
    r"skip_steps: expected ranges \[start, stop\) from step 5 on, found \[4, 6\]": (5, {"skip_steps": [(4, 6)]}),
    r"sources\.c: has no weight; give weights for all sources": (5, {"sources": {"c": {"path": "c"}}}),
    r"sources\.c: set the weight of a new source in weights": (
        5,
        {"sources": {"c": {"path": "c", "weight": 1}}, "weights": {"a": 1, "c": 1}},
    ),
    r"the plan already has a; use other names": (5, {"sources": {"a": {"path": "c"}}, "weights": {"a": 1}}),
    r"stages\[0\]\.weights: expected names of sources \(a, b\), found \['x'\]": (5, {"weights": {"x": 1}}),
    r"expected some of weights, global_batch_size, .*, found \['seed'\]": (5, {"seed": 1}),
    r"batch_ramp: expected sizes that are multiples of 3": (5, {"batch_ramp": {"to": 9, "steps": 2, "multiple_of": 3}}),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_name_what_works(folder: Path, message: str) -> None:
    """A ValueError, of which ConfigError is one, with the field and the rule."""
    step, changes = REFUSALS[message]
    with pytest.raises((ConfigError, ValueError), match=message):
        plan_of(folder).amended(step, **changes)


@pytest.mark.filterwarnings("ignore:source . is repeated")
def test_a_change_of_earlier_steps_is_refused(folder: Path) -> None:
    """The message names the fields that would change: here, a source would run out before the step."""
    with pytest.raises(StateMismatchError, match=r"amend: the steps before 19 would change: drops"):
        plan_of(folder, num_steps=400, global_batch_size=80).amended(19, num_steps="all_exhausted")


def test_saved_plans_are_the_same_plan(folder: Path, tmp_path: Path) -> None:
    """Numbers are exact, names and slices survive, and paths are relative inside the file's folder."""
    sources = {
        "a": {
            "path": str(folder / "a"),
            "take": "0/2",
            "fraction": "3/4",
            "documents": {"min_tokens": 2},
            "weight": "0.1",
        },
        "1: #é": {"path": str(folder / "b"), "weight": 3, "max_epochs": 900},
        "p": {"pool": {"c": "2.5"}, "weight": "0.0000001"},
        "c": {"path": str(folder / "c")},
    }
    run = {"skip_steps": [(3, 5)], "batch_ramp": {"to": 16, "steps": 3, "multiple_of": 4}, "seed": -(2**100)}
    stages = [{"from_step": 5, "weights": {"a": "0.30", "p": "1e-3"}}]
    config = PlanConfig(sequence_length=32, global_batch_size=8, num_steps=20, sources=sources, stages=stages, **run)
    for file in (folder / "plan.yaml", tmp_path / "plan.yaml"):
        config.save(file, "Two\nlines")
        again = PlanConfig.load(file)
        assert Plan(again).fingerprint == Plan(config).fingerprint
        assert again.stages == config.stages
        assert file.read_text().startswith("# Two lines\n")
    assert "path: a\n" in (folder / "plan.yaml").read_text()
    assert f"path: {folder / 'a'}\n" in (tmp_path / "plan.yaml").read_text()
    assert again.sources["p"].weight == Decimal("0.0000001")
    with pytest.raises(ConfigError, match=r"plan: cannot write .*; choose another file"):
        config.save(tmp_path / "none" / "plan.yaml")


@pytest.fixture
def plan_file(folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    plan_of(folder).config.save(path)
    return path


class TestCommand:
    def test_writes_the_new_plan_and_shows_both(self, folder: Path, plan_file: Path) -> None:
        """The mixture, the epochs and the end before and after; the file has the same history."""
        output = plan_file.with_name("plan2.yaml")
        options = ["--from-step", 8, "--weight", "a=0.25", "--weight", "c=.75", "--add", f"c={folder / 'c'}"]
        options += ["--batch-size", 24, "--ramp-steps", 4, "--multiple-of", 8, "--skip", "9:11", "--num-steps", 40]
        shown = [" ".join(line.split()) for line in ok("amend", plan_file, *options, "-o", output).splitlines()]
        before, after = Plan(plan_file), Plan(output)
        assert after.history(8) == before.history(8)
        assert (after.num_steps, after.global_batch_size(12), after.config.skip_steps) == (40, 24, ((9, 11),))
        assert "steps 0:8 are unchanged" in shown[0]
        assert {"steps 20 40", "batch at the end 8 24", "skipped steps none 9:11"} <= set(shown)
        assert any(line.startswith("a 70.00 % 25.00 %") for line in shown)
        assert any(line.startswith("c - 75.00 % 0.000 -") for line in shown)
        assert output.read_text().startswith("# Amended from plan.yaml: the steps before 8 are unchanged.\n")

    def test_a_new_source_may_have_a_locality(self, folder: Path, tmp_path: Path) -> None:
        """Its order is that of the field of a plan."""
        plan_of(folder, packing="concat").config.save(tmp_path / "plan.yaml")
        options = ["--from-step", 8, "--add", f"c={folder / 'c'}", "--weight", "c=1", "--locality", "c=4,2"]
        ok("amend", tmp_path / "plan.yaml", *options, "-o", tmp_path / "plan2.yaml")
        source = {"path": str(folder / "c"), "locality": {"block_sequences": 4, "lanes": 2}}
        expected = plan_of(folder, packing="concat").amended(8, sources={"c": source}, weights={"c": 1})
        assert Plan(tmp_path / "plan2.yaml").fingerprint == expected.fingerprint

    def test_warnings_are_shown(self, folder: Path, plan_file: Path) -> None:
        """Those of the new plan, in lines of their own, and with --json in a list."""
        options = ["--from-step", 8, "--add", f"again={folder / 'a'}", "--weight", "a=1", "--weight", "again=1"]
        assert "warning: sources a and again are the same store" in ok("amend", plan_file, *options)
        (text,) = json.loads(ok("amend", plan_file, *options, "--json"))["warnings"]
        assert text.startswith("sources a and again are the same store")

    def test_writes_nothing_without_an_output(self, plan_file: Path) -> None:
        """It shows the change; with --json, also the fields of the new plan."""
        options = ["--from-step", 8, "--num-steps", "endless"]
        assert "nothing was written; add --output FILE" in ok("amend", plan_file, *options)
        made = json.loads(ok("amend", plan_file, *options, "--json"))
        assert made["output"] is None
        assert made["amendment"]["num_steps"] == [20, None]
        assert "num_steps" not in made["plan"]
        assert sorted(path.name for path in plan_file.parent.iterdir()) == ["plan.yaml"]

    @pytest.mark.parametrize(
        ("options", "message"),
        {
            ("--weight", "a"): "--weight: expected NAME=WEIGHT, found 'a'",
            ("--weight", "a=x"): "--weight: expected a number for a, found 'x'",
            ("--weight", "a=1", "--weight", "a=2"): "--weight: a is given twice",
            ("--ramp-steps", "4"): "a batch ramp needs all of --batch-size, --ramp-steps and --multiple-of",
            ("--num-steps", "soon"): "--num-steps: expected a number of steps or one of first_exhausted",
            ("--skip", "9"): "skip: expected A:B",
            ("--add", "c=c", "--locality", "c=4"): "--locality: expected c=SEQUENCES,LANES, found '4'",
            ("--locality", "a=4,2"): "--locality: expected a source that --add adds, found 'a'",
            (): "nothing changes",
        }.items(),
    )
    def test_wrong_usage(self, plan_file: Path, options: tuple, message: str) -> None:
        """Exit code 2, and what was expected."""
        made = run_here("amend", plan_file, "--from-step", 8, *options)
        assert made.returncode == 2
        assert message in made.stderr

    def test_an_existing_file_is_kept(self, plan_file: Path) -> None:
        """Unless --overwrite is given."""
        options = ["amend", plan_file, "--from-step", 8, "--num-steps", 30, "-o", plan_file]
        made = run_here(*options)
        assert made.returncode == 2
        assert "choose another --output, or add --overwrite" in made.stderr
        ok(*options, "--overwrite")
        assert Plan(plan_file).num_steps == 30


@pytest.mark.parametrize("field", ["weights", "sources", "skip_steps"])
@pytest.mark.parametrize("value", [3, "x", [3], [(1, "x")], [(1, 2, 3)], True, 1.5], ids=repr)
def test_changes_of_another_type_are_refused(folder: Path, field: str, value: object) -> None:
    """The message names the change and shows what it looks like."""
    with pytest.raises(ConfigError, match=rf"^amend: {field}: expected .*such as "):
        plan_of(folder).amended(6, **{field: value})


def test_fields_of_a_new_source_must_be_a_mapping(folder: Path) -> None:
    """A path alone is not enough."""
    with pytest.raises(ConfigError, match="amend: sources: expected fields by source"):
        plan_of(folder).amended(6, sources={"c": 3}, weights={"c": 1})
