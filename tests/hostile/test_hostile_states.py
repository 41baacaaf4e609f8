"""Forged states: any value raises a StateMismatchError, and no other exception."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenstore
from tests.support.stores.forge import canonical
from tests.support.stores.hostile_stores import make_small
from tokenstore import TokenDataset, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError


def sealed(**fields: Any) -> dict:
    """A state with these fields and a matching fingerprint, as someone who knows the rule would forge it."""
    state = {"state_version": 1, "step": 1, "cursor": 4, "history": "{}", **fields}
    try:
        text = canonical(state)
    except (TypeError, ValueError, RecursionError):
        text = ""
    return {**state, "fingerprint": hashlib.sha256(text.encode()).hexdigest()}


DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]
HUGE = 10**5000

FORGED = {
    "none": None,
    "a list": [],
    "a list of keys": ["state_version", "step", "cursor", "history", "fingerprint"],
    "a string": "state",
    "a number": 7,
    "mixed keys": {1: 2, "a": 3, None: 4, (1, 2): 5},
    "a huge key": {HUGE: 1},
    "history no JSON": sealed(history="{"),
    "history nested deep": sealed(history="[" * 100_000 + "]" * 100_000),
    "history nested and closed": sealed(history="[" * 900 + "]" * 900),
    "history a list": sealed(history="[1, 2]"),
    "history of nested fields": sealed(history='{"seed": ' + "[" * 700 + "]" * 700 + "}"),
    "history with a huge number": sealed(history='{"seed": 1' + "0" * 5000 + "}"),
    "history with NaN": sealed(history='{"seed": NaN}'),
    "history with a lone surrogate": sealed(history='{"seed": "\ud800"}'),
    "history of many fields": sealed(history=canonical({f"k{i}": "x" * 100 for i in range(10_000)})),
    "history no text": sealed(history={"seed": 1}),
    "history nothing": sealed(history=None),
    "version true": sealed(version=True),
    "version text": sealed(version="1"),
    "version huge": sealed(version=HUGE),
    "version deep": sealed(version=DEEP),
    "step true": sealed(step=True),
    "step huge": sealed(step=HUGE),
    "step 2**64": sealed(step=1 << 64),
    "step negative": sealed(step=-1),
    "step float": sealed(step=1.0),
    "step deep": sealed(step=DEEP),
    "cursor huge": sealed(cursor=HUGE),
    "cursor list": sealed(cursor=[4]),
    "cursor negative": sealed(cursor=-4),
    "fingerprint a list": {**sealed(), "fingerprint": [1]},
    "fingerprint an array": {**sealed(), "fingerprint": np.array(["a", "b"])},
    "a tensor": torch.zeros(3),
    "an array": np.zeros(3),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tokenstore.Plan:
    path = make_small(tmp_path_factory.mktemp("states") / "s")
    return tokenstore.Plan.of(path, 8, 4, num_steps=3, packing="concat")


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_state_is_a_state_mismatch(plan: tokenstore.Plan, name: str) -> None:
    """P10: whatever it contains, the error is a StateMismatchError with a message of bounded length."""
    with pytest.raises(StateMismatchError) as caught:
        plan.check_state(FORGED[name])
    assert len(str(caught.value)) < 10_000
    loaders = TokenLoader(plan, rank=0, world_size=1), iter(TokenDataset(plan, rank=0, world_size=1))
    for loader in loaders:  # {} is a new run, None and [] are damage
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(FORGED[name])


def test_a_state_whose_rest_of_the_step_does_not_divide_is_refused(plan: tokenstore.Plan) -> None:
    """A forged cursor would make a microbatch extend into the next step."""
    rank = {"rank": 0, "world_size": 1, "microbatch_size": 2}
    for loader in TokenLoader(plan, **rank), iter(TokenDataset(plan, **rank)):
        sound = loader.state_dict()
        own = {**sound, "plan": plan.state(1, 5)} if "plan" in sound else plan.state(1, 5)
        with pytest.raises(ConfigError, match="the 3 sequences left in step 1"):
            loader.load_state_dict(own)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    value=JSON, key=st.sampled_from(["state_version", "step", "cursor", "history", "fingerprint"]), seal=st.booleans()
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_state_with_one_changed_field_is_refused(plan: tokenstore.Plan, value: Any, key: str, seal: bool) -> None:
    """P10: replacing a field of a valid state gives an error, or an equal state."""
    sound = plan.state(1)
    state = {**sound, key: value}
    if seal and key != "fingerprint":
        state = sealed(**{name: state[name] for name in ("state_version", "step", "cursor", "history")})
    try:
        plan.check_state(state)
    except StateMismatchError:
        return
    assert state == sound


@pytest.mark.parametrize("key", ["state_version", "worker", "num_workers", "microbatch_rows", "to_skip", "plan"])
@pytest.mark.parametrize(
    "value",
    [HUGE, True, [1], "x", {}, -1, torch.zeros(2)],
    ids=["huge", "true", "list", "text", "dict", "negative", "tensor"],
)
def test_a_forged_state_of_a_worker_is_a_state_mismatch(plan: tokenstore.Plan, key: str, value: Any) -> None:
    """P10: the state of a DataLoader worker is just as untrusted."""
    iteration = iter(tokenstore.TokenDataset(plan, rank=0, world_size=1))
    state = {**iteration.state_dict(), key: value}
    with pytest.raises(StateMismatchError):
        iteration.load_state_dict(state)
