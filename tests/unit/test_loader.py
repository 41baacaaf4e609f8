"""TokenLoader and TokenDataset: formats, lengths, positions, errors."""

import copy
import pickle
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import random_documents
from tokenstore import Plan, SequenceDataset, TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, CorruptionError, StateMismatchError
from tokenstore.planning.history import make_state


@pytest.fixture
def path(make_store: Callable[..., Path]) -> Path:
    return make_store("a", random_documents(3, 200, 60), shard_bytes=4000, length_index=True)


def plan_of(path: Path, packing: str) -> Plan:
    return Plan.of(path, sequence_length=16, global_batch_size=12, num_steps=7, skip_steps=[(2, 4)], packing=packing)


@pytest.fixture
def plan(path: Path) -> Plan:
    return plan_of(path, "concat")


@pytest.fixture(params=["best_fit", "concat", "none"])
def any_plan(path: Path, request: pytest.FixtureRequest) -> Plan:
    """One plan a packing."""
    return plan_of(path, request.param)


def pieces_of(plan: Plan, step: int) -> list[list[int]]:
    """Tokens of the pieces of every row, padding as the last one."""
    rows = [[piece.stop - piece.start for piece in pieces] for pieces in plan.documents(step)]
    return [[*sizes, 16 - sum(sizes)] if sum(sizes) < 16 else sizes for sizes in rows]


def test_batches_are_fresh_contiguous_int64_tensors(any_plan: Plan) -> None:
    """A batch may be kept and written to: no other shares its memory."""
    batches = list(TokenLoader(any_plan, microbatch_size=3))
    assert len(batches) == 5 * 4
    pointers = {tensor.data_ptr() for batch in batches for tensor in batch.values()}
    assert len(pointers) == 2 * len(batches)
    for batch in batches:
        assert list(batch) == ["input_ids", "targets"]
        assert all(t.dtype == torch.int64 and t.is_contiguous() and t.shape == (3, 16) for t in batch.values())


def test_the_loader_gives_the_plan_without_its_skips(any_plan: Plan) -> None:
    """Steps 2 and 3 are passed over; the others are plan.batch, with step and step_ended telling where we are."""
    loader = TokenLoader(any_plan, rank=1, world_size=2, microbatch_size=3)
    assert len(loader) == 5 * 2
    assert loader.microbatches_per_step == 2
    for step in (0, 1, 4, 5, 6):
        expected = any_plan.batch(step, 1, 2, 3)
        got = []
        iterator = iter(loader)
        for j in range(2):
            got.append(next(iterator))
            assert loader.step_ended == (j == 1)
            assert loader.step == (step + 1 if j == 1 else step)
        assert (torch.cat([b["input_ids"] for b in got]).numpy() == expected["input_ids"]).all()
        assert (torch.cat([b["targets"] for b in got]).numpy() == expected["targets"]).all()
        iterator.close()


def test_after_the_end_a_loader_begins_again(plan: Plan) -> None:
    """An evaluation loader gives its whole plan every time it is iterated; one resumed at the end gives nothing first."""
    loader = TokenLoader(plan)
    assert [len(list(loader)) for _ in range(3)] == [5, 5, 5]
    assert len(list(TokenLoader(plan, step=7))) == 0


def test_an_endless_plan_has_no_length(path: Path) -> None:
    """len() is a TypeError, as for any endless iterable."""
    with pytest.raises(TypeError, match="endless"):
        len(TokenLoader(Plan.of(path, sequence_length=16, global_batch_size=4)))


def test_hugging_face_labels_are_unshifted(any_plan: Plan) -> None:
    """Labels repeat the ids with -100 where a document or a piece inside the row begins, and in padding; shift_labels are
    our targets; no attention_mask.
    """
    batch = next(iter(TokenLoader(any_plan, format="hf")))
    assert list(batch) == ["input_ids", "labels", "shift_labels"]
    ours = any_plan.batch(0)
    assert (batch["shift_labels"].numpy() == ours["targets"]).all()
    left_out = np.zeros((12, 16), bool)
    for row, pieces in enumerate(any_plan.documents(0)):
        at = 0
        for piece in pieces:
            left_out[row, at] = piece.start == 0 or at > 0
            at += piece.stop - piece.start
        left_out[row, at:] = True
    assert (batch["labels"].numpy() == np.where(left_out, -100, ours["input_ids"])).all()
    # inside a row the model's own shift of labels gives exactly our targets
    assert (batch["labels"].numpy()[:, 1:] == ours["targets"][:, :-1]).all()


