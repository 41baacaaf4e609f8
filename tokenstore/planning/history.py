"""The history of a run (P10): what decided its first steps. A state can only be resumed in a plan with the same history."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenstore.errors import StateMismatchError, TokenStoreError
from tokenstore.format.differences import describe, differences, short
from tokenstore.format.manifest import canonical_json
from tokenstore.order import ORDER_VERSION
from tokenstore.order.schedule import Schedule
from tokenstore.store import Store, open_store

STATE_VERSION = 1

_MOST_CHARACTERS = 1 << 24  # a longer history is not parsed
STATE_KEYS = ("state_version", "step", "cursor", "fingerprint", "history")
_INSIDE_KEYS = ("balance", "node_groups")  # how the rows of a step that has begun were dealt; absent by default
_INTEGERS = ("step", "cursor", "node_groups")


def history_of(schedule: Schedule, constants: Mapping[str, Any], sources: Mapping[str, Any], step: int | None) -> str:
    """Canonical JSON of everything that decided steps [0, step) and of nothing else. With step None: of the whole plan.

    Args:
        schedule: the schedule of the run.
        constants: fields that apply to every step: seed, sequence_length, packing, ...
        sources: what identifies the content of each source, by name.
        step: number of steps, or None.
    """
    stages = [stage for stage in schedule.stages if step is None or stage.from_step < step]
    edge = None if step is None else schedule.cursor(step)
    used = sorted({name for stage in stages for name in stage.shares})
    history = {
        "order_version": ORDER_VERSION,
        **constants,
        "stages": [
            {"from_step": stage.from_step, "global_batch_size": stage.global_batch_size}
            | (
                {} if stage.continues else {"shares": dict(stage.shares)}
            )  # shares that are given again restart the interleave
            for stage in stages
        ],
        "sources": {name: sources[name] for name in used},
        "drops": [[cursor, name] for cursor, name in schedule.drops if edge is None or cursor < edge],
        "skip_steps": [
            [start, stop if step is None else min(stop, step)]
            for start, stop in schedule.skip_steps
            if step is None or start < step
        ],
    }
    if schedule.pads and schedule.end is not None and (edge is None or schedule.end < edge):
        history["end"] = schedule.end  # later rows are padding
    if step is None:
        history["num_steps"] = schedule.num_steps
    return canonical_json(history)


def fingerprint_of(text: str) -> str:
    """sha256, hex, of a canonical JSON text."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_state(
    step: int, cursor: int, history: str, balance: str | None = None, node_groups: int = 1
) -> dict[str, int | str]:
    """The state of a run: only ints and strings, the same on every rank. The fingerprint covers all other fields.

    Args:
        step, cursor: the position.
        history: of the steps before the position, and of `step` if the run is inside it.
        balance: the costs by which the rows of `step` were dealt, if the run is inside the step and its plan is balanced.
        node_groups: the node groups among which the rows of `step` were divided, if the run is inside the step.
    """
    fields: dict[str, int | str] = {"state_version": STATE_VERSION, "step": step, "cursor": cursor, "history": history}
    if balance is not None:
        fields["balance"] = balance
    if node_groups > 1:
        fields["node_groups"] = node_groups
    return {**fields, "fingerprint": _state_fingerprint(fields)}


def _state_fingerprint(state: Mapping[str, Any]) -> str:
    return fingerprint_of(canonical_json({key: state[key] for key in _keys_of(state) if key != "fingerprint"}))


def _keys_of(state: Any) -> tuple[str, ...]:
    """The keys that a state should have."""
    return (*STATE_KEYS, *(key for key in _INSIDE_KEYS if isinstance(state, Mapping) and key in state))


def check_state(state: Any) -> None:
    """Validate a state, which may be any value: StateMismatchError if it is not a state, of another version, or damaged."""
    check_keys(state, _keys_of(state))
    if type(state["state_version"]) is not int or state["state_version"] != STATE_VERSION:
        raise StateMismatchError(
            f"state version: expected {STATE_VERSION}, found {short(state['state_version'])}; use the tokenstore that saved it"
        )
    integers = {key: state[key] for key in _keys_of(state) if key in _INTEGERS}
    if any(type(value) is not int or not 0 <= value < 1 << 63 for value in integers.values()):
        found = ", ".join(f"{key} {short(value)}" for key, value in integers.items())
        raise StateMismatchError(f"state: expected integers, found {found}")
    texts = all(type(state[key]) is str for key in _keys_of(state) if key not in ("state_version", *_INTEGERS))
    if not texts or _state_fingerprint(state) != state["fingerprint"]:
        raise StateMismatchError(
            "state: its fingerprint does not match its step, cursor and history: the checkpoint is damaged or was edited;"
            " use another checkpoint, or TokenLoader(plan, step=...) to start at a step unchecked"
        )


def check_keys(state: Any, keys: Sequence[str], hint: str = "") -> None:
    """StateMismatchError if a state does not have exactly these keys. `hint` is appended to the message."""
    if isinstance(state, Mapping) and set(state) == set(keys):
        return
    found = type(state).__name__
    if isinstance(state, Mapping):
        found = short(list(state))
        if not hint and ("_snapshot" in state or "_num_yielded" in state):
            hint = "; this is the state of a torchdata StatefulDataLoader"
    raise StateMismatchError(f"state: expected the keys {list(keys)}, found {found}{hint}")


def check_same_history(saved: str, mine: str, step: int, stores: Mapping[str, Store] | None = None) -> None:
    """StateMismatchError if the plan's history of steps [0, step) differs from that of a saved state.

    Args:
        saved: the history in the state.
        mine: the history of the plan.
        step: number of steps.
        stores: the plan's stores by name; the message says which of them have grown since.
    """
    if saved == mine:
        return
    fields = describe(differences(_parsed(saved), json.loads(mine)))
    grown = [hint for name, store in (stores or {}).items() if (hint := _growth(name, store, saved))]
    raise StateMismatchError(
        f"state: the plan differs from the saved run in its first {step} steps: {fields};"
        f" {'; '.join(grown) or 'load the plan this run was started with; only later steps may change'}"
    )


def check_unchanged(what: str, before: str, after: str, step: int) -> None:
    """StateMismatchError if the histories of steps [0, step) of two plans differ. `what` begins the message."""
    if before != after:
        fields = describe(differences(json.loads(before), json.loads(after)))
        raise StateMismatchError(
            f"{what}: the steps before {step} would change: {fields}; a plan may only change later steps, as"
            f" plan.amended({step}, ...) does"
        )


def _parsed(history: str) -> Any:
    """Parse the history in a state, which may be forged."""
    try:
        if len(history) <= _MOST_CHARACTERS:
            return json.loads(history)
    except (ValueError, RecursionError):
        pass
    raise StateMismatchError(
        "state: its history is not that of a plan: the checkpoint was edited; use another checkpoint"
    )


def _growth(name: str, store: Store, saved: str) -> str | None:
    """What to do if the saved history refers to an older version of a store; None if it does not."""
    if store.digest in saved:
        return None
    with contextlib.suppress(TokenStoreError):
        for version in reversed(store.versions()):
            options = None if store.remote is None else store.remote.given_options
            if open_store(store.place, "lazy", version, store.allow_links, options).digest in saved:
                return f"store {name} has grown since; set version: {version} on the source"
    return None
