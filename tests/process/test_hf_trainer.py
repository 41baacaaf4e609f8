"""TokenTrainerMixin and ResumeCallback under the real Trainer of transformers, and Accelerate, in one process."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from tests.support.trainers.hf_model import Recording, TokenTrainer, loss_by_hand, quiet_arguments, tiny_model
from tests.support.trainers.microbatches import GIVEN, microbatches, same, small_plan, small_store
from tokenstore import Plan, SequenceDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.huggingface import ResumeCallback, TokenTrainerMixin

SIZES = {8: 1, 4: 2, 2: 4}  # sequences per microbatch -> microbatches per step of 8 sequences, on one rank
Train = Callable[..., TokenTrainer]


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    return small_plan(small_store(make_store))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: a tiny model is slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train a plan, from the checkpoint that an earlier call saved after `after` updates; return the trainer."""

    def run(
        plan: Plan, size: int = 8, after: int | None = None, options: dict | None = None, **more: Any
    ) -> TokenTrainer:
        options = {"gradient_accumulation_steps": SIZES.get(size, 1), **(options or {})}
        arguments = quiet_arguments(tmp_path / "kept", size, options.pop("gradient_accumulation_steps"), **options)
        trainer = TokenTrainer(tiny_model(), arguments, train_plan=plan, **more)
        trainer.train(resume_from_checkpoint=None if after is None else str(tmp_path / "kept" / f"checkpoint-{after}"))
        return trainer

    return run


def weight(trainer: Any) -> np.ndarray:
    return trainer.model.lm_head.weight.detach().numpy()


def check_resumed(plan: Plan, train: Train, size: int, places: Iterable[tuple[int, int]]) -> None:
    """Compare a whole run with its rest, resumed after each number of updates with each microbatch size."""
    whole = train(plan, size)
    assert same(whole.ids, microbatches(plan, GIVEN, size=size))
    assert [update for update, _, _ in whole.trained] == [u for u in range(5) for _ in range(SIZES[size])]
    for after, other in places:
        rest = train(plan, other, after, {"save_strategy": "no"})
        assert same(rest.ids, microbatches(plan, GIVEN[after:], size=other))
        assert np.allclose(weight(rest), weight(whole), atol=1e-6)
        assert (rest.state.epoch, rest.state.global_step) == (1, 5)


@pytest.mark.parametrize(("size", "places"), [(8, [(2, 4)]), (4, [(1, 4), (3, 2)]), (2, [(5, 2), (4, 8)])])
def test_a_run_resumes_exactly(plan: Plan, train: Train, size: int, places: list[tuple[int, int]]) -> None:
    """P1, P2: an update is a step; a checkpoint resumes at the next one, with any accumulation, to equal weights."""
    check_resumed(plan, train, size, places)


@pytest.mark.deep
@pytest.mark.parametrize("size", SIZES)
def test_every_checkpoint_resumes_exactly(plan: Plan, train: Train, size: int) -> None:
    """P1, P2: from every checkpoint, with every accumulation."""
    check_resumed(plan, train, size, product(range(1, 6), SIZES))


def test_a_resumed_run_can_be_resumed(plan: Plan, train: Train) -> None:
    """A second resume is exact too."""
    train(plan, 4, options={"max_steps": 2})
    train(plan, 2, 2, {"max_steps": 4})
    assert same(train(plan, 8, 4).ids, microbatches(plan, GIVEN[4:]))


def test_more_updates_than_steps_are_a_warning(plan: Plan, train: Train) -> None:
    """Three epochs are the default of the Trainer; further passes begin at step 0, also when resumed."""
    with pytest.warns(UserWarning, match="10 updates, but the plan has 5 steps, .*num_train_epochs=1"):
        trainer = train(plan, 4, options={"num_train_epochs": 2})
    assert same(trainer.ids, microbatches(plan, GIVEN * 2, size=4))
    for after in (3, 5, 7):
        with pytest.warns(UserWarning, match="8 updates"):
            rest = train(plan, 8, after, {"max_steps": 8, "save_strategy": "no"})
        assert same(rest.ids, microbatches(plan, (GIVEN * 2)[after:8]))
        assert rest.state.epoch == 1.6


def test_an_endless_plan_ends_at_max_steps(plan: Plan, train: Train) -> None:
    """Prefetched batches are not lost."""
    endless = small_plan(plan.stores["a"].path, num_steps=None)
    train(endless, 4, options={"max_steps": 3})
    rest = train(endless, 2, 3, {"max_steps": 6})
    assert rest.state.epoch == 1
    assert same(rest.ids, microbatches(endless, (5, 6, 7), size=2))