def test_positions_and_documents(any_plan: Plan) -> None:
    """position_ids count from 0 at each document, each row and in padding; document_ids number the documents of a row."""
    fields = ("input_ids", "position_ids", "document_ids")
    batch = next(iter(TokenLoader(any_plan, fields=fields)))
    assert tuple(batch) == fields
    for row, (sizes, pieces) in enumerate(zip(pieces_of(any_plan, 0), any_plan.documents(0), strict=True)):
        numbers = [*range(len(pieces)), -1]
        assert batch["position_ids"][row].tolist() == [i for size in sizes for i in range(size)]
        assert batch["document_ids"][row].tolist() == [numbers[j] for j, size in enumerate(sizes) for _ in range(size)]


def test_sequence_borders_for_attention_kernels(any_plan: Plan) -> None:
    """cu_seqlens cut the flattened microbatch at every document, padding and row; max_seqlen is the longest piece."""
    fields = ("input_ids", "cu_seqlens", "max_seqlen", "source_ids")
    for step, batch in zip((0, 1, 4), TokenLoader(any_plan, fields=fields), strict=False):
        sizes = [size for row in pieces_of(any_plan, step) for size in row]
        assert batch["cu_seqlens"].dtype == torch.int32
        assert batch["cu_seqlens"].tolist() == [0, *np.cumsum(sizes)]
        assert batch["max_seqlen"] == max(sizes)
        assert batch["source_ids"].tolist() == [0] * 12


def test_one_shape_of_sequence_borders(plan: Plan) -> None:
    """With max_documents cu_seqlens have one shape, filled up; too small a number names the one that is needed."""
    fields = ("cu_seqlens", "max_seqlen")
    exact = next(iter(TokenLoader(plan, fields=fields)))["cu_seqlens"].tolist()
    batch = next(iter(TokenLoader(plan, fields=fields, max_documents=100)))
    assert batch["cu_seqlens"].tolist() == exact + [12 * 16] * (101 - len(exact))
    assert batch["max_seqlen"] == 16
    with pytest.raises(ValueError, match=f"expected at least {len(exact) - 1} for this batch, found 3"):
        next(iter(TokenDataset(plan, fields=fields, max_documents=3)))


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"format": "jax"}, ValueError, "format: expected one of"),
        ({"fields": ("labels",)}, ValueError, "fields: expected some of"),
        ({"rank": 1}, ValueError, "both or neither"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank 2 of 2"),
        ({"rank": 0, "world_size": 5}, ConfigError, r"divisor of the global batch of 12 sequences, found 5.*\[1, 2, 3"),
        ({"microbatch_size": 5}, ConfigError, "divisor of a rank's 12 sequences"),
        ({"step": 8}, ValueError, r"step: expected a step in 0\.\.7, found 8"),
        ({"step": -1}, ValueError, "found -1"),
    ],
)
def test_wrong_arguments_say_what_would_do(plan: Plan, arguments: dict, kind: type, text: str) -> None:
    """Each mistake names the argument, the rule and the value."""
    for make in (TokenLoader, TokenDataset):
        with pytest.raises(kind, match=text):
            make(plan, **arguments)


@pytest.mark.parametrize("step", [-1, 7, 2, 3])
def test_steps_outside_the_plan_are_refused(plan: Plan, step: int) -> None:
    """plan.batch of a step that is not there, or skipped, says so."""
    with pytest.raises(ValueError, match=r"step: (expected a step|. is skipped)"):
        plan.batch(step)


