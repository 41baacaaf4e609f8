"""PlanConfig, and what a Plan rejects: every error is named, all of them at once."""

import json
import warnings
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from tests.conftest import random_documents, write_store
from tokenstore import Plan, PlanConfig, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, FormatError
from tokenstore.planning import SourceConfig, StageConfig

GOOD = {"sequence_length": 8, "global_batch_size": 4, "sources": {"a": {"path": "a", "weight": 1}}}


@pytest.fixture
def two(make_store: Callable[..., Path]) -> dict[str, Path]:
    return {name: make_store(name, random_documents(i, 50, 40), length_index=True) for i, name in enumerate("ab")}


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"sequence_length": 0}, ["sequence_length"]),
        ({"sequence_length": 8.0}, ["sequence_length"]),
        ({"sequence_length": "8", "global_batch_size": -1, "sed": 3}, ["sequence_length", "global_batch_size", "sed"]),
        ({"sources": {}}, ["sources"]),
        ({"sources": {"a": {"weight": 1}}}, ["sources.a: expected either a path or a pool"]),
        ({"sources": {"a": {"path": "a", "weight": -1}}}, ["sources.a.weight", "-1"]),
        ({"sources": {"a": {"path": "a", "weight": "x"}}}, ["sources.a.weight", "'x'"]),
        ({"sources": {"a": {"path": "a", "weight": float("nan")}}}, ["sources.a.weight"]),
        ({"sources": {"a": {"path": "a", "weight": 0}}}, ["expected at least one weight above 0"]),
        ({"packing": "bestfit"}, ["packing", "bestfit"]),
        ({"last_batch": "keep", "packing": "all"}, ["last_batch", "keep", "packing", "all"]),
        ({"temperature": 2}, ["temperature: cannot be combined with weights"]),
        (
            {"cross_document_targets": True},
            ["cross_document_targets: only valid with packing concat, found packing best_fit"],
        ),
        ({"num_steps": 0}, ["num_steps"]),
        ({"num_steps": "all_exhausted", "on_exhausted": "stop"}, ["on_exhausted", "all_exhausted"]),
        ({"skip_steps": [[3, 3]]}, ["skip_steps"]),
        ({"skip_steps": [[3, 9], [5, 6]]}, ["overlap"]),
        ({"stages": [{"from_step": 3, "weights": {"b": 1}}]}, ["stages[0].weights", "['b']"]),
        ({"stages": [{"from_step": 3, "weights": {"a": 0}}]}, ["stages[0].weights", "above 0"]),
        ({"stages": [{"from_step": 3}]}, ["stages[0]: expected weights, global_batch_size or batch_ramp"]),
        ({"sources": {"a": {"path": "a"}}, "stages": [{"from_step": 3, "weights": {"a": 1}}]}, ["have no weights"]),
        (
            {"stages": [{"from_step": 3, "weights": {"a": 1}}, {"from_step": 3, "weights": {"a": 1}}]},
            ["expected from_step to increase"],
        ),
        ({"stages": [{"from_step": 3, "weights": {"b": 1}}], "skip_steps": [[3, 3]]}, ["stages[0]", "skip_steps"]),
    ],
)
def test_all_errors_are_reported_at_once(change: dict, texts: list[str]) -> None:
    """The message contains every invalid field."""
    with pytest.raises(ConfigError) as error:
        PlanConfig(**{**GOOD, **change})
    for text in texts:
        assert text in str(error.value)


