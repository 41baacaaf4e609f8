"""Fields that trace and weigh rows: sequence_ids, loss_weights, source_tokens, and the lookup plan.sequence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.processes.command_lines import ok, run_here
from tests.support.twins.packed_plans import Stores, cases, limited, plan_of
from tokenstore import Plan, PlanConfig, SequenceDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError

FIELDS = ("input_ids", "targets", "sequence_ids", "loss_weights", "source_tokens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    for number, name in enumerate("abc"):
        write_store(folder / name, random_documents(number, 80, 40), length_index=True)
    return folder


def plan_of_three(folder: Path, weights: dict[str, object], **fields: object) -> Plan:
    """Source a, and a pool of b and c."""
    sources = {name: {"path": str(folder / name), "loss_weight": weights.get(name)} for name in "abc"}
    if fields.get("packing") != "concat":
        sources["p"] = {"pool": ["b", "c"]}
    return Plan(
        PlanConfig(**{"sequence_length": 48, "global_batch_size": 8, "num_steps": 6, **fields}, sources=sources)
    )


@given(case=cases(packings=("best_fit", "none", "concat"), most_steps=5), data=st.data())
def test_ids_number_the_rows_of_all_steps(stores: Stores, case: dict, data: st.DataObject) -> None:
    """P2, ORD-6: however a step is divided, row r of step s has the id cursor(s) + r, and plan.sequence finds it."""
    try:
        plan, _ = plan_of(stores, data.draw(st.one_of(st.just(case), limited(case))))
    except ConfigError:  # not one step
        return
    world = data.draw(st.sampled_from([1, 2, 4]))
    for rank in range(world):
        loader = TokenLoader(plan, rank=rank, world_size=world, microbatch_size=1, fields=("input_ids", "sequence_ids"))
        for batch in loader:
            info, (number,) = loader.batch_info, batch["sequence_ids"].tolist()
            if number < 0:  # padding
                continue
            found = plan.sequence(number)
            assert found.step == info.step
            assert number == plan.schedule.cursor(info.step) + found.row
            row = plan.batch(found.step)["input_ids"][found.row]
            assert (row == batch["input_ids"][0].numpy()).all()
            assert list(found.pieces) == plan.documents(found.step)[found.row]


def test_the_ids_of_a_step_are_all_its_numbers(folder: Path) -> None:
    """Over all ranks each number occurs once, and a SequenceDataset has the same sequence under it."""
    plan = plan_of_three(folder, {})
    dataset = SequenceDataset(plan, fields=("input_ids", "sequence_ids"))
    ids = []
    for rank in range(2):
        for batch in TokenLoader(plan, rank=rank, world_size=2, fields=("input_ids", "sequence_ids")):
            ids += batch["sequence_ids"].tolist()
            assert torch.equal(dataset[ids[-1]]["input_ids"], batch["input_ids"][-1])
            assert dataset[ids[-1]]["sequence_ids"] == ids[-1]
    assert sorted(ids) == list(range(48))


def test_a_balanced_step_keeps_its_ids(folder: Path) -> None:
    """ORD-18, ORD-19: rows that are dealt by cost have the numbers of plan.rows, and plan.sequence finds their documents."""
    plan = plan_of_three(folder, {}, balance="attention")
    for rank in range(2):
        loader = TokenLoader(plan, rank=rank, world_size=2, fields=("input_ids", "sequence_ids"))
        for step, batch in enumerate(loader):
            ids = batch["sequence_ids"].tolist()
            assert ids == (plan.schedule.cursor(step) + plan.rows(step, rank, 2)).tolist()
            assert [list(plan.sequence(number).pieces) for number in ids] == plan.documents(step, rank, 2)


def test_rows_of_padding_have_no_id(folder: Path) -> None:
    """-1 in the batch; plan.sequence has the row, without a source."""
    plan = Plan.of({"a": folder / "a"}, 48, 7, packing="none", num_steps="all_exhausted")
    last = plan.num_steps - 1
    (batch,) = TokenLoader(plan, rank=0, world_size=1, step=last, fields=("input_ids", "sequence_ids"))
    empty = [row for row, pieces in enumerate(plan.documents(last)) if not pieces]
    assert batch["sequence_ids"][empty].tolist() == [-1] * len(empty) != []
    info = plan.sequence(plan.schedule.cursor(last) + empty[0])
    assert info == (last, empty[0], None, None, None, ())


@pytest.mark.parametrize("number", [-1, 48, 10**30])
def test_an_unknown_sequence(folder: Path, number: int) -> None:
    """IndexError with the range; the command has exit code 2."""
    plan = plan_of_three(folder, {})
    with pytest.raises(IndexError, match=rf"sequence: expected a number in 0\.\.47, found {number}"):
        plan.sequence(number)


def test_the_command_shows_a_sequence(folder: Path) -> None:
    """`trace --sequence` shows the row that has the number; it excludes --row."""
    plan = plan_of_three(folder, {})
    plan.config.save(folder / "plan.yaml")
    info = plan.sequence(21)
    shown = ok("trace", folder / "plan.yaml", "--sequence", 21, "--max-tokens", 0)
    assert f"row {info.row}: {info.source}, sequence {info.number}, epoch {info.epoch}" in shown
    assert all(f"{piece.source}:{piece.document} " in shown for piece in info.pieces)
    made = run_here("trace", folder / "plan.yaml", "--sequence", 48)
    assert (made.returncode, "expected a number in 0..47, found 48" in made.stderr) == (2, True)
    made = run_here("trace", folder / "plan.yaml", "--sequence", 4, "--row", 1)
    assert (made.returncode, "omit it with --sequence" in made.stderr) == (2, True)


def expected_weights(plan: Plan, step: int, targets: np.ndarray) -> np.ndarray:
    """Loss weights piece by piece."""
    out = np.zeros(targets.shape, np.float32)
    for row, pieces in enumerate(plan.documents(step)):
        at = 0
        for piece in pieces:
            weight = plan.config.sources[piece.source].loss_weight
            out[row, at : at + piece.stop - piece.start] = 1 if weight is None else float(weight)
            at += -(-(piece.stop - piece.start) // (plan.config.align or 1)) * (plan.config.align or 1)
    return np.where(targets == -100, np.float32(0), out)


@pytest.mark.parametrize("weights", [{}, {"a": "0.25"}, {"a": 2, "b": "0.5", "c": 3}, {"c": 0}], ids=str)
@pytest.mark.parametrize(
    "fields", [{"align": 8}, {"packing": "none"}, {"packing": "concat"}, {"balance": "attention"}], ids=str
)
def test_loss_weights_are_those_of_each_tokens_source(folder: Path, weights: dict, fields: dict) -> None:
    """In a pool those of the member, and 0 where there is no target. Counts of tokens are those of the pieces."""
    plan = plan_of_three(folder, weights, **fields)
    loader = TokenLoader(plan, rank=0, world_size=1, fields=FIELDS)
    for step, batch in enumerate(loader):
        targets = batch["targets"].numpy()
        assert batch["loss_weights"].dtype == torch.float32
        assert (batch["loss_weights"].numpy() == expected_weights(plan, step, targets)).all()
        tokens = dict.fromkeys(plan.stores, 0)
        for piece in (piece for pieces in plan.documents(step) for piece in pieces):
            tokens[piece.source] += piece.stop - piece.start
        assert batch["source_tokens"].tolist() == list(tokens.values())
    assert step == 5


def test_targets_across_documents_do_not_count_as_tokens(folder: Path) -> None:
    """The token after a row is only a target."""
    plan = Plan.of({"a": folder / "a"}, 48, 8, packing="concat", cross_document_targets=True, num_steps=3)
    for batch in TokenLoader(plan, rank=0, world_size=1, fields=FIELDS):
        assert batch["source_tokens"].tolist() == [8 * 48]
        assert (batch["loss_weights"] == 1).all()


@pytest.mark.parametrize(
    ("format", "fields"),
    [
        ("hf", ("labels", "shift_labels")),
        ("hf_flash", ("labels", "shift_labels")),
        ("megatron", ("tokens", "labels", "loss_mask")),
        ("nanotron", ("input_ids", "label_mask")),
        ("rows", ("tokens", "loss_mask")),
    ],
)
def test_every_dict_format_has_them(folder: Path, format: str, fields: tuple) -> None:
    """The same values in the shape of the format, next to its own masks, without targets of their own, and reusing memory."""
    plan = plan_of_three(folder, {"a": 2, "b": "0.5"})
    more = ("loss_weights", "sequence_ids", "source_tokens")
    expected = list(TokenLoader(plan, rank=0, world_size=1, fields=("targets", *more)))
    for options in ({}, {"reuse": 1}, {"prefetch": 2}):
        loader = TokenLoader(plan, rank=0, world_size=1, format=format, fields=(*fields, *more), **options)
        for batch, wanted in zip(loader, expected, strict=True):
            shape = (1, 8 * 48) if format == "hf_flash" else (8, 48)
            assert torch.equal(batch["loss_weights"], wanted["loss_weights"].reshape(shape))
            assert torch.equal(batch["sequence_ids"], wanted["sequence_ids"])
            assert torch.equal(batch["source_tokens"], wanted["source_tokens"])
            if format == "megatron":
                assert torch.equal(batch["loss_mask"], (wanted["loss_weights"] > 0).float())


def test_loss_weights_are_part_of_the_history(folder: Path) -> None:
    """P10: another weight is another run; 1 is the same as none, and 0.50 as 0.5."""
    state = plan_of_three(folder, {"a": "0.5"}).state(2)
    assert plan_of_three(folder, {"a": "0.50"}).check_state(state) == (2, 0)
    with pytest.raises(StateMismatchError, match=r"sources\.a\.loss_weight"):
        plan_of_three(folder, {"a": "0.6"}).check_state(state)
    assert plan_of_three(folder, {"a": 1}).fingerprint == plan_of_three(folder, {}).fingerprint


def test_a_pool_has_no_loss_weight(folder: Path) -> None:
    """Its members have."""
    sources = {"b": {"path": str(folder / "b")}, "p": {"pool": ["b"], "loss_weight": 2}}
    with pytest.raises(
        ConfigError, match=r"sources\.p\.loss_weight: a pool has none; set the loss_weight of its members"
    ):
        PlanConfig(sequence_length=8, global_batch_size=2, sources=sources)
    with pytest.raises(ConfigError, match=r"loss_weight: expected 0 or more, found -1"):
        plan_of_three(folder, {"a": -1})


def test_the_command_shows_loss_weights(folder: Path) -> None:
    """In a note, with the field."""
    plan_of_three(folder, {"a": "0.5"}).config.save(folder / "weighted.yaml")
    assert "weights in the loss: a 0.5; they are in the batch field loss_weights" in ok(
        "plan", folder / "weighted.yaml"
    )
