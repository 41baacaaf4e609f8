"""Some of what `python -m tests.soak` does for hours."""

import pytest

from tests.soak import soak


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks:DeprecationWarning")
def test_ranks_killed_and_resumed_in_other_splits_give_the_plan() -> None:
    """P1, P2: real ranks, killed at random moments and gone on with in other world sizes, microbatches and loaders."""
    counts = soak(20, seed=1)
    assert counts["runs"] >= 1
    assert counts["kills"] >= 1