def test_updates_are_converted_to_steps(plan: Plan) -> None:
    """A trainer that has made n updates continues at plan.step_at(n)."""
    steps = [0, 1, 4, 5, 6]
    assert [plan.step_at(n) for n in range(5)] == steps


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, None), (1, "fork"), (2, "fork"), (3, "fork"), pytest.param(2, "spawn", marks=pytest.mark.deep)],
)
def test_workers_do_not_change_the_order(plan: Plan, workers: int, method: str | None) -> None:
    """P2: DataLoader over TokenDataset gives the same batches for any number of workers, forked or spawned."""
    dataset = TokenDataset(plan, rank=0, world_size=2, microbatch_size=2, step=1)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)
    got = torch.cat([batch["input_ids"] for batch in loader]).numpy()
    assert (got == np.concatenate([plan.batch(k, 0, 2, 2)["input_ids"] for k in (1, 4, 5, 6)])).all()


def test_everything_pickles_by_configuration(plan: Plan) -> None:
    """Spawning a worker copies no tokens: whatever is sent there is under 64 KiB, also after it was used."""
    loader, rows = TokenLoader(plan), SequenceDataset(plan)
    next(iter(loader)), rows[0]
    for thing in (plan, plan.stores["a"], loader, rows, TokenDataset(plan)):
        assert len(pickle.dumps(thing)) < 65536
    again = pickle.loads(pickle.dumps(TokenDataset(plan)))
    assert (next(iter(again))["input_ids"].numpy() == plan.batch(0)["input_ids"]).all()


def test_a_plan_of_many_sources_pickles_small(path: Path) -> None:
    """Also with hundreds of sources under long names, a plan is sent to a worker in under 64 KiB."""
    paths = {f"a corpus with quite a long name, part {i:03d}": path for i in range(300)}
    with pytest.warns(UserWarning, match="same store"):
        plan = Plan.of(paths, sequence_length=16, global_batch_size=4, weights=dict.fromkeys(paths, 1))
    data = pickle.dumps(TokenLoader(plan))
    assert len(data) < 65536
    assert (next(iter(pickle.loads(data)))["input_ids"].numpy() == plan.batch(0)["input_ids"]).all()


def test_a_store_replaced_under_a_pickled_plan_is_seen(plan: Plan, path: Path, make_store: Callable) -> None:
    """P10: a plan is reopened over the same content or not at all."""
    data = pickle.dumps(plan)
    path.rename(path.with_name("old"))
    make_store("a", random_documents(4, 200, 60), length_index=True)
    with pytest.raises(CorruptionError, match="replaced"):
        pickle.loads(data)


def test_a_copied_loader_continues_and_holds_no_addresses(plan: Plan) -> None:
    """A copy or a pickled loader gives the next batch from maps of its own, not from addresses of another process."""
    loader = TokenLoader(plan)
    iterator = iter(loader)
    next(iterator)
    for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert again._maker is None
        assert (next(iter(again))["input_ids"].numpy() == plan.batch(1)["input_ids"]).all()
    with pytest.raises(TypeError, match=r"call plan\.sampler"):
        pickle.dumps(loader._maker)


def test_counting_to_the_length_is_a_whole_pass(plan: Plan) -> None:
    """Who takes len(loader) batches and asks for no more begins again at step 0 the next time."""
    loader = TokenLoader(plan)
    assert [len(list(islice(loader, len(loader)))) for _ in range(3)] == [5, 5, 5]


def test_accumulation_is_that_of_the_batch_given(path: Path) -> None:
    """At a stage border microbatches_per_step is still that of the step whose batch is in hand."""
    stages = [{"from_step": 2, "weights": {"a": 1}, "global_batch_size": 24}]
    plan = Plan.of(path, 16, 12, weights={"a": 1}, num_steps=4, stages=stages)
    loader = TokenLoader(plan, microbatch_size=4)
    assert [loader.microbatches_per_step for _ in loader] == [3] * 6 + [6] * 12