def test_steps_added_to_a_plan_are_trained(plan: Plan, train: Train) -> None:
    """P10: they are its future."""
    train(plan, 4)
    longer = small_plan(plan.stores["a"].path, num_steps=9)
    assert same(train(longer, 4, 5).ids, microbatches(longer, (7, 8), size=4))


def test_resuming_needs_ignore_data_skip(plan: Plan, train: Train) -> None:
    """Otherwise the Trainer would skip the data again. It is checked only when resuming."""
    train(plan, options={"ignore_data_skip": False, "max_steps": 2})
    with pytest.raises(ConfigError, match=r"ignore_data_skip: expected True, .* skip 2 updates again"):
        train(plan, 8, 2, {"ignore_data_skip": False})


@pytest.mark.parametrize(
    ("size", "options", "text"),
    [
        (4, {"gradient_accumulation_steps": 3}, "gradient_accumulation_steps: expected 2, .*found 3"),
        (3, {}, "microbatch_size: expected a divisor of a rank's 8 sequences"),
        (16, {}, "microbatch_size: expected a divisor"),
    ],
)
def test_updates_must_be_steps(plan: Plan, train: Train, size: int, options: dict, text: str) -> None:
    """The batch sizes of the Trainer must make a step of the plan."""
    with pytest.raises(ConfigError, match=text):
        train(plan, size, options=options)


def test_a_checkpoint_of_another_run_is_refused(plan: Plan, train: Train) -> None:
    """P10: trainer_state.json has the history of the plan."""
    train(plan, options={"max_steps": 2})
    with pytest.raises(StateMismatchError, match="seed was 0, is 1"):
        train(small_plan(plan.stores["a"].path, seed=1), after=2)


def test_a_restored_callback_works(plan: Plan, train: Train) -> None:
    """The Trainer restores callbacks from a checkpoint as new objects."""
    train(plan, options={"max_steps": 2})
    rest = train(plan, 8, 2, {"restore_callback_states_from_checkpoint": True})
    assert same(rest.ids, microbatches(plan, GIVEN[2:]))


class Plain(Recording):
    """A user's Trainer over a TokenLoader. With ResumeCallback it resumes."""

    plan: Plan

    def get_train_dataloader(self) -> TokenLoader:
        return TokenLoader(self.plan, microbatch_size=4, format="hf")


def test_the_callback_moves_a_token_loader(plan: Plan, tmp_path: Path) -> None:
    """Also from a checkpoint made without the callback, which is not checked; further checkpoints resume too."""

    def run(after: int | None, *callbacks: ResumeCallback, **options: Any) -> Plain:
        trainer = Plain(tiny_model(), quiet_arguments(tmp_path, 4, 2, **options), callbacks=list(callbacks))
        trainer.plan = plan
        trainer.train(resume_from_checkpoint=None if after is None else str(tmp_path / f"checkpoint-{after}"))
        return trainer

    run(None, max_steps=2)
    assert same(run(2, ResumeCallback(), max_steps=4).ids, microbatches(plan, GIVEN[2:4], size=4))
    assert same(run(4, ResumeCallback()).ids, microbatches(plan, GIVEN[4:], size=4))


def test_evaluation_covers_the_whole_plan(plan: Plan, train: Train, make_store: Callable[..., Path]) -> None:
    """During and after training, for several plans and for a given one: every microbatch, and the mean over tokens."""
    path = small_store(make_store, "v")
    one, other = (Plan.of(path, 8, 4, num_steps=3, seed=seed) for seed in (1, 2))
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2}
    trainer = train(plan, 8, options=options, eval_plan={"one": one, "other": other})
    plans = (one, other, one, other, one, other)  # after updates 2 and 4, and at the end
    for wanted, got in zip(plans, trainer.evaluated, strict=True):
        assert same(got, microbatches(wanted, range(3), size=2))
    for _ in range(2):
        assert np.isclose(trainer.evaluate(other)["eval_loss"], loss_by_hand(trainer.model, other))


def test_a_cache_is_refused_with_position_ids(plan: Plan, train: Train) -> None:
    """Models use position_ids to isolate documents only without a cache."""
    fields = {"fields": ("input_ids", "labels", "position_ids")}
    with pytest.raises(ConfigError, match="use_cache: with a cache, documents of a row attend to each other"):
        train(plan, options={"use_cache": True}, loader_options=fields)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ignore_index": -1}, "ignore_index: expected -100, which the losses of transformers ignore, found -1"),
        ({"dtype": torch.uint16}, "dtype: expected int64 or int32, which embeddings accept, found uint16"),
    ],
)
def test_options_that_models_do_not_support_are_refused(plan: Plan, train: Train, options: dict, text: str) -> None:
    """When the Trainer is made, not by an error of a kernel."""
    with pytest.raises(ConfigError, match=text):
        train(plan, loader_options=options)


