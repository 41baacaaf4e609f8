"""Loading a state: whose it is, and what happens with one that was saved inside a step."""

import warnings
from collections.abc import Mapping
from typing import Any

from tokenstore.errors import StateMismatchError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.position import Split

INSIDE_STEP = ("warn", "continue", "rewind")


def check_inside_step(choice: str) -> str:
    """`choice`, if it is one of INSIDE_STEP. Raises: ValueError: it is not."""
    if choice not in INSIDE_STEP:
        raise ValueError(f"inside_step: expected one of {list(INSIDE_STEP)}, found {choice!r}")
    return choice


def rows_used(split: Split, state: Mapping[str, Any], given: int, choice: str) -> int:
    """`given`, or 0 if the step must start again, because its rows are dealt in another order than in the run of `state`.

    Args:
        split: how the rows are dealt now.
        state: a state that its plan accepts.
        given: sequences of the step that were already used.
        choice: the argument `inside_step`. "continue" raises, because the gradients of the first sequences would count twice;
            "warn" warns.

    Raises: StateMismatchError: the choice is "continue".
    """
    if not given:
        return 0
    plan, step = split.plan, state["step"]
    difference = plan.dealing_difference(state, split.num_groups(step))
    if difference is None:
        return given
    if choice == "continue":
        raise StateMismatchError(
            f"state: saved inside step {step}, and the rest of the step would be other sequences: {difference}, or drop the"
            ' gradients of this step and pass inside_step="rewind"'
        )
    if choice == "warn":
        warnings.warn(
            f"state: saved inside step {step}, after {given} of its {plan.global_batch_size(step)} sequences. The step starts"
            f" again, because its rest would be other sequences: {difference} to continue inside it. Drop the gradients of"
            ' this step if the checkpoint contains them. Pass inside_step="rewind" to start the step again without this'
            " warning",
            stacklevel=3,
        )
    return 0


def rest_of_step(plan: Plan, step: int, given: int, choice: str) -> int:
    """Rows of `step` to skip as already trained on, for a state that was saved after `given` of them.

    `choice` is the argument `inside_step`. Warns if it is "warn" and the state is inside the step.
    """
    if given and choice == "warn":
        warnings.warn(
            f"state: saved inside step {step}, after {given} of its {plan.global_batch_size(step)} sequences. Training"
            " continues with the other sequences of the step. The gradients of the first ones are lost, unless the checkpoint"
            ' contains them. Pass inside_step="rewind" to start the step again, or inside_step="continue" if you restored the'
            f" gradients. To save only at the start of a step, use plan.state({step})",
            stacklevel=3,
        )
    return 0 if choice == "rewind" else given


def check_whose(state: Mapping[str, Any]) -> None:
    """Raise StateMismatchError for the state of a DataLoader over a TokenDataset, which has a position per worker."""
    marks = [mark for mark in ("_snapshot", "_num_yielded", "worker") if isinstance(state, Mapping) and mark in state]
    if marks:
        raise StateMismatchError(
            f"state: expected that of a TokenLoader, found that of a torchdata StatefulDataLoader (key {marks[0]!r}); load it"
            " into a StatefulDataLoader over a TokenDataset with the same num_workers, or use TokenLoader(plan, step=...)"
        )
