"""Plans with `align`: pieces begin at multiples of it, padding is inside the row, and what batches say about it (ORD-18)."""

from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import random_documents
from tokenstore import Plan, SequenceDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError

LENGTH, BATCH, ALIGN = 32, 6, 8
FIELDS = (
    "input_ids",
    "targets",
    "position_ids",
    "document_ids",
    "cu_seqlens",
    "cu_seqlens_padded",
    "max_seqlen",
    "attention_cost",
)


@pytest.fixture
def two(make_store: Callable[..., Path]) -> dict[str, Path]:
    """Documents of 1 to 13 and of 1 to 80 tokens."""
    return {
        name: make_store(name, random_documents(i, *size), length_index=True)
        for i, (name, size) in enumerate({"a": (50, 13), "b": (17, 80)}.items())
    }


@pytest.fixture(params=["best_fit", "none"])
def plan(request: pytest.FixtureRequest, two: dict[str, Path]) -> Plan:
    """One epoch of both stores, whose last step has empty rows."""
    return Plan.of(two, LENGTH, BATCH, packing=request.param, align=ALIGN, num_steps="all_exhausted", last_batch="pad")


def places_of(plan: Plan, step: int) -> list[list[tuple[int, int, int]]]:
    """(first position, end of its tokens, end of its padding) of each piece of each row; of an empty row, one piece."""
    rows = []
    for pieces in plan.documents(step):
        row, at = [], 0
        for piece in pieces:
            stop = at + piece.stop - piece.start
            row.append((at, stop, stop + -stop % ALIGN))
            at = row[-1][2]
        row = row or [(0, 0, 0)]
        rows.append([*row[:-1], (*row[-1][:2], LENGTH)])
    return rows


def test_fields_of_aligned_rows(plan: Plan) -> None:
    """Padding after each piece has no target, the pad token, document -1, and positions that continue the piece."""
    for step, batch in enumerate(TokenLoader(plan, fields=FIELDS)):
        for row, places in enumerate(places_of(plan, step)):
            for number, (at, stop, end) in enumerate(places):
                assert at % ALIGN == 0
                assert batch["position_ids"][row, at:end].tolist() == list(range(end - at))
                assert batch["document_ids"][row, at:stop].tolist() == [number] * (stop - at)
                assert batch["document_ids"][row, stop:end].tolist() == [-1] * (end - stop)
                assert batch["input_ids"][row, stop:end].tolist() == [plan.pad_id] * (end - stop)
                assert (batch["targets"][row, max(stop - 1, 0) : end] == -100).sum() >= end - stop
    assert step + 1 == plan.num_steps


def test_borders_of_aligned_rows(plan: Plan) -> None:
    """cu_seqlens counts tokens, cu_seqlens_padded positions, with as many entries; the last is all rows."""
    for step, batch in enumerate(TokenLoader(plan, fields=FIELDS)):
        pieces = [
            (row * LENGTH + at, stop - at) for row, places in enumerate(places_of(plan, step)) for at, stop, _ in places
        ]
        starts = [start for start, _ in pieces]
        assert batch["cu_seqlens_padded"].tolist() == [*starts, BATCH * LENGTH]
        assert batch["cu_seqlens"].tolist() == [0, *np.cumsum([tokens for _, tokens in pieces]).tolist()]
        assert batch["cu_seqlens"].dtype == batch["cu_seqlens_padded"].dtype == torch.int32
        assert batch["max_seqlen"] == max(np.diff([*starts, BATCH * LENGTH]))
        assert torch.nonzero(batch["position_ids"].reshape(-1) == 0).reshape(-1).tolist() == starts
    assert batch["cu_seqlens"][-1] < batch["cu_seqlens_padded"][-1]


