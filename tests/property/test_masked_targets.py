"""Targets and labels of masked stores against a plain-Python twin: exactly the masked tokens are ignored.

Which pieces a row contains is `plan.documents`, which test_packed_plan and test_plan hold against twins of the order.
"""

import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.support.stores.masked import Documents, Rows, random_masked, rows_by_hand, write_masked
from tests.support.twins import order as order_twin
from tokenstore import Plan, PlanConfig, TokenDataset, TokenLoader
from tokenstore.intrinsics import CHUNK

BATCH = 12
FIELDS = ("input_ids", "labels", "shift_labels", "position_ids", "document_ids")


class Case(NamedTuple):
    """Fields of a PlanConfig without paths, and what its stores are made of."""

    fields: dict
    vocab_size: int
    shard_bytes: dict[str, int]
    documents: dict[str, Documents]
    masked: dict[str, bool]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One store with masks and often one without, as two sources or in one pool; shards of one document up to all."""
    vocab_size = draw(st.sampled_from([300, 70_000]))
    names = ["a", "b"][: draw(st.integers(1, 2))]
    masked = dict.fromkeys(names, True)
    if len(names) == 2:
        masked[draw(st.sampled_from(names))] = draw(st.booleans())
    lengths = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 70)), min_size=1, max_size=25)
    documents = {}
    for name in names:
        density = draw(st.sampled_from([0.1, 0.5, 0.9]))
        documents[name] = random_masked(draw(st.integers(0, 10**6)), draw(lengths), vocab_size, density)
        if not masked[name]:
            documents[name] = Documents(documents[name].tokens, [[True] * len(ids) for ids in documents[name].tokens])
    shard_bytes = {name: draw(st.sampled_from([1, 60, 200, 1 << 20])) for name in names}
    packing = draw(st.sampled_from(["best_fit", "none", "concat"]))
    longest = min(sum(map(len, made.tokens)) for made in documents.values()) if packing == "concat" else 40
    sources: dict[str, dict] = {name: {"weight": draw(st.sampled_from(["1", "0.3"]))} for name in names}
    if packing != "concat" and draw(st.booleans()):
        repeats = {name: draw(st.sampled_from(["1", "0.5", "2.5"])) for name in names}
        sources = {name: {} for name in names} | {"p": {"pool": repeats, "weight": 1}}
    fields = {
        "sequence_length": draw(st.integers(1, min(longest, 40))),
        "global_batch_size": BATCH,
        "sources": sources,
        "packing": packing,
        "seed": draw(st.integers(0, 10**6)),
        "shuffle": draw(st.booleans()),
        "cross_document_targets": packing == "concat" and draw(st.booleans()),
        "num_steps": draw(st.sampled_from([3, "all_exhausted"])),
        "last_batch": "pad",
    }
    return Case(fields, vocab_size, shard_bytes, documents, masked)


def plan_in(folder: Path, case: Case) -> Plan:
    """Write the stores of a case, and plan."""
    sources = {name: dict(source) for name, source in case.fields["sources"].items()}
    for name, documents in case.documents.items():
        path = write_masked(
            folder / name,
            documents,
            case.vocab_size,
            case.shard_bytes[name],
            length_index=case.fields["packing"] != "concat",
            at_once=7,
            masks=case.masked[name],
        )
        sources[name]["path"] = str(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs of a small store
        return Plan(PlanConfig(**{**case.fields, "sources": sources}))


def check_rows(rows: Rows, batch: dict, numbers: slice | list[int] = slice(None)) -> None:
    """A batch in Hugging Face's fields has these rows of a step."""
    expected = {name: np.array(value)[numbers] for name, value in zip(rows._fields, rows, strict=True)}
    assert (batch["input_ids"].numpy() == expected["ids"]).all()
    assert (batch["shift_labels"].numpy() == expected["targets"]).all()
    assert (batch["labels"].numpy() == expected["labels"]).all()
    assert (batch["labels"][:, 1:] == batch["shift_labels"][:, :-1]).all()


