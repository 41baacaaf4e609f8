"""plan.find, the inverse of every rule of the order, against a scan of all that plan.documents returns: ORD-5..8,
12..15.
"""

from collections import defaultdict
from itertools import islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.twins.packed_plans import HORIZON, SIZES, Stores, Twin, cases, limited, plan_of
from tokenstore import Plan
from tokenstore.errors import ConfigError

PACKINGS = ("best_fit", "none", "concat")


def scan(plan: Plan, twin: Twin) -> dict[tuple[str, int], list[tuple]]:
    """(epoch, step, row, start, stop) of every piece of the plan, up to its end or the horizon, by (source,
    document).
    """
    found = defaultdict(list)
    for step in twin.given_steps:
        for row, (pieces, sequence) in enumerate(zip(plan.documents(step), twin.sequences(step), strict=True)):
            assert bool(pieces) <= (sequence is not None)
            for piece in pieces:
                epoch = sequence[1] // twin.num_sequences[sequence[0]]
                found[piece.source, piece.document].append((epoch, step, row, piece.start, piece.stop))
    return found


def some_documents(data: st.DataObject, documents: dict[str, list]) -> list[tuple[str, int]]:
    """A few documents of every source with a path, including the first and the last."""
    chosen = []
    for source, those in documents.items():
        numbers = data.draw(st.lists(st.integers(0, len(those) - 1), max_size=3))
        chosen += [(source, number) for number in {0, len(those) - 1, *numbers}]
    return chosen


def any_case(data: st.DataObject, case: dict, endless: bool = False) -> dict:
    """The case itself, one whose sources run out, or an endless one."""
    if endless:
        return {**case, "num_steps": None}
    return data.draw(st.one_of(st.just(case), limited(case)))


def ask(plan: Plan, source: str, document: int, **bounds: object) -> list[tuple]:
    """The result of find, after checking its promise: steps rise."""
    found = [tuple(occurrence) for occurrence in plan.find(source, document, **bounds)]
    assert [step for _, step, *_ in found] == sorted(step for _, step, *_ in found)
    return found


@given(case=cases(PACKINGS), data=st.data())
def test_find_equals_a_scan(stores: Stores, case: dict, data: st.DataObject) -> None:
    """Every piece of a document with its epoch, step, row and tokens; nothing in skipped steps or after the end."""
    try:
        plan, documents = plan_of(stores, any_case(data, case))
    except ConfigError:  # not one step
        return
    found = scan(plan, Twin(plan.config, documents))
    for source, document in some_documents(data, documents):
        assert sorted(ask(plan, source, document)) == sorted(found[source, document])


@given(case=cases(PACKINGS), data=st.data())
def test_find_in_one_epoch_or_some_steps(stores: Stores, case: dict, data: st.DataObject) -> None:
    """With epoch, steps or both, the same as a scan of these; steps may be a range or a pair."""
    try:
        plan, documents = plan_of(stores, any_case(data, case))
    except ConfigError:
        return
    found = scan(plan, Twin(plan.config, documents))
    for source, document in some_documents(data, documents):
        here = found[source, document]
        epoch = data.draw(st.integers(0, 4))
        first = data.draw(st.integers(0, plan.num_steps))
        last = data.draw(st.integers(first, plan.num_steps + 3))
        in_epoch = sorted(row for row in here if row[0] == epoch)
        in_steps = sorted(row for row in here if first <= row[1] < last)
        assert sorted(ask(plan, source, document, epoch=epoch)) == in_epoch
        assert sorted(ask(plan, source, document, steps=range(first, last))) == in_steps
        both = ask(plan, source, document, epoch=epoch, steps=(first, last))
        assert sorted(both) == [row for row in in_epoch if row in in_steps]


@given(case=cases(PACKINGS), data=st.data())
def test_find_in_an_endless_plan(stores: Stores, case: dict, data: st.DataObject) -> None:
    """Limited by steps, read lazily, or for one distant epoch: find returns."""
    plan, documents = plan_of(stores, any_case(data, case, endless=True))
    found = scan(plan, Twin(plan.config, documents))
    first, last = sorted(data.draw(st.tuples(st.integers(0, HORIZON), st.integers(0, HORIZON))))
    for source, document in some_documents(data, documents):
        here = sorted(found[source, document])
        bounded = ask(plan, source, document, steps=(first, last))
        assert sorted(bounded) == [row for row in here if first <= row[1] < last]
        if plan.config.shuffle or plan.config.packing != "concat":  # else some are never given, see below
            lazily = takewhile(lambda o: o.step < HORIZON, plan.find(source, document))
            assert sorted(map(tuple, islice(lazily, 10_000))) == here
        far = 10**6
        for epoch, step, row, start, stop in islice(plan.find(source, document, epoch=far), 2):
            assert epoch == far
            assert [piece for piece in plan.documents(step)[row] if piece[:2] == (source, document)] != []
            assert (source, document, start, stop) in plan.documents(step)[row]


