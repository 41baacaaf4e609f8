"""A trace shows what a loader returns: tokens, masks, padding, rows of ranks, and the places that find reports."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import EOS
from tests.support.stores.grown import documents_of, write
from tests.support.stores.masked import random_masked, write_masked
from tests.support.twins.packed_plans import PAD, Stores, cases, limited, plan_of, quietly
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import ConfigError
from tokenstore.views.decoding import Decoder
from tokenstore.views.trace import TracedRow, appearances, document_named, trace_rows, trace_step

PACKINGS = ("best_fit", "none", "concat")
SPLITS = ((1, None), (1, 4), (2, 3), (3, 4), (4, 1))  # (world size, microbatch size), of batches of 12, 24 or 48
NO_TEXT = Decoder(None, "not wanted")


def ids_of(row: TracedRow, length: int, pad_id: int = PAD) -> list[int]:
    """The tokens of a row, and the padding after each piece."""
    if not row.pieces:
        return [pad_id] * row.padding
    assert row.padding == sum(piece.padding for piece in row.pieces)
    ids: list[int] = []
    for piece in row.pieces:
        ids += [id for segment in piece.excerpt.segments for id in segment.token_ids] + [pad_id] * piece.padding
    return ids


def targets_of(row: TracedRow, plan: Plan) -> list[int]:
    """What the tokens of a row predict, from the pieces and masks of the trace and the token after each piece."""
    targets: list[int] = []
    for piece in row.pieces:
        store = plan.stores[piece.source]
        ids = [id for segment in piece.excerpt.segments for id in segment.token_ids]
        in_loss = [bit for segment in piece.excerpt.segments for bit in segment.in_loss]
        following = store[piece.document][piece.stop : piece.stop + 1].tolist()
        ids += following
        in_loss += store.loss_mask(piece.document)[piece.stop : piece.stop + 1].tolist()
        shifted = [id if bit else -100 for id, bit in zip(ids[1:], in_loss[1:], strict=True)]
        targets += shifted + ([] if following else [-100]) + [-100] * piece.padding
    return targets or [-100] * row.padding


def given_by_loader(plan: Plan, step: int, rank: int, world_size: int, size: int | None) -> tuple[np.ndarray, ...]:
    """Tokens, targets and sources that a loader returns to a rank in a step."""
    share = plan.global_batch_size(step) // world_size
    fields = ("input_ids", "targets", "source_ids")
    loader = TokenLoader(plan, rank=rank, world_size=world_size, microbatch_size=size, step=step, fields=fields)
    found = list(islice(loader, share // (size or share)))
    loader.close()
    return tuple(np.concatenate([batch[field].numpy() for batch in found]) for field in fields)


@given(case=cases(PACKINGS), data=st.data())
def test_a_trace_equals_what_a_loader_returns(stores: Stores, case: dict, data: st.DataObject) -> None:
    """Every packing, pool, stage and number of ranks: the rows of a rank, in order, token by token, and their
    sources.
    """
    try:
        plan, documents = plan_of(stores, data.draw(st.one_of(st.just(case), limited(case))))
    except ConfigError:
        return
    steps = [step for step in range(plan.num_steps) if not plan.schedule.is_skipped(step)]
    if not steps:
        return
    step, (world_size, size) = data.draw(st.sampled_from(steps)), data.draw(st.sampled_from(SPLITS))
    if any(stage.global_batch_size % (world_size * (size or 1)) for stage in plan.schedule.stages):
        return
    rank = data.draw(st.integers(0, world_size - 1))
    rows = list(trace_rows(plan, NO_TEXT, step, rank, world_size, size, max_tokens=None))
    ids, targets, sources = given_by_loader(plan, step, rank, world_size, size)
    length, names = plan.config.sequence_length, tuple(plan.num_sequences)
    assert [ids_of(row, length) for row in rows] == ids.tolist()
    assert [targets_of(row, plan) for row in rows] == targets.tolist()
    assert [names.index(row.source) if row.source else -1 for row in rows] == sources.tolist()
    assert {row.rank for row in rows} <= {rank}
    assert all(
        row.padding == length for row in rows if row.source is None
    )  # of a pool's too, where all ranks are empty
    for row in rows:
        assert all(list(documents[p.source][p.document])[p.start : p.stop] for p in row.pieces)


@given(case=cases(PACKINGS), data=st.data())
def test_ranks_divide_the_step(stores: Stores, case: dict, data: st.DataObject) -> None:
    """All ranks together have every row of the step once, at the places of their microbatches; one row can be shown
    alone.
    """
    plan, _ = plan_of(stores, {**case, "skip_steps": []})
    step = data.draw(st.integers(0, plan.num_steps - 1)) if plan.num_steps else 0
    whole = list(trace_rows(plan, NO_TEXT, step, max_tokens=3))
    world_size, size = 2, 3
    ranks = [list(trace_rows(plan, NO_TEXT, step, rank, world_size, size, max_tokens=3)) for rank in range(2)]
    assert sorted(row.row for rows in ranks for row in rows) == [row.row for row in whole] == list(range(len(whole)))
    for rank, rows in enumerate(ranks):
        assert [row.row for row in rows] == plan.rows(step, rank, world_size, size).tolist()
        assert [(row.rank, row.microbatch * size + row.place) for row in rows] == [(rank, n) for n in range(len(rows))]
        for each in rows:
            assert (each.pieces, each.source, each.sequence) == (
                whole[each.row].pieces,
                whole[each.row].source,
                whole[each.row].sequence,
            )
    row = data.draw(st.integers(0, len(whole) - 1))
    assert list(trace_rows(plan, NO_TEXT, step, row=row, max_tokens=3)) == [whole[row]]
    step_of = trace_step(plan, step)
    assert sum(step_of.sequences.values()) + step_of.padding_rows == len(whole) == step_of.global_batch_size
    for name, count in step_of.sequences.items():
        assert sum(each.source == name for each in whole) == count
        cursors = [plan.schedule.find(name, each.sequence) for each in whole if each.source == name]
        assert all(step_of.cursor <= cursor < step_of.cursor + len(whole) for cursor in cursors)


@given(case=cases(PACKINGS), data=st.data())
def test_appearances_are_where_the_trace_shows_them(stores: Stores, case: dict, data: st.DataObject) -> None:
    """Every place reported for a document contains it, at the reported rank."""
    plan, documents = plan_of(stores, case)
    source = data.draw(st.sampled_from(sorted(documents)))
    document = data.draw(st.integers(0, len(documents[source]) - 1))
    found = list(appearances(plan, source, document, limit=5, world_size=2, microbatch_size=3))
    assert [tuple(each)[:3] for each in plan.find(source, document)][:5] == [(e.epoch, e.step, e.row) for e in found]
    for each in found:
        (row,) = trace_rows(plan, NO_TEXT, each.step, each.rank, 2, 3, row=each.row, max_tokens=0)
        assert (source, document, each.start, each.stop) in [
            (p.source, p.document, p.start, p.stop) for p in row.pieces
        ]
        assert row.epoch == each.epoch


@pytest.mark.parametrize("packing", PACKINGS)
def test_masks_are_shown(tmp_path: Path, packing: str) -> None:
    """A token that the trace shows as not in the loss is not a target; every other token that follows another is."""
    documents = random_masked(3, [9, 30, 4, 17, 1, 26, 40] * 5)
    path = write_masked(tmp_path / "s", documents, length_index=True)
    plan = Plan.of(path, 16, 12, packing=packing, num_steps=4)
    for step in range(4):
        rows = list(trace_rows(plan, NO_TEXT, step, max_tokens=None))
        ids, targets, _ = given_by_loader(plan, step, 0, 1, None)
        assert [ids_of(row, 16, EOS) for row in rows] == ids.tolist()
        assert [targets_of(row, plan) for row in rows] == targets.tolist()
        assert any(not all(s.in_loss) for row in rows for p in row.pieces for s in p.excerpt.segments)


class TestQuestions:
    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls, tmp_path_factory: pytest.TempPathFactory) -> Plan:
        """A plan over a store with ids and origins, whose sources have names with a colon, and one without."""
        folder = tmp_path_factory.mktemp("questions")
        write(folder / "s", documents_of(7, [3, 30, 5, 9, 11, 2]))
        write_masked(folder / "t", random_masked(1, [5, 9]), length_index=True)
        sources = {"w": {"path": str(folder / "s"), "weight": 1}, "w:x": {"path": str(folder / "t"), "weight": 1}}
        return quietly(
            PlanConfig(sequence_length=8, global_batch_size=6, num_steps=9, sources=sources, skip_steps=[(4, 5)])
        )

    def test_documents_by_number_and_id(self, plan: Plan) -> None:
        """The longest source name wins; digits are a number, unless id= says otherwise."""
        ids = [plan.stores["w"].id(i) for i in range(6)]
        assert document_named(plan, "w:3") == ("w", 3)
        assert document_named(plan, "w:x:1") == ("w:x", 1)
        for id in {*ids} - {""}:
            assert document_named(plan, f"w:id={id}") == ("w", ids.index(id))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("v:3", "document: expected SOURCE:NUMBER or SOURCE:ID, with a source of w, w:x, found 'v:3'"),
            ("3", "expected SOURCE:NUMBER"),
            ("w:nobody", "id: no document has the id 'nobody'"),
            ("w:x:y", "id: the store has no ids"),
        ],
    )
    def test_unknown_documents(self, plan: Plan, name: str, message: str) -> None:
        """The message says what exists."""
        with pytest.raises(ConfigError, match=message):
            document_named(plan, name)

    def test_pieces_have_origins_and_ids(self, plan: Plan) -> None:
        """Those of the store; None in a store without."""
        for row in trace_rows(plan, NO_TEXT, 0):
            for piece in row.pieces:
                store = plan.stores[piece.source]
                assert (piece.id, piece.origin) == (store.id(piece.document), store.origin(piece.document))
                assert piece.num_tokens == store[piece.document].size

    @pytest.mark.parametrize(
        ("question", "message"),
        [
            ({"step": 9}, "step: expected a step below 9, found 9"),
            ({"step": -1}, "step: expected a step in 0..9"),
            ({"step": 4}, "step: 4 is skipped"),
            ({"step": 0, "rank": 2, "world_size": 2}, "rank: expected 0 <= rank < world_size"),
            ({"step": 0, "rank": -1, "world_size": 2}, "rank: expected 0 <= rank < world_size"),
            ({"step": 0, "world_size": 4}, "world_size: expected a divisor"),
            ({"step": 0, "row": 6}, "row: expected 0 to 5, the rows of step 0, found 6"),
        ],
    )
    def test_unknown_rows(self, plan: Plan, question: dict, message: str) -> None:
        """The error is raised at once, not when the first row is read."""
        with pytest.raises(ConfigError, match=message):
            trace_rows(plan, NO_TEXT, **question)

    def test_unknown_appearances(self, plan: Plan) -> None:
        """Unknown documents and invalid epochs."""
        for question in (("w", 6), ("v", 0), ("w", 0, -1)):
            with pytest.raises(ConfigError, match="expected"):
                list(appearances(plan, *question))