@given(case=cases())
def test_targets_and_labels_are_those_of_the_twin(case: Case) -> None:
    """FMT-10: a target is ignored where the token to predict is masked, also in another row; a label where its own is."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_in(Path(folder), case)
        with_masks = TokenLoader(plan, fields=FIELDS, format="hf")
        for step, batch in zip(range(6), with_masks, strict=False):
            rows = rows_by_hand(plan, step, case.documents)
            check_rows(rows, batch)
            ours = plan.batch(step)
            assert (ours["input_ids"] == rows.ids).all()
            assert (ours["targets"] == rows.targets).all()


@given(case=cases(), data=st.data())
def test_any_rank_and_any_resume_give_the_same(case: Case, data: st.DataObject) -> None:
    """P1, P2, FMT-10: split over ranks, in microbatches, continued inside a step by a new plan."""
    world = data.draw(st.sampled_from([1, 2, 3, 4]), "world")
    size = data.draw(st.sampled_from([d for d in (1, 2, 3, 6, 12) if BATCH % (d * world) == 0]), "microbatch")
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_in(Path(folder), case)
        steps = min(plan.num_steps, 4)
        rows = [rows_by_hand(plan, step, case.documents) for step in range(steps)]
        parts = BATCH // (world * size)
        done = data.draw(st.integers(0, steps * parts - 1), "microbatches before the state")
        loaders = [TokenLoader(plan, rank=r, world_size=world, microbatch_size=size, format="hf") for r in range(world)]
        given_to = [iter(loader) for loader in loaders]
        for n in range(done):
            for rank, batches in enumerate(given_to):
                mine = order_twin.rank_rows(BATCH, rank, world, size)[n % parts * size :][:size]
                check_rows(rows[n // parts], next(batches), mine)
        state = loaders[0].state_dict()
        again = pickle.loads(pickle.dumps(plan)) if data.draw(st.booleans()) else plan
        for rank in range(world):
            options = {"world_size": world, "microbatch_size": size, "format": "hf", "inside_step": "continue"}
            loader = TokenLoader(again, rank=rank, **options)
            loader.load_state_dict(state)
            for n, batch in zip(range(done, steps * parts), loader, strict=False):
                mine = order_twin.rank_rows(BATCH, rank, world, size)[n % parts * size :][:size]
                check_rows(rows[n // parts], batch, mine)
            if steps == plan.num_steps:
                assert loader.step == steps


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Plan, Documents]]:
    """Give a plan over a store of 60 one-document shards, each with its mask."""
    documents = random_masked(5, [1 + i % 13 for i in range(60)])
    path = write_masked(tmp_path_factory.mktemp("masks") / "s", documents, shard_bytes=1, length_index=True)

    def make(packing: str, cross: bool = False) -> tuple[Plan, Documents]:
        fields = {"packing": packing, "cross_document_targets": cross, "num_steps": 20}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # many epochs
            return Plan.of(path, 16, 2, **fields), documents

    return make


@pytest.mark.parametrize(
    ("packing", "cross"), [("best_fit", False), ("none", False), ("concat", False), ("concat", True)]
)
@pytest.mark.parametrize("maps", [1, 3, 20])
def test_masks_that_do_not_stay_mapped(
    many_shards: Callable[..., tuple[Plan, Documents]],
    monkeypatch: pytest.MonkeyPatch,
    packing: str,
    cross: bool,
    maps: int,
) -> None:
    """FMT-10: with far fewer maps than files, those of tokens and of masks drive each other out, and batches are the same."""
    monkeypatch.setattr("tokenstore.batches.tables.MAX_MAPS", maps)
    plan, documents = many_shards(packing, cross)
    for step, batch in enumerate(TokenLoader(plan, format="hf")):
        check_rows(rows_by_hand(plan, step, {"s": documents}), batch)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_dataset_in_worker_processes_gives_the_same(many_shards: Callable[..., tuple[Plan, Documents]]) -> None:
    """P2, FMT-10: workers forked from a process that has read masks already give the same."""
    plan, documents = many_shards("best_fit")
    plan.batch(0)
    dataset = TokenDataset(plan, format="hf")
    batches = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for step, batch in enumerate(batches):
        check_rows(rows_by_hand(plan, step, {"s": documents}), batch)


@pytest.mark.parametrize("cross", [False, True])
def test_what_is_masked_is_left_out_by_hand(tmp_path: Path, cross: bool) -> None:
    """FMT-10: one worked case: documents 1 2 3 | 4 | 5 6 with 2, 4 and 5 masked, without shuffle, in rows of two tokens."""
    documents = Documents([[1, 2, 3], [4], [5, 6]], [[True, False, True], [False], [False, True]])
    path = write_masked(tmp_path / "s", documents, shard_bytes=6)
    plan = Plan.of(path, 2, 3, packing="concat", shuffle=False, cross_document_targets=cross, num_steps=1)
    (batch,) = TokenLoader(plan, format="hf")
    x = -100
    assert batch["input_ids"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["shift_labels"].tolist() == [[x, 3], [x, x], [6, 1 if cross else x]]
    assert batch["labels"].tolist() == [[1 if cross else x, x], [3, x], [x, 6]]


@pytest.mark.parametrize(
    ("packing", "cross"), [("best_fit", False), ("none", False), ("concat", False), ("concat", True)]
)
@pytest.mark.parametrize("vocab_size", [300, 70_000])
@pytest.mark.parametrize("masked", [False, True])
def test_spans_of_any_length_are_copied(
    tmp_path: Path, packing: str, cross: bool, vocab_size: int, masked: bool
) -> None:
    """FMT-10: spans shorter and longer than the chunks that are copied at once, beginning anywhere in a line of the output."""
    lengths = [*range(1, 2 * CHUNK + 10, 3), CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 4 * CHUNK, 4 * CHUNK + 5]
    documents = random_masked(3, lengths, vocab_size)
    if not masked:
        documents = Documents(documents.tokens, [[True] * length for length in lengths])
    path = write_masked(tmp_path / "s", documents, vocab_size, length_index=True, masks=masked)
    fields = {"packing": packing, "cross_document_targets": cross, "num_steps": 6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many epochs
        plan = Plan.of(path, 4 * CHUNK - 3, BATCH, **fields)
    narrow = TokenLoader(plan, fields=["input_ids"], dtype="int32")
    for step, batch in enumerate(TokenLoader(plan, format="hf", fields=FIELDS)):
        rows = rows_by_hand(plan, step, {"s": documents})
        check_rows(rows, batch)
        assert next(narrow)["input_ids"].tolist() == rows.ids
        for row, pieces in enumerate(plan.documents(step)):
            sizes = [piece.stop - piece.start for piece in pieces]
            used = sum(sizes)
            assert batch["position_ids"][row, :used].tolist() == [k for size in sizes for k in range(size)]
            assert batch["document_ids"][row, :used].tolist() == np.repeat(range(len(sizes)), sizes).tolist()