def test_narrow_ids_train_the_same(plan: Plan, train: Train) -> None:
    """int32 ids give the weights of int64 ids, and the loader knows the last batch."""
    options = {"max_steps": 2, "save_strategy": "no"}
    narrow = train(plan, options=options, loader_options={"dtype": "int32"})
    assert np.array_equal(weight(narrow), weight(train(plan, options=options)))
    info = narrow.callback_handler.train_dataloader.batch_info
    assert np.array_equal(plan.batch(info.step)["input_ids"][list(info.rows)], narrow.ids[-1])


def test_a_shuffled_sequence_dataset_is_refused(plan: Plan, tmp_path: Path) -> None:
    """With sequential sampling it follows the plan, except for plans with skipped steps."""

    def run(plan: Plan, **options: Any) -> Recording:
        arguments = quiet_arguments(tmp_path, 4, 2, save_strategy="no", **options)
        trainer = Recording(tiny_model(), arguments, train_dataset=SequenceDataset(plan, format="hf"))
        trainer.train()
        return trainer

    whole = small_plan(plan.stores["a"].path, num_steps=3, skip_steps=[])
    with pytest.raises(ConfigError, match=r'RandomSampler would shuffle .*train_sampling_strategy="sequential"'):
        run(whole)
    with pytest.raises(ConfigError, match="the sequences of skipped steps"):
        run(plan, train_sampling_strategy="sequential")
    assert same(run(whole, train_sampling_strategy="sequential").ids, microbatches(whole, range(3), size=4))


def test_other_datasets_are_left_to_the_trainer(plan: Plan, tmp_path: Path) -> None:
    """The mixin and the callback do not touch them."""
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    arguments = quiet_arguments(tmp_path, 4, 1, per_device_eval_batch_size=4)
    trainer = TokenTrainer(tiny_model(), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert len(trainer.ids) == 2
    again = TokenTrainer(tiny_model(), arguments, train_dataset=rows, eval_plan=small_plan(plan.stores["a"].path))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    trainer.evaluate()
    again.evaluate()
    assert [len(each.evaluated[0]) for each in (trainer, again)] == [2, 10]


def test_endless_evaluation_is_refused(plan: Plan, train: Train) -> None:
    """A plan for evaluation must end."""
    trainer = train(plan, options={"max_steps": 1}, eval_plan=small_plan(plan.stores["a"].path, num_steps=None))
    with pytest.raises(ConfigError, match="evaluation plan: the plan is endless"):
        trainer.evaluate()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_labels_give_the_loss_computed_by_hand(plan: Plan, kind: str) -> None:
    """format="hf": the model's shift yields the mean over our targets; targets passed as labels would not."""
    torch.manual_seed(0)
    model = (
        tiny_model()
        if kind == "llama"
        else GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    )
    model.eval()
    for batch in TokenLoader(plan, microbatch_size=4, format="hf"):
        logits = model(input_ids=batch["input_ids"]).logits
        by_hand = cross_entropy(logits.flatten(0, 1), batch["shift_labels"].flatten(), ignore_index=-100).item()
        assert np.isclose(model(**batch).loss.item(), by_hand, rtol=1e-5)
        labels = batch["labels"][:, 1:]  # only shift_labels have a target for the last position of a row
        within = cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100).item()
        assert np.isclose(model(batch["input_ids"], labels=batch["labels"]).loss.item(), within, rtol=1e-5)
        twice = model(batch["input_ids"], labels=batch["shift_labels"]).loss.item()
        assert not np.isclose(twice, within, rtol=1e-5)


def test_the_trainers_loss_is_a_mean_over_the_tokens_of_a_step(plan: Plan, train: Train) -> None:
    """With accumulation, the losses of the microbatches add up to the loss of the step computed by hand."""
    trainer = train(plan, 2, options={"learning_rate": 0.0})
    model = tiny_model()
    for update, step in enumerate(GIVEN):
        batch = plan.batch(step)
        logits = model(input_ids=torch.from_numpy(batch["input_ids"])).logits
        by_hand = cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch["targets"]).flatten(), ignore_index=-100)
        assert np.isclose(sum(loss for of, _, loss in trainer.trained if of == update), by_hand.item(), rtol=1e-5)