def test_find_of_a_document_that_never_appears_ends(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless plan over `concat` without shuffle never reads the last T mod L tokens: no result, and no hang."""
    case = {"vocabulary": 300, "sequence_length": 60, "global_batch_size": 6, "packing": "concat", "shuffle": False}
    plan, documents = plan_of(stores, {**case, "sources": {"a": {"path": 4}}})
    assert sum(map(len, documents["a"])) > plan.num_sequences["a"] * 60
    calls = []
    find = type(plan.schedule).find

    def counted(*arguments: object) -> int | None:
        calls.append(arguments)
        assert len(calls) < 10_000
        return find(*arguments)

    monkeypatch.setattr(type(plan.schedule), "find", counted)
    assert next(plan.find("a", len(documents["a"]) - 1), None) is None


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("packing", PACKINGS)
def test_long_documents_are_found_piece_by_piece(stores: Stores, packing: str, shuffle: bool) -> None:
    """A document over many rows of many steps: its pieces cover its tokens, each once per epoch."""
    sources = {"a": {"path": 1}}
    case = {"vocabulary": 300, "sequence_length": 3, "global_batch_size": 4, "packing": packing, "shuffle": shuffle}
    plan, documents = plan_of(stores, {**case, "sources": sources, "num_steps": "all_exhausted", "last_batch": "pad"})
    longest = max(range(7), key=lambda document: len(documents["a"][document]))
    pieces = [(start, stop) for _, _, _, start, stop in plan.find("a", longest)]
    assert len(pieces) > 30
    tokens = [token for start, stop in sorted(pieces) for token in range(start, stop)]
    size = len(documents["a"][longest])
    assert tokens == sorted(set(tokens))
    assert packing == "concat" or tokens == list(range(size))
    assert size - len(tokens) < 3


def test_a_source_that_pauses_for_a_stage_is_found_after_it(stores: Stores) -> None:
    """A source that a stage omits continues afterwards where it was; a dropped source is not found again."""
    sources = {"a": {"path": 0, "weight": 1}, "b": {"path": 5, "weight": 1, "max_epochs": 1}}
    stages = [{"from_step": 2, "weights": {"b": 1}}, {"from_step": 5, "weights": {"a": 1, "b": 1}}]
    case = {"vocabulary": 300, "sequence_length": 30, "global_batch_size": 6, "stages": stages}
    plan, documents = plan_of(stores, {**case, "sources": sources, "num_steps": 30, "on_exhausted": "drop"})
    found = scan(plan, Twin(plan.config, documents))
    seen = set()
    for source in "ab":
        for document in range(len(documents[source])):
            rows = ask(plan, source, document)
            assert sorted(rows) == sorted(found[source, document])
            seen |= {(source, step) for _, step, *_ in rows}
    assert not seen & {("a", step) for step in (2, 3, 4)}
    assert ("a", 5) in seen
    assert {step for source, step in seen if source == "b"} < set(range(15))
    assert list(plan.find("b", 0, epoch=1)) == []


class TestErrors:
    """Invalid arguments are an error at once, not when the result is read."""

    @pytest.fixture
    def plan(self, stores: Stores) -> Plan:
        sources = {"a": {"path": 0}, "b": {"path": len(SIZES) - 1}, "p": {"pool": {"b": "0.5"}}}
        case = {"vocabulary": 300, "sequence_length": 30, "global_batch_size": 6, "sources": sources, "num_steps": 9}
        return plan_of(stores, case)[0]

    @pytest.mark.parametrize("source", ["c", "p", ""])
    def test_unknown_sources_and_pools(self, plan: Plan, source: str) -> None:
        """The message lists the sources with a path; the name of a pool is not accepted."""
        with pytest.raises(ValueError, match=rf"source: expected one of a, b, found '{source}'"):
            plan.find(source, 0)

    @pytest.mark.parametrize("document", [2, -1, 10**20])
    def test_unknown_documents(self, plan: Plan, document: int) -> None:
        """The message says how many documents the source has."""
        with pytest.raises(IndexError, match=rf"document: expected one of 2, found {document} \(source b\)"):
            plan.find("b", document)

    def test_arguments_that_are_not_integers(self, plan: Plan) -> None:
        """Documents, epochs and steps are integers."""
        for arguments, bounds in ((("b", 0.0), {}), (("b", 0), {"epoch": 1.0}), (("b", 0), {"steps": (0.0, 3)})):
            with pytest.raises(TypeError):
                plan.find(*arguments, **bounds)

    def test_steps_outside_the_plan(self, plan: Plan) -> None:
        """No step is below 0; after the plan's end there are no results."""
        with pytest.raises(ValueError, match=r"step: expected a step in 0\.\.9, found -1"):
            plan.find("a", 0, steps=(-1, 3))
        assert list(plan.find("a", 0, steps=(10, 12))) == []
        assert list(plan.find("a", 0, steps=(0, 10**9))) == list(plan.find("a", 0))
        assert list(plan.find("a", 0, steps=(5, 5))) == list(plan.find("a", 0, steps=(5, 2))) == []

    def test_a_negative_epoch(self, plan: Plan) -> None:
        """The same error as in epoch_start."""
        with pytest.raises(ValueError, match="epoch: expected 0 or more, found -1"):
            plan.find("a", 0, epoch=-1)

    def test_a_range_with_a_stride(self, plan: Plan) -> None:
        """A range that skips steps is refused."""
        steps = range(0, 8, 2)
        try:
            found = [o.step for document in range(40) for o in plan.find("a", document, steps=steps)]
        except ValueError:
            return
        assert set(found) <= set(steps)
