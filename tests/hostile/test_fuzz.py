"""A few rounds of `python -m tests.fuzz`."""

import math

import pytest

from tests.fuzz import fuzz


@pytest.mark.deep
def test_random_damage_is_found_and_never_followed() -> None:
    """P9: verify finds any damage, and reading returns valid values or raises an error that names the file."""
    assert fuzz(math.inf, seed=1, most=100) == 100
