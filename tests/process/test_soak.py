"""A short run of `python -m tests.soak`."""

import pytest

from tests.soak import soak


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks:DeprecationWarning")
def test_killed_ranks_resume_with_other_sizes() -> None:
    """P1, P2: real ranks, killed at random moments and resumed with other world sizes, microbatches and loaders."""
    counts = soak(20, seed=1)
    assert counts["runs"] >= 1
    assert counts["kills"] >= 1
