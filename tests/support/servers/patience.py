"""Waits without a limit of time, so that a busy machine does not decide which error a test sees."""

import pytest

from tests.support.stores.at_urls import files_of
from tokenstore import Plan
from tokenstore.store.remote.group import Group
from tokenstore.store.remote.location import Location

_SECONDS = 60


def patient(monkeypatch: pytest.MonkeyPatch, answers: bool = True) -> None:
    """Wait for requests as long as they take: a fault is then the error, and not that there was no answer in time.

    The deadline of a client still limits how often it tries again.

    Args:
        monkeypatch: undoes it.
        answers: also wait for each answer. Not where a fault is that the server does not answer.
    """
    wait, connect = Group.wait, Location.connect
    monkeypatch.setattr(Group, "wait", lambda self, seconds: wait(self, seconds + _SECONDS))
    if answers:
        monkeypatch.setattr(Location, "connect", lambda self, *limits: connect(self, _SECONDS, _SECONDS))


def set_deadline(plan: Plan, seconds: float) -> None:
    """Change the deadline of the clients of a plan, for instance after its stores were opened."""
    for name in plan.stores:
        client = files_of(plan, name).client
        client.deadline = seconds
        client._store = None  # which has the limits of the old deadline
