"""The tables of packings with 4 and with 8 bytes per number: the same content, and the same batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import random_documents
from tests.support.calls import PackedSource, member
from tokenstore import Plan
from tokenstore.errors import ConfigError
from tokenstore.order import classes
from tokenstore.order.classes import length_classes
from tokenstore.order.repeats import Member
from tokenstore.order.words import NARROW, WIDE, packed_words, unpacked_words


@pytest.fixture
def all_wide(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes all tables wide from then on."""
    return lambda: monkeypatch.setattr(classes, "_width", lambda *numbers: WIDE)


@pytest.mark.parametrize(("wide", "most"), [(NARROW, (1 << 32) - 1), (WIDE, (1 << 63) - 1)])
def test_tables_keep_their_numbers(wide: int, most: int) -> None:
    """Up to the greatest number that fits."""
    rows = np.array([[0, 1, most], [most, most - 1, 1 << 31]], np.int64)
    assert np.array_equal(unpacked_words(packed_words(rows, wide), wide), rows)


@pytest.mark.parametrize(
    ("length", "documents", "times", "wide"),
    [
        (2048, [5], (1 << 32) - 1, NARROW),
        (2048, [5], 1 << 32, WIDE),
        (65535, [5], 1, NARROW),
        (65536, [5], 1, WIDE),
        (2, [131071], 1, NARROW),
        (2, [131072], 1, WIDE),
    ],
)
def test_tables_are_wide_if_a_number_needs_it(length: int, documents: list, times: int, wide: int) -> None:
    """The pieces of an epoch, the length of a sequence, and the pieces of a document."""
    assert length_classes([member(documents, times=times)], length).wide == wide


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_wide_tables_give_the_same_rows(all_wide: Callable[[], None], packing: str) -> None:
    """ORD-15: class, slot, member, position and piece of every slot of an epoch."""
    rng = np.random.default_rng(1)
    members = [member(rng.integers(1, 90, 300), 3, 2), member(rng.integers(1, 40, 200))]
    narrow = PackedSource(members, 32, 1, "a", packing, True)
    all_wide()
    wide = PackedSource(members, 32, 1, "a", packing, True)
    assert (narrow.classes.wide, wide.classes.wide) == (NARROW, WIDE)
    assert narrow.num_sequences == wide.num_sequences
    assert np.array_equal(narrow.rows(5), wide.rows(5))


def test_wide_tables_give_the_same_batches(make_store: Callable[..., Path], all_wide: Callable[[], None]) -> None:
    """ORD-13, ORD-19: tokens, and the rows that a balance by cost deals to a rank."""
    path = make_store("a", random_documents(1, 60, 50), length_index=True)

    def batches() -> list[np.ndarray]:
        plan = Plan.of(path, 16, 8, packing="best_fit", balance="attention")
        return [plan.batch(step, 1, 2, 2)["input_ids"] for step in range(20)]

    narrow = batches()
    all_wide()
    assert np.array_equal(narrow, batches())


def test_a_document_of_too_many_pieces_is_refused() -> None:
    """The number of a piece must fit its table."""
    longest = Member(np.array([1 << 43]), np.array([0]), 1)
    with pytest.raises(ValueError, match=r"fewer than 8,796,093,022,208 sequences of 1 tokens .*, found 8,796,093"):
        length_classes([longest], 1)


def test_a_plan_names_the_source_of_such_a_document(
    make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged store can contain such a document."""
    path = make_store("a", random_documents(1, 60, 50), length_index=True)
    monkeypatch.setattr(classes, "_MOST_PIECES", 4)
    with pytest.raises(ConfigError, match=r"source a: documents: expected .* use a longer sequence_length"):
        Plan.of({"a": path}, 8, 8, packing="best_fit")
