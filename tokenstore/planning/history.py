"""The identity of a run (P10): what decided its first steps, and the state that may only be resumed into the same."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenstore.errors import StateMismatchError, TokenStoreError
from tokenstore.format.manifest import canonical_json
from tokenstore.order import ORDER_VERSION
from tokenstore.order.schedule import Schedule
from tokenstore.store import Store, open_store, versions

STATE_VERSION = 1
_MOST_SHOWN = 20  # differences in a message
_MOST_CHARACTERS = 1 << 24  # of a history that is parsed
STATE_KEYS = ("state_version", "step", "cursor", "fingerprint", "history")


def history_of(schedule: Schedule, constants: Mapping[str, Any], sources: Mapping[str, Any], step: int | None) -> str:
    """Canonical JSON of everything that decided steps [0, step) and nothing else; step None: the whole plan.

    Args:
        schedule: the laid-out run.
        constants: fields that decide every step: seed, sequence_length, packing, ...
        sources: what identifies each source's content, by name.
    """
    stages = [stage for stage in schedule.stages if step is None or stage.from_step < step]
    edge = None if step is None else schedule.cursor(step)
    used = sorted({name for stage in stages for name in stage.shares})
    history = {
        "order_version": ORDER_VERSION,
        **constants,
        "stages": [
            {"from_step": stage.from_step, "global_batch_size": stage.global_batch_size}
            | ({} if stage.continues else {"shares": dict(stage.shares)})  # restated shares restart the interleave
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
        history["end"] = schedule.end  # the rows behind it are padding
    if step is None:
        history["num_steps"] = schedule.num_steps
    return canonical_json(history)


def fingerprint_of(text: str) -> str:
    """sha256 of a canonical JSON text, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_state(step: int, cursor: int, history: str) -> dict[str, int | str]:
    """The state of a run: ints and strings only, the same on every rank. The fingerprint covers all other fields."""
    fields: dict[str, int | str] = {"state_version": STATE_VERSION, "step": step, "cursor": cursor, "history": history}
    return {**fields, "fingerprint": _state_fingerprint(fields)}


def _state_fingerprint(state: Mapping[str, Any]) -> str:
    return fingerprint_of(canonical_json({key: state[key] for key in STATE_KEYS if key != "fingerprint"}))


def check_state(state: Any) -> None:
    """Refuse a state that is not ours, of another version, or damaged. It may be any value: only StateMismatchError leaves."""
    check_keys(state, STATE_KEYS)
    if type(state["state_version"]) is not int or state["state_version"] != STATE_VERSION:
        raise StateMismatchError(
            f"state version: expected {STATE_VERSION}, found {short(state['state_version'])}; use the tokenstore that saved it"
        )
    if any(type(state[key]) is not int or not 0 <= state[key] < 1 << 63 for key in ("step", "cursor")):
        raise StateMismatchError(
            f"state: expected whole numbers, found step {short(state['step'])}, cursor {short(state['cursor'])}"
        )
    texts = type(state["history"]) is str and type(state["fingerprint"]) is str
    if not texts or _state_fingerprint(state) != state["fingerprint"]:
        raise StateMismatchError(
            "state: its fingerprint does not match its step, cursor and history: the checkpoint is damaged or was edited;"
            " use another checkpoint, or TokenLoader(plan, step=...) to start at a step unchecked"
        )


def check_keys(state: Any, keys: Sequence[str], hint: str = "") -> None:
    """Refuse a state that does not have exactly these keys."""
    if isinstance(state, Mapping) and set(state) == set(keys):
        return
    found = type(state).__name__
    if isinstance(state, Mapping):
        found = short(list(state))
        if not hint and ("_snapshot" in state or "_num_yielded" in state):
            hint = "; this is the state of a torchdata StatefulDataLoader"
    raise StateMismatchError(f"state: expected the keys {list(keys)}, found {found}{hint}")


def check_same_history(saved: str, mine: str, step: int, stores: Mapping[str, Store] | None = None) -> None:
    """Refuse to resume at `step` into a plan with another history; name every field that differs, and stores that grew."""
    if saved == mine:
        return
    changed = differences(_parsed(saved), json.loads(mine))
    shown = [f"{field} was {short(was)}, is {short(now)}" for field, was, now in changed[:_MOST_SHOWN]]
    if len(changed) > _MOST_SHOWN:
        shown.append(f"and {len(changed) - _MOST_SHOWN} more fields")
    fields = "; ".join(shown)
    grown = [hint for name, store in (stores or {}).items() if (hint := _growth(name, store, saved))]
    raise StateMismatchError(
        f"state: expected a plan with the same first {step} steps, found other ones: {fields};"
        f" {'; '.join(grown) or 'load the plan this run was started with, and change it from the resumed step on only'}"
    )


def _parsed(history: str) -> Any:
    """The history of a state, which may be forged."""
    try:
        if len(history) <= _MOST_CHARACTERS:
            return json.loads(history)
    except (ValueError, RecursionError):
        pass
    raise StateMismatchError(
        "state: its history is not one of a plan: the checkpoint was edited; use another checkpoint"
    )


def short(value: Any) -> str:
    """A value of a state as JSON, for a message; any value whatever."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # no JSON, a number of thousands of digits, nested too deep
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 300 else text[:297] + "..."


def _growth(name: str, store: Store, saved: str) -> str | None:
    """What to do where the saved history knows an older version of a store; None where it does not."""
    if store.digest in saved:
        return None
    with contextlib.suppress(TokenStoreError):
        for version in reversed(versions(store.path, store.allow_links)):
            if open_store(store.path, "lazy", version, store.allow_links).digest in saved:
                return f"store {name} has grown since; add version: {version} to the source"
    return None


def differences(first: Any, second: Any, place: str = "") -> list[tuple[str, Any, Any]]:
    """[(field, value in the first, in the second)] of two pasts as JSON has them; None: not there."""
    if first == second:
        return []
    if isinstance(first, dict) and isinstance(second, dict):
        keys = sorted({*first, *second})
        return [
            row for key in keys for row in differences(first.get(key), second.get(key), f"{place}.{key}".lstrip("."))
        ]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = zip(first, second, strict=True)
        return [row for i, (a, b) in enumerate(pairs) for row in differences(a, b, f"{place}[{i}]")]
    return [(place, first, second)]