def test_a_plan_file_has_exact_decimals_and_relative_paths(tmp_path: Path, two: dict) -> None:
    """Paths are relative to the file; 0.1 to 0.2 is 1 to 2; the same from Python."""
    file = tmp_path / "plan.yaml"
    file.write_text(
        "sequence_length: 8\nglobal_batch_size: 4\nseed: 7\n"
        "sources:\n  a: {path: a, weight: 0.1}\n  b: {path: b, weight: 2e-1}\n"
        "stages:\n  - {from_step: 3, weights: {b: 1.0}}\nskip_steps: [[1, 2]]\nnum_steps: 6\n"
    )
    plan = Plan(PlanConfig.load(file))
    assert dict(plan.schedule.stages[0].shares) == {"a": 1, "b": 2}
    assert plan.num_steps == 6
    same = Plan.of(
        two,
        sequence_length=8,
        global_batch_size=4,
        seed=7,
        weights={"a": "0.1", "b": "0.2"},
        stages=[{"from_step": 3, "weights": {"b": 1}}],
        skip_steps=[(1, 2)],
        num_steps=6,
    )
    assert same.fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "YAML"),
        ("- 1", "expected fields"),
        ("", "expected fields"),
        ("seed: 1\nseed: 2", "keys are repeated: ['seed']"),
        ("sources: {a: {path: x}, a: {path: y}}", "keys are repeated: ['a']"),
        ("sequence_length: 8", "global_batch_size"),
        ("sources: 3", "sources"),
    ],
)
def test_an_invalid_plan_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    """Invalid YAML, a repeated key, missing fields: the message names the file."""
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        PlanConfig.load(file)
    assert expected in str(error.value)
    assert str(file) in str(error.value)
    with pytest.raises(ConfigError, match="No such file"):
        PlanConfig.load(tmp_path / "none.yaml")


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_plan_file_may_be_json(tmp_path: Path, ascii_only: bool) -> None:
    """Characters that JSON escapes as two surrogates are one character, in names and in paths."""
    fields = {**GOOD, "sources": {"🦊 é\n": {"path": "/👩‍👩‍👧", "weight": 0.5}}, "seed": -7}
    (tmp_path / "plan.json").write_text(json.dumps(fields, ensure_ascii=ascii_only))
    config = PlanConfig.load(tmp_path / "plan.json")
    assert {name: source.path for name, source in config.sources.items()} == {"🦊 é\n": "/👩‍👩‍👧"}
    assert config == PlanConfig(**fields)


def test_a_source_shorter_than_a_sequence_is_refused(two: dict) -> None:
    """T < L is an error of `concat` that names the source."""
    with pytest.raises(ConfigError, match=r"source a: expected at least one sequence of 100000 tokens"):
        Plan.of(two, sequence_length=100_000, global_batch_size=1, packing="concat")