@pytest.mark.parametrize("rows", [1, 3])
def test_many_microbatches_a_step_are_located_right(path: Path, rows: int) -> None:
    """More places in a step than are kept ahead: the same rows."""
    plan = Plan.of(path, sequence_length=16, global_batch_size=60, num_steps=3)
    got = torch.cat([b["input_ids"] for b in TokenLoader(plan, microbatch_size=rows)]).numpy()
    assert (got == np.concatenate([plan.batch(k)["input_ids"] for k in range(3)])).all()


def test_numpy_steps_are_integers(plan: Plan) -> None:
    """A step from an array resumes like an int, and leaves an int in the state; a float is refused."""
    state = TokenLoader(plan, step=np.int32(4)).state_dict()
    assert type(state["step"]) is type(state["cursor"]) is int
    assert (plan.batch(np.int64(4))["input_ids"] == plan.batch(4)["input_ids"]).all()
    with pytest.raises(TypeError):
        plan.batch(4.0)
    with pytest.raises(ValueError, match=r"at most 2\*\*62"):
        Plan.of(plan.stores["a"].path, sequence_length=16, global_batch_size=4).batch(2**61)


def test_questions_outside_the_plan_are_refused(plan: Plan) -> None:
    """Progress and state answer for steps of the plan and its end only."""
    assert plan.progress(7)["a"].sequences == 7 * 12
    for ask in (plan.progress, plan.state):
        with pytest.raises(ValueError, match=r"0\.\.7, found 8"):
            ask(8)


def test_a_state_beyond_the_plan_or_damaged_is_refused(plan: Plan, path: Path) -> None:
    """A longer run's state, a cursor outside its step, a step that is no integer: each is named."""
    fields = {"sequence_length": 16, "global_batch_size": 12, "skip_steps": [(2, 4)], "packing": "concat"}
    longer = Plan.of(path, num_steps=20, **fields)
    loader = TokenLoader(plan)
    with pytest.raises(StateMismatchError, match="plan ends before"):
        loader.load_state_dict(longer.state(10))
    with pytest.raises(StateMismatchError, match="expected integers"):
        loader.load_state_dict({**plan.state(4), "step": 3.5})
    inside = plan.state(4, plan.schedule.cursor(4) + 1)
    with pytest.raises(StateMismatchError, match="cursor inside step 4, found 999"):
        loader.load_state_dict(make_state(4, 999, inside["history"]))


def test_labels_agree_with_targets_that_cross_documents(path: Path) -> None:
    """With cross_document_targets a model's own shift of labels gives our targets as well."""
    plan = Plan.of(path, sequence_length=16, global_batch_size=12, packing="concat", cross_document_targets=True)
    batch = next(iter(TokenLoader(plan, format="hf")))
    assert (batch["labels"][:, 1:] == batch["shift_labels"][:, :-1]).all()


class TestRepr:
    def test_it_shows_plan_position_rank_and_format(self, plan: Plan) -> None:
        """The fingerprint is that of `tokenstore plan`; the step is the next one."""
        loader = TokenLoader(plan, rank=1, world_size=2, microbatch_size=3, format="hf")
        begin = f"TokenLoader(plan {plan.fingerprint[:12]}, step"
        assert repr(loader) == f"{begin} 0 of 7, rank 1 of 2, microbatches of 3, format hf)"
        loader.load_state_dict(plan.state(5))
        assert repr(loader) == f"{begin} 5 of 7, rank 1 of 2, microbatches of 3, format hf)"

    def test_it_does_not_decide_the_rank(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        """torch.distributed may be initialized after it; at the first batch the rank is decided and shown."""
        loader = TokenLoader(plan)
        assert "rank from the environment, whole steps, format torch" in repr(loader)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "3")
        next(loader)
        assert "rank 1 of 3" in repr(loader)
        assert "rank from the environment" in repr(pickle.loads(pickle.dumps(loader)))

    def test_it_reads_nothing(self, plan: Plan, path: Path) -> None:
        """Also of an endless plan whose store has gone."""
        loader = TokenLoader(Plan.of(path, 16, 12))
        shutil.rmtree(path)
        assert repr(loader).endswith("step 0, rank from the environment, whole steps, format torch)")
