"""Slices of stores as sources (ORD-16): which documents they have, where they are shown, and what is refused."""

import warnings
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.processes.command_lines import ok
from tests.support.stores.grown import Kind, documents_of, grow, write
from tokenstore import Plan, PlanConfig
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.order.slices import Slice
from tokenstore.planning import SourceConfig

DOCUMENTS = random_documents(3, 211, 90)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("stores") / "web", DOCUMENTS, length_index=True)


def plan_of(path: Path, run: dict | None = None, **source: object) -> Plan:
    fields = {"sequence_length": 64, "global_batch_size": 4, **(run or {})}
    return Plan(PlanConfig(**fields, sources={"web": {"path": str(path), **source}}))


def used(plan: Plan, steps: range | None = None) -> set[int]:
    """Documents of all sources that appear in some steps; default: in all."""
    rows = (row for step in steps or range(plan.num_steps) for row in plan.documents(step))
    return {piece.document for row in rows for piece in row}


def whole_epoch(path: Path, **source: object) -> set[int]:
    return used(plan_of(path, {"num_steps": "all_exhausted", "last_batch": "pad"}, **source))


def test_parts_are_disjoint_and_complete(web: Path) -> None:
    """Take 0/4 to 3/4 have every document exactly once, also within a range of lengths."""
    parts = [whole_epoch(web, take=f"{i}/4") for i in range(4)]
    assert sorted(document for part in parts for document in part) == list(range(len(DOCUMENTS)))
    lengths = {"min_tokens": 20, "max_tokens": 60}
    parts = [whole_epoch(web, take=f"{i}/3", documents=lengths) for i in range(3)]
    expected = [number for number, document in enumerate(DOCUMENTS) if 20 <= len(document) <= 60]
    assert sorted(document for part in parts for document in part) == expected


def test_a_fraction_is_the_same_in_every_epoch_and_plan(web: Path) -> None:
    """The seed, the name, the packing, the sequence length, a pool and the epoch do not change it."""
    expected = whole_epoch(web, fraction="1/16")
    assert len(expected) == len(DOCUMENTS) // 16
    plan = plan_of(web, {"seed": 9, "sequence_length": 200}, fraction="1/16")
    for epoch in (0, 1, 7):
        first = plan.epoch_start("web", epoch)
        assert used(plan, range(first, plan.epoch_start("web", epoch + 1) + 1)) == expected
    sources = {"part": {"path": str(web), "fraction": 0.0625}, "all": {"pool": {"part": 2}}}
    run = {"sequence_length": 31, "global_batch_size": 2, "num_steps": "all_exhausted", "last_batch": "pad"}
    assert used(Plan(PlanConfig(**run, packing="none", sources=sources))) == expected


def test_finer_fractions_are_inside_coarser_ones(web: Path) -> None:
    """Fraction 1/8 contains 1/16, so a larger proxy run has all documents of a smaller one."""
    finer, coarser = whole_epoch(web, fraction="1/16"), whole_epoch(web, fraction="1/8")
    assert finer < coarser


def test_a_slice_keeps_the_distribution_of_lengths(web: Path) -> None:
    """The mean length of a part differs from that of the store by less than one token, because parts are interleaved."""
    mean = sum(map(len, DOCUMENTS)) / len(DOCUMENTS)
    for i in range(4):
        part = whole_epoch(web, take=f"{i}/4")
        assert abs(sum(len(DOCUMENTS[document]) for document in part) / len(part) - mean) < 1


