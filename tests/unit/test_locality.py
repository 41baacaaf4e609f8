"""Plans with `locality`: refusals, files, histories, amendments, `find` and the commands (ORD-20)."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.command_lines import ok
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.report.plan_page import plan_page
from tokenstore.report.plan_report import plan_report

LENGTH, BATCH = 16, 8
LOCAL = {"block_sequences": 4, "lanes": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stores a and b of some hundred windows."""
    folder = tmp_path_factory.mktemp("local")
    for number, name in enumerate("ab"):
        write_store(folder / name, random_documents(number, 200, 60), length_index=True)
    return folder


def plan_of(folder: Path, local: Any = LOCAL, **fields: Any) -> Plan:
    """A plan over both stores, of which `a` has a locality."""
    sources = {
        "a": {"path": str(folder / "a"), "weight": 3, "locality": local},
        "b": {"path": str(folder / "b"), "weight": 1},
    }
    given = {"sequence_length": LENGTH, "global_batch_size": BATCH, "packing": "concat", "num_steps": 30, **fields}
    return Plan(PlanConfig(sources=sources, **given))


WRONG = {
    "best_fit": (
        {"packing": "best_fit"},
        "sources.a.locality: only valid with packing concat, found packing best_fit, whose sequences combine documents from"
        " anywhere in the store; use packing: concat, or omit locality",
    ),
    "none": ({"packing": "none"}, "only valid with packing concat, found packing none"),
    "no shuffle": (
        {"shuffle": False},
        "sources.a.locality: only valid with shuffle, found shuffle: false, which reads the store from its beginning to its"
        " end; omit locality",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_lanes_cannot_do_is_refused(folder: Path, case: str) -> None:
    """A locality is for shuffled windows only; the message says what else to do."""
    fields, text = WRONG[case]
    with pytest.raises(ConfigError) as error:
        plan_of(folder, **fields)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("local", "text"),
    [
        ({"lanes": 8}, "sources.a.locality.block_sequences: expected a value, found none"),
        ({"block_sequences": 0, "lanes": 8}, "sources.a.locality.block_sequences: expected 1 or more, found 0"),
        ({"block_sequences": 4, "lanes": "4x"}, "sources.a.locality.lanes: expected a whole number, found '4x'"),
        ({"block_sequences": 4, "lanes": 2**24 + 1}, "expected at most 16777216"),
        ({"block": 4, "lanes": 8}, "sources.a.locality.block: unknown field"),
        (1024, "sources.a.locality: expected"),
    ],
)
def test_invalid_numbers_are_named(folder: Path, local: Any, text: str) -> None:
    """Both numbers are required and whole."""
    with pytest.raises(ConfigError) as error:
        plan_of(folder, local)
    assert text in str(error.value)


def test_a_plan_file_keeps_the_locality(folder: Path, tmp_path: Path) -> None:
    """What is saved is what is loaded."""
    plan = plan_of(folder)
    plan.config.save(tmp_path / "plan.yaml")
    assert "locality: {block_sequences: 4, lanes: 8}" in (tmp_path / "plan.yaml").read_text()
    again = Plan(tmp_path / "plan.yaml")
    assert again.fingerprint == plan.fingerprint
    assert (again.batch(3)["input_ids"] == plan.batch(3)["input_ids"]).all()


def test_the_history_has_the_numbers_that_decide_the_order(folder: Path) -> None:
    """ORD-20: min(s, N) and min(W, nb). So localities with the same order have the same history; without one, no key."""
    plan = plan_of(folder)
    count = plan.num_sequences["a"]
    locality = json.loads(plan.history(1))["sources"]["a"]["locality"]
    assert locality == {"block_sequences": 4, "lanes": 8}
    assert "locality" not in json.loads(plan.history(1))["sources"]["b"]
    assert "locality" not in plan_of(folder, None).history(1)
    huge = [plan_of(folder, {"block_sequences": s, "lanes": w}) for s, w in ((count, 1), (2**40, 2**24))]
    assert huge[0].fingerprint == huge[1].fingerprint
    assert (huge[0].batch(2)["input_ids"] == huge[1].batch(2)["input_ids"]).all()
    assert huge[0].fingerprint != plan.fingerprint != plan_of(folder, None).fingerprint


def test_sources_without_a_locality_keep_their_order(folder: Path) -> None:
    """Their sequences do not depend on the locality of another source."""
    with_lanes, without = plan_of(folder), plan_of(folder, None)
    for step in range(5):
        rows = [plan.sampler().locate(step, 0, BATCH) for plan in (with_lanes, without)]
        assert (rows[0] == rows[1]).all()
        of_b = rows[0][:, 0] == 1
        ids = [plan.batch(step)["input_ids"][of_b] for plan in (with_lanes, without)]
        assert (ids[0] == ids[1]).all()


def test_a_state_of_another_locality_is_refused(folder: Path) -> None:
    """P10: the locality of a source that has given sequences is fixed."""
    state = TokenLoader(plan_of(folder), rank=0, world_size=1).state_dict()
    assert plan_of(folder).check_state(state) == (0, 0)
    later = plan_of(folder).state(4)
    with pytest.raises(StateMismatchError, match=r"sources\.a\.locality\.lanes was 8, is 9"):
        plan_of(folder, {"block_sequences": 4, "lanes": 9}).check_state(later)
    with pytest.raises(StateMismatchError, match=r"sources\.a\.locality was .*block_sequences"):
        plan_of(folder, None).check_state(later)


def test_an_amendment_keeps_it_and_can_add_a_source_with_one(folder: Path) -> None:
    """P10: earlier steps stay; the locality of a source that comes later is still free."""
    before = plan_of(folder)
    new = {"c": {"path": str(folder / "b"), "locality": {"block_sequences": 2, "lanes": 3}}}
    with pytest.warns(UserWarning, match="are the same store"):
        after = before.amended(5, sources=new, weights={"a": 1, "c": 1})
    assert after.history(5) == before.history(5)
    assert (after.batch(4)["input_ids"] == before.batch(4)["input_ids"]).all()
    assert json.loads(after.history(6))["sources"]["c"]["locality"] == {"block_sequences": 2, "lanes": 3}
    assert after.config.sources["a"].locality == before.config.sources["a"].locality


def test_a_locality_cannot_be_amended(folder: Path) -> None:
    """It is a property of the source, from its first sequence on."""
    with pytest.raises(ConfigError, match="the plan already has a"):
        plan_of(folder).amended(5, sources={"a": {"path": "x", "locality": {"block_sequences": 1, "lanes": 1}}})
    loader = TokenLoader(plan_of(folder), rank=0, world_size=1)
    next(iter(loader))
    with pytest.raises(StateMismatchError, match=r"sources\.a\.locality"):
        loader.switch_plan(plan_of(folder, {"block_sequences": 5, "lanes": 8}))


def test_an_epoch_has_every_window_once(folder: Path) -> None:
    """P3: the tokens of one epoch of windows are those of the store, except T mod L."""
    plan = Plan(
        PlanConfig(
            sequence_length=LENGTH,
            global_batch_size=1,
            packing="concat",
            num_steps="first_exhausted",
            sources={"a": {"path": str(folder / "a"), "locality": LOCAL}},
        )
    )
    given = np.sort(np.concatenate([plan.batch(step)["input_ids"].ravel() for step in range(plan.num_steps)]))
    stored = np.sort(np.concatenate([np.asarray(document) for document in random_documents(0, 200, 60)]))
    left = np.bincount(stored, minlength=300) - np.bincount(given, minlength=300)
    assert left.min() >= 0
    assert left.sum() == len(stored) % LENGTH


def test_commands_show_what_a_locality_decides(folder: Path, tmp_path: Path) -> None:
    """`tokenstore plan --diff` names the number that differs; `find` inverts the lanes."""
    paths = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    plan_of(folder).config.save(paths[0])
    plan_of(folder, {"block_sequences": 4, "lanes": 9}).config.save(paths[1])
    difference = json.loads(ok("plan", paths[0], "--diff", paths[1], "--json"))
    assert difference["first_step"] == 0
    assert difference["fields"] == [{"field": "sources.a.locality.lanes", "first": 8, "second": 9}]
    (row,) = json.loads(ok("plan", paths[0], "--json"))["locality"]
    plan = plan_of(folder)
    numbers = {"block_sequences": 4, "block_bytes": 128, "lanes": 8, "sequences_per_step": 6}
    expected = {"source": "a", "num_blocks": -(-plan.num_sequences["a"] // 4), **numbers}
    assert {name: row[name] for name in expected} == expected
    shown = ok("plan", paths[0])
    assert re.search(r"Locality\s+source +block .*\s+a +4 sequences +128 bytes +\d+ +8 +6 sequences\s", shown)
    assert "a (blocks of 4 sequences, 8 lanes)" in plan._repr_html_()
    assert re.search(
        r">4</td><td.*>128 bytes</td>(?s:.*)>8</td><td class=\"number\">6</td>", plan_page(plan_report(plan))
    )
    found = next(plan.find("a", 7))
    pieces = plan.documents(found.step)[found.row]
    assert (7, found.start, found.stop) in [(piece.document, piece.start, piece.stop) for piece in pieces]
