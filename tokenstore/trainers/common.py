"""Shared by the adapters: the position in a plan that a trainer's number of updates means, and loaders that start there.

A trainer's checkpoint has the number of optimizer updates, and no gradients. So a plan continues at the first step that was
not trained completely, however many of its microbatches, or of later ones, had been loaded.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import torch

from tokenstore.errors import ConfigError, StateMismatchError
from tokenstore.format.differences import short
from tokenstore.planning.history import check_keys
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.position import BatchInfo


class PlacedLoader:
    """Microbatches of a plan for one rank. Each iteration starts at the first step that the trainer has not
    trained yet.

    It keeps no state between iterations. It is not a `torch.utils.data.DataLoader`, so trainers use it unchanged.

    Attributes:
        plan: the plan.
    """

    def __init__(self, plan: Plan, num_updates: Callable[[], int], **options: Unpack[AllOptions]):
        """Make a loader.

        Args:
            plan: the plan to load.
            num_updates: called at the start of each iteration; returns the number of updates so far.
            options: options of TokenLoader except `step`. They are checked here.
        """
        self.plan = plan
        self._num_updates, self._options = num_updates, options
        self._template: TokenLoader[Any] = TokenLoader(plan, **options)
        self._current = self._template

    def __iter__(self) -> Iterator[Any]:
        options: AllOptions = {**self._options, "step": step_after(self.plan, self._num_updates())}
        self._current = TokenLoader(self.plan, **options)
        yield from self._current

    @property
    def batch_info(self) -> BatchInfo | None:
        """What the last returned batch is, as in TokenLoader. A trainer may fetch batches before it trains on them."""
        return self._current.batch_info

    def __len__(self) -> int:
        """Number of microbatches of the whole plan. Raises: TypeError: the plan is endless."""
        return len(self._template)

    def state_dict(self) -> dict[str, int | str]:
        """The state of the plan after the updates so far, the same on every rank."""
        return state_after(self.plan, self._num_updates())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check a state; the position itself comes from the trainer. {} is ignored.

        Raises: StateMismatchError: the state is from a run with another history.
        """
        if not (isinstance(state, Mapping) and not state):
            self.plan.check_state(state)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Some trainers call this method."""


def evaluation_loader(plan: Plan, **options: Unpack[AllOptions]) -> Evaluation:
    """The Evaluation of a plan, with the options of a TokenLoader that trains. Those that only matter for training are omitted.

    Raises: ConfigError: the plan is endless.

    Example:
        >>> evaluation_loader(plan, format="hf").run(lambda batch: model(**batch).loss, reduction="mean").loss
    """
    own: dict[str, Any] = {
        name: value for name, value in options.items() if name not in ("nodes", "reuse", "restart", "skip_empty")
    }
    return Evaluation(plan, **own)


def updates_per_pass(plan: Plan) -> int | None:
    """Updates in one pass over the plan: its steps that are not skipped. None if the plan is endless."""
    return None if plan.num_steps is None else plan.num_steps - plan.schedule.num_skipped(plan.num_steps)


def step_after(plan: Plan, num_updates: int) -> int:
    """The step that follows `num_updates` updates of a run that began at step 0; 0 after a whole pass."""
    whole = updates_per_pass(plan)
    return plan.step_at(num_updates % whole if whole else num_updates)


def state_after(plan: Plan, num_updates: int) -> dict[str, int | str]:
    """The plan's state after `num_updates` updates, for checkpoints. After a whole pass it is the state of the plan's end."""
    ended = num_updates > 0 and num_updates % (updates_per_pass(plan) or num_updates + 1) == 0
    return plan.state(plan.num_steps if ended and plan.num_steps is not None else step_after(plan, num_updates))


def check_updates(plan: Plan, state: Any, keys: Sequence[str], name: str) -> int:
    """The number of updates in the state of an adapter, which also holds the state of the plan after them, as `plan`.

    Args:
        plan: the plan that continues.
        state: of the adapter.
        keys: of such a state.
        name: the key of the number of updates.

    Raises:
        StateMismatchError: the state has other keys, or is from a run with another history, or its two positions differ.
    """
    check_keys(state, keys)
    step, _ = plan.check_state(state["plan"])
    updates = state[name]
    if type(updates) is not int or updates < 0 or state_after(plan, updates)["step"] != step:
        raise StateMismatchError(
            f"state: expected as {name} a number of updates that ends before step {step} of the plan, found {short(updates)};"
            " load another checkpoint"
        )
    return updates


def step_after_sequences(plan: Plan, trained: int) -> int:
    """The step that follows `trained` sequences, over all ranks, of a run that began at step 0.

    Raises: ConfigError: `trained` is inside a step.
    """
    schedule, place = plan.schedule, trained  # `place` also counts skipped sequences before it
    for start, stop in sorted(schedule.skip_steps):
        if schedule.cursor(start) <= place:
            place += schedule.cursor(stop) - schedule.cursor(start)
    step = schedule.step_of(place)
    if place != schedule.cursor(step):
        raise ConfigError(
            f"consumed samples: {trained} sequences end inside step {step} of the plan, which has"
            f" {plan.global_batch_size(step)}; save checkpoints after whole steps of this plan"
        )
    return step


def arrays(batch: Any) -> Any:
    """A batch with numpy arrays that share the memory of its tensors."""
    if isinstance(batch, dict):
        return {name: arrays(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(arrays(part) for part in batch)
    return batch.numpy() if isinstance(batch, torch.Tensor) else batch


def microbatches_per_step(plan: Plan, world_size: int, microbatch_size: int | None) -> int:
    """Microbatches that a rank receives per step.

    Args:
        plan: the plan to train.
        world_size: number of data-parallel ranks; divides every step.
        microbatch_size: sequences per microbatch; None: a rank's whole share of a step.
    Raises: ConfigError: stages of the plan differ in this number. Trainers have one number for the whole run.
    """
    shares = {stage.from_step: stage.global_batch_size // world_size for stage in plan.schedule.stages}
    counts = {step: share // (microbatch_size or share) for step, share in shares.items()}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"microbatches per step: a trainer has one number for all stages, but with {microbatch_size} sequences per"
            f" microbatch they have {counts} (by from_step); omit the microbatch size"
        )
    return next(iter(counts.values()))


def check_accumulation(name: str, found: int, expected: int, plan: Plan) -> None:
    """Check that an update of the trainer is a step of the plan.

    Args:
        name: the trainer's option for microbatches per update.
        found: its value.
        expected: microbatches that a rank receives per step.
        plan: the plan to train.
    Raises: ConfigError: the numbers differ.
    """
    if found != expected:
        raise ConfigError(
            f"{name}: expected {expected}, the number of microbatches per rank in a step of {plan.global_batch_size(0)}"
            f" sequences, found {found}; an update must be a step: change {name}, the microbatch size or the plan's"
            " global_batch_size"
        )


def warn_if_repeated(plan: Plan, num_updates: float, advice: str) -> None:
    """Warn if a trainer will make more updates than the plan has steps: it would repeat the steps in the same order."""
    whole = updates_per_pass(plan)
    if whole is not None and num_updates > whole:
        warnings.warn(
            f"updates: the trainer will make {num_updates:g} updates, but the plan has {whole} steps, so the same steps will"
            f" be trained again in the same order. {advice}",
            stacklevel=3,
        )