def test_disjoint_slices_of_a_store_do_not_warn(web: Path) -> None:
    """Sources that share documents warn, with an example of disjoint slices."""
    disjoint = {"a": {"take": "0/2"}, "b": {"take": "1/4"}, "c": {"take": "3/4", "documents": {"max_tokens": 40}}}
    disjoint["d"] = {"take": "3/4", "documents": {"min_tokens": 41}, "fraction": "1/2"}
    # take 3/4 of another range of lengths starts at another position, so its documents are compared one by one
    run = {"sequence_length": 64, "global_batch_size": 4, "num_steps": 1}
    made = {name: {"path": str(web), "weight": 1, **source} for name, source in disjoint.items()}
    plan = Plan(PlanConfig(**run, sources={name: made[name] for name in "ab"}))
    chosen = {member.name: member.chosen for source in plan.sources for member in source.members}
    assert not chosen["a"].overlaps(chosen["b"])
    with pytest.warns(UserWarning, match=r"sources a and b use overlapping slices .*; disjoint ones are, for example"):
        Plan(PlanConfig(**run, sources={"a": made["a"], "b": {**made["b"], "take": "0/4"}}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Plan(PlanConfig(**run, sources={name: made[name] for name in "cd"}))
    assert not [str(each.message) for each in caught if "overlapping" in str(each.message)]


SLICES = st.builds(
    lambda first, count, i, n, ratio: Slice(first, count, i % n, n, *ratio.as_integer_ratio()),
    st.integers(0, 40),
    st.integers(0, 60),
    st.integers(0, 9),
    st.integers(1, 9),
    st.fractions(Fraction(1, 12), 1, max_denominator=12),
)


@given(st.lists(SLICES, min_size=2, max_size=4))
def test_slices_overlap_if_they_share_a_document(slices: list[Slice]) -> None:
    """Slice.overlaps compares the sets of documents, and is symmetric (ORD-16)."""
    for one, other in combinations(slices, 2):
        shared = {*one.positions(range(one.num_documents))} & {*other.positions(range(other.num_documents))}
        assert one.overlaps(other) == other.overlaps(one) == bool(shared)


def test_the_history_has_canonical_integers(web: Path) -> None:
    """ORD-16: other words for the same numbers are the same plan, and a slice that keeps everything is none."""
    history = plan_of(web, fraction="1/16").history(1)
    assert history == plan_of(web, fraction="3/48").history(1) == plan_of(web, fraction=0.0625).history(1)
    assert '"slice":{"documents":[0,211],"fraction":[1,16],"take":[0,1]}' in history
    longest = max(map(len, DOCUMENTS))
    everything = plan_of(web, fraction=1, take="0/1", documents={"max_tokens": longest})
    assert everything.history(1) == plan_of(web).history(1)


def test_a_state_of_another_slice_is_refused(web: Path) -> None:
    """P10: the message names the slice."""
    state = plan_of(web, take="0/4").state(3)
    with pytest.raises(StateMismatchError, match=r"sources\.web\.slice\.take"):
        plan_of(web, take="1/4").check_state(state)
    with pytest.raises(StateMismatchError, match=r"sources\.web\.slice"):
        plan_of(web).check_state(state)


def test_a_slice_of_a_store_that_grew_follows_the_version(tmp_path: Path) -> None:
    """A slice of a pinned version keeps its documents; the newest version is another history."""
    kind = Kind(masks=False, origins=False, ids=False)
    path = write(tmp_path / "web", documents_of(1, [3, 10, 40, 7, 20, 11]), kind)
    run = {"sequence_length": 8, "global_batch_size": 2}
    before = plan_of(path, run, take="0/2")
    rows = [before.batch(step)["input_ids"].tolist() for step in range(4)]
    grow(path, documents_of(2, [2, 9, 30]), kind)
    pinned = plan_of(path, run, take="0/2", version=1)
    assert [pinned.batch(step)["input_ids"].tolist() for step in range(4)] == rows
    assert pinned.history(4) == before.history(4) != plan_of(path, run, take="0/2").history(4)


def test_documents_outside_a_slice_are_never_found(web: Path) -> None:
    """plan.find ends at once, also in an endless plan; a document of the slice is found in every epoch."""
    plan = plan_of(web, take="0/4")
    inside = whole_epoch(web, take="0/4")
    outside = next(number for number in range(len(DOCUMENTS)) if number not in inside)
    assert list(plan.find("web", outside)) == []
    assert [each.epoch for each in islice(plan.find("web", min(inside)), 3)] in (
        [0, 0, 1],
        [0, 0, 0],
        [0, 1, 1],
        [0, 1, 2],
    )


def test_progress_counts_the_slice(web: Path) -> None:
    """Tokens, padding and members of pools are those of the slice, at a whole epoch exactly."""
    inside = whole_epoch(web, take="0/4")
    tokens = sum(len(DOCUMENTS[document]) for document in inside)
    plan = plan_of(web, {"global_batch_size": 1}, take="0/4")
    assert plan.progress(plan.num_sequences["web"])["web"].tokens == tokens
    sources = {"part": {"path": str(web), "take": "0/4"}, "all": {"pool": ["part"]}}
    pool = Plan(PlanConfig(sequence_length=64, global_batch_size=1, sources=sources))
    assert pool.progress(pool.num_sequences["all"])["all"].members["part"].tokens == tokens


REFUSALS = {
    "sources.web: a pool has no take; set it on its members instead": {"path": None, "pool": ["b"], "take": "0/2"},
    "sources.web.documents: min_tokens 9 is above max_tokens 8": {"documents": {"min_tokens": 9, "max_tokens": 8}},
    "sources.web.take: expected i/n with i from 0 to n - 1 and n at most 1,000,000, such as 0/4, found '4/4'": {
        "take": "4/4"
    },
    "sources.web.fraction: expected a fraction such as 1/16, above 0 and at most 1, with a denominator of at most"
    " 1,000,000, found '3/2'": {"fraction": "3/2"},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_name_the_field_and_what_works(message: str) -> None:
    """One ConfigError, with the field and the rule."""
    sources = {"web": {"path": "stores/web", **REFUSALS[message]}, "b": {"path": "stores/b"}}
    with pytest.raises(ConfigError) as error:
        PlanConfig(sequence_length=8, global_batch_size=2, sources=sources)
    assert str(error.value) == f"plan: {message}"


@pytest.mark.parametrize(
    "words", ["1/0", "0/1", "1/16/2", "-1/2", "1e400", "a", "", "1/1000001", 0, 1.5, True, float("nan"), [1, 2], "1/²"]
)
def test_odd_fractions_are_refused(words: object) -> None:
    """Whatever a file holds is a ConfigError."""
    with pytest.raises(ConfigError, match="source: fraction: expected a fraction such as 1/16"):
        SourceConfig(path="a", fraction=words)


@pytest.mark.parametrize(
    "words", ["1", "0/0", "-1/4", "0/1000001", "0/4/4", 3, "x/y", [1], [0, "4"], [0, 4, 5], {0: 4}]
)
def test_odd_parts_are_refused(words: object) -> None:
    """Whatever a file holds is a ConfigError."""
    with pytest.raises(ConfigError, match="source: take: expected i/n with i from 0 to n - 1"):
        SourceConfig(path="a", take=words)


def test_concat_refuses_slices(web: Path) -> None:
    """The message names both ways out."""
    with pytest.raises(ConfigError, match=r"packing concat reads whole stores; use packing best_fit .*build --sample"):
        plan_of(web, {"packing": "concat"}, fraction="1/2")


def test_a_slice_without_documents_is_refused(web: Path) -> None:
    """The message says how many documents each filter left."""
    with pytest.raises(
        ConfigError, match=r"its slice \(fraction 1/1000\) has no documents: 211 of 211 documents have these"
    ):
        plan_of(web, fraction="1/1000")
    with pytest.raises(ConfigError, match=r"its slice \(500 or more tokens, take 0/2\) has no documents: 0 of 211"):
        plan_of(web, documents={"min_tokens": 500}, take="0/2")


def test_the_command_shows_slices(web: Path, tmp_path: Path) -> None:
    """`tokenstore plan` lists documents and tokens of each slice; `trace` says why a document does not appear."""
    text = f"sequence_length: 64\nglobal_batch_size: 4\nnum_steps: 9\nsources:\n  web: {{path: {web}, take: 0/4}}\n"
    (tmp_path / "plan.yaml").write_text(text)
    inside = whole_epoch(web, take="0/4")
    assert f"{len(inside)} of 211" in ok("plan", tmp_path / "plan.yaml")
    outside = next(number for number in range(len(DOCUMENTS)) if number not in inside)
    shown = ok("trace", tmp_path / "plan.yaml", "--document", f"web:{outside}")
    assert "the document does not appear; source web uses a slice of its store (take 0/4)" in shown