def test_every_piece_divides_among_ranks_of_context_parallelism(plan: Plan) -> None:
    """Each padded piece is cut into 2 x CP equal chunks; rank r gets chunks r and 2 CP - 1 - r, and all ranks equally many."""
    ranks = ALIGN // 2
    for batch in TokenLoader(plan, fields=("cu_seqlens_padded",)):
        borders = batch["cu_seqlens_padded"].tolist()
        mine: list[list[int]] = [[] for _ in range(ranks)]
        for start, stop in pairwise(borders):
            chunk, rest = divmod(stop - start, 2 * ranks)
            assert rest == 0
            for rank in range(ranks):
                for number in (rank, 2 * ranks - 1 - rank):
                    mine[rank] += range(start + number * chunk, start + (number + 1) * chunk)
        assert sorted(chain(*mine)) == list(range(BATCH * LENGTH))
        assert {len(each) for each in mine} == {BATCH * LENGTH // ranks}


def test_borders_of_one_shape(plan: Plan) -> None:
    """max_documents pads both fields with their last value."""
    plain = list(TokenLoader(plan, fields=FIELDS))
    most = max(len(batch["cu_seqlens"]) for batch in plain) + 2
    for batch, padded in zip(plain, TokenLoader(plan, fields=FIELDS, max_documents=most), strict=True):
        for name in ("cu_seqlens", "cu_seqlens_padded"):
            assert len(padded[name]) == most + 1
            assert padded[name].tolist() == batch[name].tolist() + [batch[name][-1]] * (most + 1 - len(batch[name]))
        assert padded["max_seqlen"] == LENGTH


def test_formats_of_aligned_rows(plan: Plan) -> None:
    """hf_flash has positions, because flash attention reads borders as places; megatron has both, row by row."""
    fields = ("tokens", "position_ids", "cu_seqlens", "cu_seqlens_padded", "max_seqlen")
    loaders = [
        TokenLoader(plan, fields=FIELDS),
        TokenLoader(plan, format="hf_flash"),
        TokenLoader(plan, format="megatron", fields=fields, max_documents=LENGTH),
    ]
    for step, (batch, flash, megatron) in enumerate(zip(*loaders, strict=True)):
        assert flash["cu_seq_lens_q"].tolist() == batch["cu_seqlens_padded"].tolist()
        assert flash["max_length_q"] == batch["max_seqlen"]
        assert flash["position_ids"].reshape(-1).tolist() == batch["position_ids"].reshape(-1).tolist()
        for row, places in enumerate(places_of(plan, step)):
            tokens = np.cumsum([stop - at for at, stop, _ in places]).tolist()
            more = LENGTH - len(places)
            assert megatron["cu_seqlens"][row].tolist() == [0, *tokens] + tokens[-1:] * more
            assert megatron["cu_seqlens_padded"][row].tolist() == [at for at, *_ in places] + [LENGTH] * (more + 1)
            assert megatron["max_seqlen"][row] == max(end - at for at, _, end in places)


def test_an_aligned_plan_loses_no_token(plan: Plan) -> None:
    """P3: all tokens of both stores are in the epoch, and padding is counted before the run."""
    tokens = sum(int((batch["document_ids"] >= 0).sum()) for batch in TokenLoader(plan, fields=FIELDS))
    assert tokens == sum(store.num_tokens for store in plan.stores.values())
    progress = plan.progress(plan.num_steps)
    assert sum(each.tokens for each in progress.values()) == tokens
    used = sum(each.sequences for each in progress.values()) * LENGTH
    assert plan.metrics(plan.num_steps)["data/padding"] == pytest.approx(1 - tokens / used)


def test_alignment_of_one_token_changes_no_token(two: dict[str, Path]) -> None:
    """`align: 1` is the same plan as none; only fields about padding differ."""
    plain, one = (Plan.of(two, LENGTH, BATCH, num_steps=3, align=align) for align in (None, 1))
    assert plain.fingerprint == one.fingerprint
    assert all((plain.batch(step)["input_ids"] == one.batch(step)["input_ids"]).all() for step in range(3))
    with_fields = [next(TokenLoader(each, fields=FIELDS)) for each in (plain, one)]
    assert with_fields[0]["cu_seqlens"][-1] == with_fields[1]["cu_seqlens_padded"][-1] == BATCH * LENGTH


def test_alignment_is_part_of_the_history(two: dict[str, Path]) -> None:
    """P10: a state of a plan with another alignment is refused, and the message names the field."""
    plain, aligned = (Plan.of(two, LENGTH, BATCH, num_steps=3, align=align) for align in (None, 4))
    with pytest.raises(StateMismatchError, match="align was null, is 4"):
        TokenLoader(aligned).load_state_dict(plain.state(1))


def test_without_alignment_both_borders_are_equal(two: dict[str, Path]) -> None:
    """Pieces follow one another, so there is no padding between them."""
    batch = next(TokenLoader(Plan.of(two, LENGTH, BATCH), fields=FIELDS))
    assert torch.equal(batch["cu_seqlens"], batch["cu_seqlens_padded"])


def test_rows_of_an_aligned_plan_by_number(plan: Plan) -> None:
    """SequenceDataset has the same rows."""
    dataset = SequenceDataset(plan, fields=("input_ids", "position_ids", "attention_cost"))
    batch = next(TokenLoader(plan, fields=FIELDS))
    for row in range(BATCH):
        assert all(torch.equal(dataset[row][name], batch[name][row]) for name in dataset[row])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"packing": "concat", "align": 8}, "align: only valid with packing best_fit or none, found packing concat"),
        ({"align": 12}, "align: expected a divisor of sequence_length 32, found 12; use align 8 or 16, or sequence_length 24 or 36"),
        ({"align": 64}, "found 64; use align 32, or sequence_length 64"),
        ({"align": 0}, "align: expected 1 or more, found 0"),
        ({"align": 1.5}, "align: expected a whole number, found 1.5"),
    ],
)  # fmt: skip
def test_alignments_that_do_not_work_are_refused(two: dict[str, Path], fields: dict, message: str) -> None:
    """The message says what would work."""
    with pytest.raises(ConfigError) as error:
        Plan.of(two, LENGTH, BATCH, **fields)
    assert message in str(error.value)