def test_accelerate_returns_a_token_loader_unchanged(plan: Plan) -> None:
    """Nothing is divided twice; accumulation makes one update per step of the plan."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = TokenLoader(plan, rank=0, world_size=2, microbatch_size=1)
    linear = torch.nn.Linear(8, 1)
    model, optimizer, prepared = accelerator.prepare(linear, torch.optim.SGD(linear.parameters(), lr=0.1), loader)
    assert prepared is loader
    got, stepped = [], []
    for batch in prepared:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["input_ids"].float()).mean())
            optimizer.step()
            optimizer.zero_grad()
        got.append(batch["input_ids"])
        stepped.append((accelerator.sync_gradients, loader.step_ended))
    assert same(got, microbatches(plan, GIVEN, 0, 2, 1))
    assert stepped == [(j == 3, j == 3) for _ in GIVEN for j in range(4)]


def test_accelerate_saves_the_state_of_a_token_loader(plan: Plan, tmp_path: Path) -> None:
    """P1, P2: registered with an Accelerator, it is saved and loaded with the model, also with other microbatches."""
    first = TokenLoader(plan, rank=0, world_size=2, microbatch_size=2)
    accelerator = Accelerator(cpu=True)
    accelerator.register_for_checkpointing(first)
    assert len(list(islice(first, 4))) == 4
    accelerator.save_state(str(tmp_path / "state"))
    again, other = TokenLoader(plan, rank=3, world_size=4), Accelerator(cpu=True)
    other.register_for_checkpointing(again)
    other.load_state(str(tmp_path / "state"))
    assert same([batch["input_ids"] for batch in again], microbatches(plan, GIVEN[2:], 3, 4))


def test_data_ranks_of_processes(plan: Plan, train: Train) -> None:
    """A given rank; and one among consecutive ranks of tensor and context parallelism."""
    trainer = train(plan, 4, options={"gradient_accumulation_steps": 1}, rank=DataRank(1, 2))
    assert same(trainer.ids, microbatches(plan, GIVEN, 1, 2))
    process = SimpleNamespace(process_index=5, world_size=8)
    peers = {"get_tp_size": lambda: 2, "get_cp_size": lambda: 2, "get_sp_size": lambda: 1}
    assert TokenTrainer.data_rank.fget(SimpleNamespace(_rank=None, args=process, **peers)) == DataRank(1, 2)
    with pytest.raises(ConfigError, match="rank: with 2 ranks of sequence parallelism"):
        TokenTrainer.data_rank.fget(SimpleNamespace(_rank=None, args=process, **{**peers, "get_sp_size": lambda: 2}))


def test_stages_with_other_batch_sizes(plan: Plan, train: Train) -> None:
    """A Trainer has one accumulation for all: a rank's whole share as one microbatch follows the stages."""
    stages = [{"from_step": 5, "weights": {"a": 1}, "global_batch_size": 16}]
    staged = small_plan(plan.stores["a"].path, weights={"a": 1}, stages=stages)
    with pytest.raises(ConfigError, match=r"one number for all stages, .* \{0: 2, 5: 4\}"):
        train(staged, 4)
    whole = {"microbatch_size": None, "fields": ("input_ids", "labels", "shift_labels", "position_ids")}
    assert same(train(staged, 8, loader_options=whole).ids, microbatches(staged, GIVEN))
    assert same(train(staged, 8, 3, loader_options=whole).ids, microbatches(staged, GIVEN[3:]))


class LikeTRL(Recording):
    """Behaves like SFTTrainer of TRL: needs position_ids, prepares datasets, counts a microbatch as one row."""

    __module__ = "trl.trainer.sft_trainer"
    _total_train_tokens = 0

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._metrics: dict[str, dict[str, list[int]]] = {"train": {}}
        self.eval_dataset = self._prepare_dataset(self.eval_dataset, "eval")

    def _prepare_dataset(self, dataset: Any, name: str) -> Any:
        raise AssertionError(name)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._total_train_tokens += inputs["position_ids"].size(1) * self.model.training
        return super().compute_loss(model, inputs, *args, **kwargs)


class TokenLikeTRL(TokenTrainerMixin, LikeTRL):
    """The class that a user of TRL writes."""


def test_trl_gets_position_ids_and_the_right_count(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default fields are those it needs; its number of tokens covers all rows."""
    placeholder = [
        {"input_ids": [0, 0], "labels": [0, 0]}
    ]  # TRL brings the library `datasets`, which is not needed here
    monkeypatch.setattr("tokenstore.trainers.huggingface._placeholder", lambda: placeholder)
    arguments = quiet_arguments(tmp_path, 4, 2, save_strategy="no", per_device_eval_batch_size=4)
    trainer = TokenLikeTRL(tiny_model(), arguments, train_plan=plan, eval_plan=plan)
    trainer.train()
    trainer.evaluate()
    assert same(trainer.ids, microbatches(plan, GIVEN, size=4))
    assert trainer._total_train_tokens == 5 * 8 * 8
    assert trainer._metrics["train"]["num_tokens"] == [5 * 8 * 8]
