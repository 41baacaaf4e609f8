"""P6: the order is frozen. Production and the plain-int twins both reproduce the golden vectors of ORDER_VERSION 1."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import naive
from tests.calls import key_of, permute, unpermute, window_start
from tokenstore.order import ORDER_VERSION
from tokenstore.order.interleave import interleave
from tokenstore.order.keys import base_key
from tokenstore.order.schedule import Stage, lay_out
from tokenstore.order.weights import integer_shares

FOLDER = Path(__file__).parent / f"order_v{ORDER_VERSION}"


def vectors(name: str) -> list:
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("row", vectors("keys"), ids=str)
def test_keys(row: list) -> None:
    """Base and counted keys are those written down (ORD-1)."""
    seed, purpose, name, base, counted = row
    assert naive.base_key(seed, purpose, name) == int(base_key(seed, purpose, name)) == base
    assert [key_of(base, c) for c in (0, 1, 10**12)] == counted
    assert [naive.counted_key(base, c) for c in (0, 1, 10**12)] == counted


@pytest.mark.parametrize("row", vectors("permutations"), ids=lambda row: f"{row[0]}-{row[1]}")
def test_permutations(row: list) -> None:
    """The permutation is the one written down, and its inverse leads back (ORD-2)."""
    n, key, indices, images = row
    assert permute(indices, n, key) == images
    assert unpermute(images, n, key) == indices
    assert [naive.permute(i, n, key) for i in indices] == images


@pytest.mark.parametrize("row", vectors("interleaves"), ids=lambda row: ",".join(row[0])[:30])
def test_interleaves(row: list) -> None:
    """Shares and the first slots are those written down (ORD-3, ORD-4)."""
    weights, shares, slots = row
    assert integer_shares(weights) == shares == naive.integer_shares(weights)
    names = sorted(shares)
    table = interleave(tuple(shares[name] for name in names))
    if slots:
        assert " ".join(names[s] for s in table.source[:200]) == slots
    assert np.bincount(table.source).tolist() == [shares[name] for name in names]


@pytest.mark.parametrize("row", vectors("streams"), ids=lambda row: row[2])
def test_streams(row: list) -> None:
    """Stages, drops and stops give the sequence of (source, number) written down (ORD-5)."""
    stages, limits, on_exhausted, expected = row
    assert [list(x) for x in naive.stream(stages, limits, on_exhausted, 60)] == expected
    laid = lay_out([Stage(cursor, 1, shares) for cursor, shares in stages], limits, on_exhausted, 60)
    assert laid.end == len(expected)
    assert [list(laid.segments_in(n, n + 1)[0].at(n)) for n in range(laid.end)] == expected


@pytest.mark.parametrize("row", vectors("windows"), ids=lambda row: row[1])
def test_windows(row: list) -> None:
    """Windows of `concat` begin where it is written down (ORD-7)."""
    seed, name, num_tokens, length, starts = row
    for k, start in starts:
        assert window_start(seed, name, num_tokens, length, k) == start
        assert naive.window_start(seed, name, num_tokens, length, k) == start


def test_worked_examples_of_the_specification() -> None:
    """The examples in the order's docstring are true."""
    assert naive.interleave({"a": 3, "b": 2}) == list("ababa")
    assert naive.interleave({"a": 1, "b": 1, "c": 2}) == list("cabc")
    assert [[(8 + 3 * w + j) % 10 for j in range(3)] for w in range(3)] == [[8, 9, 0], [1, 2, 3], [4, 5, 6]]
