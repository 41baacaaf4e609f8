"""Timeline: the steps of a plan, and the states and histories of its runs. It reads no tokens."""

import operator
from collections.abc import Mapping
from typing import Any

from tokenstore.batches.sources import Source
from tokenstore.errors import StateMismatchError
from tokenstore.order.schedule import MOST_SEQUENCES, Schedule
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.find import check_epoch
from tokenstore.planning.history import check_same_history, check_state, fingerprint_of, history_of, make_state
from tokenstore.store import Store


class Timeline:
    """What a plan computes about its steps from the schedule alone. `Plan` sets the attributes, and documents them."""

    config: PlanConfig
    stores: dict[str, Store]
    sources: tuple[Source, ...]
    num_sequences: dict[str, int]
    schedule: Schedule
    pad_id: int

    @property
    def num_steps(self) -> int | None:
        """Number of steps of the plan, including skipped steps; None if it is endless."""
        return self.schedule.num_steps

    @property
    def last_start(self) -> int:
        """The last step that a run may start at: num_steps, or the last step within the sizes of ORD-10 of an endless plan."""
        return self.schedule.step_of(MOST_SEQUENCES) if self.num_steps is None else self.num_steps

    @property
    def fingerprint(self) -> str:
        """sha256, hex, of everything that decides the whole plan, including its end."""
        return fingerprint_of(self.history(None))

    def history(self, step: int | None) -> str:
        """Canonical JSON of everything that decided steps [0, step) and of nothing else. None: of the whole plan with its end."""
        constants = {
            "seed": self.config.seed,
            "sequence_length": self.config.sequence_length,
            "packing": self.config.packing,
            "shuffle": self.config.shuffle,
            "cross_document_targets": self.config.cross_document_targets,
            "pad_id": self.pad_id,
        }
        if self.config.align not in (None, 1):
            constants["align"] = self.config.align
        identities = {source.name: source.identity for source in self.sources}
        return history_of(self.schedule, constants, identities, step)

    def global_batch_size(self, step: int) -> int:
        """Number of sequences of `step`, over all ranks."""
        return self.schedule.stage(step).global_batch_size

    def step_at(self, num_updates: int) -> int:
        """The next step after `num_updates` steps that are not skipped."""
        step = num_updates
        for start, stop in self.schedule.skip_steps:
            step += stop - start if start <= step else 0
        return step

    # ---- state

    def state(self, step: int, cursor: int | None = None, num_groups: int = 1) -> dict[str, int | str]:
        """The state of a run whose next step is `step`. With `cursor`, of a run inside `step` that continues at that cursor.

        num_groups: node groups among which the rows of a step that has begun are divided; see `num_groups`.
        """
        step = self.check_start(step)
        start = self.schedule.cursor(step)
        cursor = start if cursor is None else cursor
        if cursor == start:
            return make_state(step, cursor, self.history(step))
        return make_state(step, cursor, self.history(step + 1), self._costs, num_groups)

    def check_state(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Check that a state belongs to this plan; returns its step, and how many sequences of that step were already used.

        Raises:
            StateMismatchError: the state belongs to another plan or version, or is damaged.
        """
        check_state(state)
        step, cursor = state["step"], state["cursor"]
        if step > self.last_start:
            raise StateMismatchError(
                f"state: expected a step in 0..{self.last_start}, found {step}; this plan ends before that step"
            )
        start = self.schedule.cursor(step)
        history_end = step if cursor == start else step + 1
        check_same_history(state["history"], self.history(history_end), history_end, self.stores)
        if not start <= cursor < start + self.global_batch_size(step):
            raise StateMismatchError(
                f"state: expected a cursor inside step {step}, found {cursor}; the state is damaged"
            )
        return step, cursor - start

    @property
    def _costs(self) -> str | None:
        """The costs by which the rows of a step are dealt, as recorded in states inside a step; None without balance."""
        costs = self.config.row_costs
        return None if costs is None else f"attention {costs[0]}, linear {costs[1]}"

    def dealing_difference(self, state: Mapping[str, Any], num_groups: int = 1) -> str | None:
        """Whether a run inside a step can continue there: what prevents it, for messages; None if nothing does.

        A state inside a step counts the sequences that were used. Which ones these are depends on `balance` and on the node
        groups.

        Args:
            state: a state that `check_state` accepts.
            num_groups: node groups among which this run divides the rows of the step.
        """
        if state["cursor"] == self.schedule.cursor(state["step"]):
            return None
        saved, mine = (
            "no balance" if each is None else f"balance by {each}" for each in (state.get("balance"), self._costs)
        )
        if saved != mine:
            return f"the state was saved with {saved}, and this plan has {mine}; set balance as it was"
        if (groups := state.get("node_groups", 1)) != num_groups:
            return (
                f"the state was saved with {_groups_text(groups)}, and this run has {_groups_text(num_groups)};"
                f" pass nodes={groups}"
            )
        return None

    def check_step(self, step: int) -> None:
        """ValueError if the plan has no such step, or skips it."""
        if self.check_start(step) == self.last_start:
            raise ValueError(f"step: expected a step below {self.last_start}, found {step}")
        if self.schedule.is_skipped(step):
            raise ValueError(f"step: {step} is skipped; skip_steps is {self.schedule.skip_steps}")

    def check_start(self, step: int) -> int:
        """`step` as an int if a run can start there, at any step of the plan or its end; otherwise ValueError."""
        step = operator.index(step)  # a numpy or torch integer could overflow later
        if not 0 <= step <= self.last_start:
            limit = "" if self.num_steps is not None else "; a run has at most 2**62 sequences"
            raise ValueError(f"step: expected a step in 0..{self.last_start}, found {step}{limit}")
        return step

    def epoch_start(self, source: str, epoch: int) -> int | None:
        """The step in which `epoch` (from 0) of a source begins; None if this plan never reaches it."""
        if source not in self.num_sequences:
            raise ValueError(f"source: expected one of {', '.join(self.num_sequences)}, found {source!r}")
        check_epoch(epoch)
        cursor = self.schedule.find(source, operator.index(epoch) * self.num_sequences[source])
        return None if cursor is None else self._step_of_given(cursor)

    def _step_of_given(self, cursor: int) -> int | None:
        step = self.schedule.step_of(cursor)
        return step if self.num_steps is None or step < self.num_steps else None

    def _steps_of(self, steps: range | tuple[int, int]) -> range:
        """[first, last) as a range of steps, limited to the steps of the plan."""
        if isinstance(steps, range) and steps.step != 1:
            raise ValueError(f"steps: expected every step of a range, found {steps}")
        first, last = (operator.index(x) for x in ((steps.start, steps.stop) if isinstance(steps, range) else steps))
        most = max(first, last) if self.num_steps is None else self.num_steps
        first, last = min(first, most), min(last, most)
        return range(self.check_start(first), max(self.check_start(last), first))


def _groups_text(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
