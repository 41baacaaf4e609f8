"""The pause of the garbage collector: it ends as it began."""

import gc
from collections.abc import Iterator

import pytest

from tokenstore.collector import paused_collector


@pytest.fixture(autouse=True)
def enabled_afterwards() -> Iterator[None]:
    yield
    gc.enable()


def test_the_collector_is_disabled_inside_only() -> None:
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_a_user_disabled_stays_disabled() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ZeroDivisionError), paused_collector():
        1 / 0  # noqa: B018
    assert gc.isenabled()
