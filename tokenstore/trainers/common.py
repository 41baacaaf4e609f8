"""What the adapters of trainers share: where a trainer's count of updates is in a plan, and loaders that begin there.

A trainer's checkpoint holds how often its optimizer has stepped, and no gradients. So a plan goes on at the first step
that was not trained to its end, however many microbatches of it, or ahead of it, had been handed over.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.loader import AllOptions, TokenLoader


class PlacedLoader:
    """Microbatches of a plan for one rank, from the step after the updates that a trainer has counted when it asks for them.

    Nothing is kept between iterations. It is no `torch.utils.data.DataLoader`, so trainers give it out as it is.
    """

    def __init__(self, plan: Plan, num_updates: Callable[[], int], **options: Unpack[AllOptions]):
        """Make a loader; `options` are those of TokenLoader, without `step`, and checked here."""
        self.plan = plan
        self._num_updates, self._options = num_updates, options
        self._template: TokenLoader[Any] = TokenLoader(plan, **options)

    def __iter__(self) -> Iterator[Any]:
        options: AllOptions = {**self._options, "step": step_after(self.plan, self._num_updates())}
        yield from TokenLoader(self.plan, **options)

    def __len__(self) -> int:
        """Microbatches in the whole plan; TypeError when the plan is endless."""
        return len(self._template)

    def state_dict(self) -> dict[str, int | str]:
        """The state of the plan after the updates made, the same on every rank."""
        return state_after(self.plan, self._num_updates())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse (StateMismatchError) the state of a run with another history; {} does nothing. The place is the trainer's."""
        if state:
            self.plan.check_state(state)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: every source counts its own epochs. Here for trainers that call it."""


def evaluation_loader(plan: Plan, **options: Unpack[AllOptions]) -> PlacedLoader:
    """A loader that gives the whole plan each time it is iterated, also when left half-way before.

    Microbatches that have no token on any rank are skipped: a mean loss of them is NaN.

    Raises: ConfigError: an endless plan.
    """
    if plan.num_steps is None:
        raise ConfigError(
            "evaluation plan: expected one that ends, found an endless one; give it num_steps: all_exhausted"
        )
    options.setdefault("skip_empty", True)
    return PlacedLoader(plan, lambda: 0, **options)


def updates_a_pass(plan: Plan) -> int | None:
    """Steps of the whole plan that are not skipped, an update each; None when it is endless."""
    return None if plan.num_steps is None else plan.num_steps - plan.schedule.num_skipped(plan.num_steps)


def step_after(plan: Plan, num_updates: int) -> int:
    """The step that follows `num_updates` updates of a run that began at step 0; after a whole pass, 0 again."""
    whole = updates_a_pass(plan)
    return plan.step_at(num_updates % whole if whole else num_updates)


def state_after(plan: Plan, num_updates: int) -> dict[str, int | str]:
    """The plan's state after so many updates, for checkpoints; after a whole pass that of its end, with all its history."""
    ended = num_updates > 0 and num_updates % (updates_a_pass(plan) or num_updates + 1) == 0
    return plan.state(plan.num_steps if ended and plan.num_steps is not None else step_after(plan, num_updates))


def microbatches_a_step(plan: Plan, world_size: int, microbatch_size: int | None) -> int:
    """Microbatches a rank is given in every step. Raises: ConfigError: stages differ in it, which no trainer can follow.

    Args:
        plan: what is trained.
        world_size: data-parallel ranks, a divisor of every step.
        microbatch_size: sequences a microbatch; None: a rank's whole share of a step.
    """
    shares = {stage.from_step: stage.global_batch_size // world_size for stage in plan.schedule.stages}
    counts = {step: share // (microbatch_size or share) for step, share in shares.items()}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"microbatches a step: expected as many in every stage, as a trainer has one number for all, found {counts} by"
            f" from_step with {microbatch_size} sequences a microbatch; leave the microbatch size out"
        )
    return next(iter(counts.values()))


def check_accumulation(name: str, found: int, wanted: int, plan: Plan) -> None:
    """Refuse (ConfigError) a trainer whose updates are no steps: `found` microbatches an update instead of `wanted`."""
    if found != wanted:
        raise ConfigError(
            f"{name}: expected {wanted}, the microbatches a rank is given in a step of"
            f" {plan.global_batch_size(0)} sequences, so that an update is a step, found {found}; change it, the"
            " microbatch size or the plan's global_batch_size"
        )


def warn_of_passes(plan: Plan, num_updates: float, advice: str) -> None:
    """Warn where a trainer is to make more updates than the plan has steps: it would repeat them in the same order."""
    whole = updates_a_pass(plan)
    if whole is not None and num_updates > whole:
        warnings.warn(
            f"updates: expected at most the {whole} steps of the plan, found {num_updates:g}; the same steps will be"
            f" trained again in the same order. {advice}",
            stacklevel=3,
        )
