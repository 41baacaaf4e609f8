"""Some of what `python -m tests.fuzz` does for hours."""

import pytest

from tests.fuzz import fuzz


@pytest.mark.deep
def test_a_store_damaged_at_random_is_told_or_sane() -> None:
    """P9: any damage is found by verify, and what is given meanwhile is sane or an error that says what and where."""
    assert fuzz(60, seed=1, most=300) > 50