def test_a_source_that_runs_out_is_refused_with_remedies(two: dict) -> None:
    """The message names source, step, epochs needed and the longest plan; that plan works."""
    fields = {"sequence_length": 8, "global_batch_size": 4}
    sources = {"a": {"path": str(two["a"]), "weight": 1, "max_epochs": 1}, "b": {"path": str(two["b"]), "weight": 3}}
    with pytest.raises(
        ConfigError,
        match=r"source a: runs out at step (\d+) \(1000 steps need .* max_epochs is 1, .*set num_steps to \1,",
    ) as error:
        Plan(PlanConfig(**fields, sources=sources, num_steps=1000))
    longest = int(str(error.value).split("num_steps to ")[1].split(",")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert Plan(PlanConfig(**fields, sources=sources, num_steps=longest)).num_steps == longest
        with pytest.raises(ConfigError, match="runs out"):
            Plan(PlanConfig(**fields, sources=sources, num_steps=longest + 1))
        with pytest.raises(ConfigError, match="endless"):
            Plan(PlanConfig(**fields, sources=sources))


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
@pytest.mark.parametrize("word", ["first_exhausted", "all_exhausted"])
def test_without_weights_all_epochs_end_together(two: dict, word: str, packing: str) -> None:
    """Shares are proportional to the sequences: one epoch of every source, except less than a step."""
    plan = Plan.of(two, sequence_length=8, global_batch_size=4, num_steps=word, packing=packing)
    total = sum(plan.num_sequences.values())
    assert total - 4 < plan.num_steps * 4 <= total
    assert all(p.epochs <= 1 for p in plan.progress(plan.num_steps).values())


def test_a_plan_shorter_than_a_step_is_refused(two: dict) -> None:
    """No step at all is an error, not an empty loader."""
    with pytest.raises(ConfigError, match="at least one step"):
        Plan.of(two, sequence_length=8, global_batch_size=10_000, num_steps="all_exhausted")


def test_stores_of_different_tokenizers_are_refused(two: dict, tmp_path: Path) -> None:
    """Ids of one vocabulary are meaningless in another."""
    other = write_store(tmp_path / "c", random_documents(0, 30, 30), vocab_size=301)
    with pytest.raises(ConfigError, match="expected stores of one tokenizer, found 2"):
        Plan.of({**two, "c": other}, sequence_length=8, global_batch_size=4)


def test_one_store_twice_is_a_warning(two: dict) -> None:
    """The same digest under two names is probably a mistake."""
    with pytest.warns(UserWarning, match="a and b are the same store"):
        Plan.of({"a": two["a"], "b": two["a"]}, sequence_length=8, global_batch_size=4)


def test_many_epochs_are_a_warning(two: dict) -> None:
    """More than four passes over a source without max_epochs give a warning, once, when the plan is created."""
    with pytest.warns(UserWarning, match=r"source a is repeated \d+\.\d times"):
        Plan.of(two["a"], sequence_length=8, global_batch_size=4, num_steps=1000)


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    """The message names the source and the path; also for an empty directory, such as the mount point of a missing
    disk.
    """
    (tmp_path / "empty").mkdir()
    for name, found in (("none", "nothing"), ("empty", "a directory without manifest.json")):
        with pytest.raises(
            FormatError, match=f"source {name}: no store at {tmp_path / name}: found {found}; .* mounted"
        ):
            Plan.of(tmp_path / name, sequence_length=8, global_batch_size=4)


def test_one_source_without_weight_is_refused(two: dict) -> None:
    """It would get no sequences; weight 0, a weight in a stage, or no weights at all are accepted."""
    fields = {"sequence_length": 8, "global_batch_size": 4, "num_steps": 9}
    with pytest.raises(ConfigError, match=r"sources.b: has no weight although .*; give it a weight, or 0 to declare"):
        Plan.of(two, weights={"a": 1}, **fields)
    declared = Plan.of(two, weights={"a": 1, "b": 0}, **fields)
    assert declared.progress(9)["b"].sequences == 0
    staged = Plan.of(two, weights={"a": 1}, stages=[{"from_step": 5, "weights": {"a": 1, "b": 1}}], **fields)
    assert staged.progress(9)["b"].sequences == 8


@pytest.mark.parametrize("fields", [{}, {"temperature": 2}, {"weights": {"a": "0.3", "b": "0.7"}}])
def test_a_stage_can_change_only_the_batch_size(two: dict, fields: dict) -> None:
    """The sequences are the same, cut into larger steps from there on; weights can be omitted everywhere."""
    fields = {**fields, "sequence_length": 8, "packing": "concat", "shuffle": False}
    plain = Plan.of(two, global_batch_size=4, num_steps=12, **fields)
    ramp = [{"from_step": 2, "global_batch_size": 8}, {"from_step": 4, "global_batch_size": 12}]
    plan = Plan.of(two, global_batch_size=4, num_steps=6, stages=ramp, **fields)
    assert [plan.global_batch_size(step) for step in range(6)] == [4, 4, 8, 8, 12, 12]
    rows = [row for step in range(6) for row in plan.documents(step)]
    assert rows == [row for step in range(12) for row in plain.documents(step)]


def test_sequences_that_are_mostly_padding_are_a_warning(two: dict) -> None:
    """A sequence length far above the corpus gives a warning with numbers; not for a source without a part."""
    with pytest.warns(
        UserWarning, match=r"source a: 9[\d.]+ % padding: an epoch is 1 sequence of 100,000 tokens, but the"
    ) as reported:
        Plan.of(two, sequence_length=100_000, global_batch_size=1, num_steps=1, weights={"a": 1, "b": 0})
    assert len(reported) == 1


def test_the_path_of_a_file_is_a_plan(tmp_path: Path, two: dict) -> None:
    """Plan, TokenLoader, TokenDataset and SequenceDataset accept a str or Path."""
    file = tmp_path / "plan.yaml"
    file.write_text("sequence_length: 8\nglobal_batch_size: 4\nsources: {a: {path: a}}\nnum_steps: 3\n")
    plan = Plan(PlanConfig.load(file))
    for path in (file, str(file)):
        made = [Plan(path), *(kind(path).plan for kind in (TokenLoader, TokenDataset, SequenceDataset))]
        assert [each.fingerprint for each in made] == [plan.fingerprint] * 4


def test_unknown_names_of_weights_are_refused(two: dict) -> None:
    """A weight for an unknown store is an error."""
    with pytest.raises(ConfigError, match=r"expected names of stores \(a, b\), found \['c'\]"):
        Plan.of(two, sequence_length=8, global_batch_size=4, weights={"c": 1})


def test_messages_name_the_field_the_rule_and_the_value() -> None:
    """Each error is one sentence, in terms of the plan."""
    cases = {
        "sequence_length: expected a whole number, found '8'": {"sequence_length": "8"},
        "num_steps: expected a whole number above 0, first_exhausted or all_exhausted, found 'soon'": {
            "num_steps": "soon"
        },
        "packing: expected one of 'best_fit', 'concat' or 'none', found 'bestfit'": {"packing": "bestfit"},
        "temperature: expected 1 or more, found 0.5": {"temperature": 0.5},
        "temperature: expected at most 2 digits after the point, found 1.234": {"temperature": 1.234},
        "last_batch: expected one of 'drop' or 'pad', found 'keep'": {"last_batch": "keep"},
        "sources: expected fields (name: value), found [1]": {"sources": [1]},
        "sources.a: expected fields (name: value), found 'stores/a'; the fields are path, version, pool, weight,"
        " max_epochs, documents, take, fraction, loss_weight, locality": {"sources": {"a": "stores/a"}},
        "batch_ramp: expected fields (name: value), found 64; the fields are to, steps, multiple_of": {
            "batch_ramp": 64
        },
        "sources.a.documents: expected fields (name: value), found 64; the fields are min_tokens, max_tokens": {
            "sources": {"a": {"path": "a", "documents": 64}}
        },
        "sources.a: expected either a path or a pool, found neither": {"sources": {"a": {}}},
        "stages[0].from_step: expected 1 or more, found 0": {"stages": [{"from_step": 0, "weights": {"a": 1}}]},
        "skip_steps[0]: expected a list, found 3": {"skip_steps": [3]},
        "skip_steps[0]: expected [start, stop], found [1, 2, 3]": {"skip_steps": [[1, 2, 3]]},
        "sed: unknown field, did you mean seed?": {"sed": 3},
        "sources.a.wieght: unknown field, did you mean weight?": {"sources": {"a": {"path": "a", "wieght": 3}}},
        "stages[0].wieghts: unknown field, did you mean weights?": {
            "stages": [{"from_step": 1, "global_batch_size": 2, "wieghts": {"a": 1}}]
        },
        "sources.a.xyz: unknown field; the fields are path, version, pool, weight, max_epochs, documents, take, fraction, loss_weight, locality": {
            "sources": {"a": {"path": "a", "xyz": 3}}
        },
        "skip_steps[0][1]: expected a whole number, found 'x'": {"skip_steps": [[1, "x"]]},
        "shuffle: expected true or false, found 'maybe'": {"shuffle": "maybe"},
        "shuffle: expected true or false, found 'yes'": {"shuffle": "yes"},
        "seed: expected a whole number, found True": {"seed": True},
        "sources.a.weight: expected a number, found True": {"sources": {"a": {"path": "a", "weight": True}}},
        "sources.a.pool[1]: expected text, found 3": {"sources": {"a": {"pool": ["a", 3]}}},
        "sources.a.pool: expected a list of sources, or {name: repeats}, found 'ab'": {
            "sources": {"a": {"pool": "ab"}}
        },
        "sources: expected names that are text, found 1": {"sources": {1: {"path": "a"}}},
        "stages: expected a list, found {}": {"stages": {}},
    }
    for text, change in cases.items():
        with pytest.raises(ConfigError) as error:
            PlanConfig(**{**GOOD, **change})
        assert str(error.value) == f"plan: {text}"


def test_a_source_or_stage_from_python_is_checked_like_one_in_a_file() -> None:
    """SourceConfig and StageConfig raise a ConfigError of their own, and are accepted in place of dictionaries."""
    with pytest.raises(ConfigError, match="source: weight: expected a number, found 'x'"):
        SourceConfig(path="a", weight="x")
    with pytest.raises(ConfigError, match="stage: from_step: expected a value, found none"):
        StageConfig(global_batch_size=4)
    source, stage = SourceConfig(path="a", weight=1), StageConfig(from_step=3, weights={"a": "0.5"})
    made = PlanConfig(**{**GOOD, "sources": {"a": source}}, stages=[stage])
    assert made == PlanConfig(**GOOD, stages=[{"from_step": 3, "weights": {"a": 0.5}}])
    with pytest.raises(FrozenInstanceError):
        made.seed = 3


def test_the_json_of_a_configuration_is_the_configuration() -> None:
    """`as_json` omits defaults at every level; its values are those of a JSON file."""
    sources = {"a": {"path": "a"}, "b": {"path": "b"}, "p": {"pool": {"a": "0.5", "b": 2}, "weight": 0.25}}
    stages = [{"from_step": 3, "weights": {"p": "0.1"}}]
    config = PlanConfig(sequence_length=8, global_batch_size=4, sources=sources, stages=stages, skip_steps=[(1, 2)])
    text = json.dumps(config.as_json())
    assert "seed" not in text
    assert PlanConfig(**json.loads(text)) == config


def test_yaml_anchors_and_home_folders(tmp_path: Path) -> None:
    """Merges and aliases work as in YAML; ~ is the home directory; a shared path is made relative once."""
    file = tmp_path / "plan.yaml"
    file.write_text(
        "sequence_length: 8\nglobal_batch_size: 4\nsources:\n  a: &s {path: x, weight: 1}\n  b: {<<: *s, weight: 2}\n"
        "  c: *s\n  d: {path: ~/y, weight: 0}\n"
    )
    sources = PlanConfig.load(file).sources
    assert [sources[name].path for name in "abc"] == [str(tmp_path / "x")] * 3
    assert sources["d"].path == str(Path.home() / "y")
    assert sources["b"].weight == 2


def test_a_configuration_changed_later_changes_no_plan(two: dict) -> None:
    """A Plan works on its own copy."""
    config = PlanConfig(sequence_length=8, global_batch_size=4, sources={"a": {"path": str(two["a"])}})
    plan = Plan(config)
    config.sources["b"] = config.sources["a"]
    assert list(plan.config.sources) == ["a"]


def test_skips_written_in_two_ways_are_one_plan(two: dict) -> None:
    """[[0, 2], [2, 4]] and [[0, 4]] skip the same steps: the same fingerprint."""
    plans = [
        Plan.of(two["a"], sequence_length=8, global_batch_size=4, num_steps=9, skip_steps=skips)
        for skips in ([(0, 2), (2, 4)], [(0, 4)])
    ]
    assert plans[0].fingerprint == plans[1].fingerprint


def test_absurd_numbers_are_refused_at_once(two: dict) -> None:
    """ORD-10: an exponent that would fill the memory, or more sequences than can be counted."""
    with pytest.raises(ConfigError, match="num_steps"):
        Plan.of(two["a"], sequence_length=8, global_batch_size=4, num_steps=10**30)
    with pytest.raises(ConfigError, match=r"2\*\*62 sequences"):
        Plan.of(two["a"], sequence_length=8, global_batch_size=2**24, num_steps=2**40)
    with pytest.raises(ValueError, match="1e-30"):
        Plan.of(two, sequence_length=8, global_batch_size=4, weights={"a": "1e-30000000", "b": 1})
