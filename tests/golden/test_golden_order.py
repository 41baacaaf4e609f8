"""P6, ORD-0: the order is frozen. The package and the plain-Python twins reproduce the golden vectors of ORDER_VERSION 1."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.calls import (
    bins,
    key_of,
    member,
    packed_sequences,
    permute,
    positions_of,
    slice_positions,
    unpermute,
    window_start,
)
from tests.support.twins import lanes as lanes_twin
from tests.support.twins import node_groups as groups_twin
from tests.support.twins import order as order_twin
from tests.support.twins import packing as packing_twin
from tokenstore.order import ORDER_VERSION
from tokenstore.order.balance import by_cost, dealt_places, rank_of_place
from tokenstore.order.classes import LengthClasses, length_classes
from tokenstore.order.interleave import interleave
from tokenstore.order.keys import base_key
from tokenstore.order.lanes import Lanes, lane_numbers, lane_windows, owner_lanes
from tokenstore.order.node_groups import NO_OWNER, NodeGroups
from tokenstore.order.packing import num_best_fit, pack
from tokenstore.order.ramps import ramp_sizes
from tokenstore.order.schedule import Stage, lay_out
from tokenstore.order.slices import Slice
from tokenstore.order.weights import integer_shares

FOLDER = Path(__file__).parent / f"order_v{ORDER_VERSION}"


def vectors(name: str) -> list:
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("row", vectors("keys"), ids=str)
def test_keys(row: list) -> None:
    """Base and counted keys equal the vectors (ORD-1)."""
    seed, purpose, name, base, counted = row
    assert order_twin.base_key(seed, purpose, name) == int(base_key(seed, purpose, name)) == base
    assert [key_of(base, c) for c in (0, 1, 10**12)] == counted
    assert [order_twin.counted_key(base, c) for c in (0, 1, 10**12)] == counted


@pytest.mark.parametrize("row", vectors("permutations"), ids=lambda row: f"{row[0]}-{row[1]}")
def test_permutations(row: list) -> None:
    """The permutation equals the vectors, and its inverse inverts it (ORD-2)."""
    n, key, indices, images = row
    assert permute(indices, n, key) == images
    assert unpermute(images, n, key) == indices
    assert [order_twin.permute(i, n, key) for i in indices] == images


@pytest.mark.parametrize("row", vectors("interleaves"), ids=lambda row: ",".join(row[0])[:30])
def test_interleaves(row: list) -> None:
    """Shares and the first slots equal the vectors (ORD-3, ORD-4)."""
    weights, shares, slots = row
    assert integer_shares(weights) == shares == order_twin.integer_shares(weights)
    names = sorted(shares)
    table = interleave(tuple(shares[name] for name in names))
    if slots:
        assert " ".join(names[s] for s in table.source[:200]) == slots
    assert np.bincount(table.source).tolist() == [shares[name] for name in names]


@pytest.mark.parametrize("row", vectors("streams"), ids=lambda row: row[2])
def test_streams(row: list) -> None:
    """Stages, drops and stops give the (source, number) pairs of the vectors (ORD-5)."""
    stages, limits, on_exhausted, expected = row
    assert [list(x) for x in order_twin.stream(stages, limits, on_exhausted, 60)] == expected
    laid = lay_out([Stage(cursor, 1, shares) for cursor, shares in stages], limits, on_exhausted, 60)
    assert laid.end == len(expected)
    assert [list(laid.segments_in(n, n + 1)[0].at(n)) for n in range(laid.end)] == expected


@pytest.mark.parametrize("row", vectors("continued_streams"), ids=lambda row: f"{len(row[0])}-{row[2]}")
def test_continued_streams(row: list) -> None:
    """A stage without shares of its own continues the segment, as in the vectors (ORD-5)."""
    stages, limits, on_exhausted, expected = row
    assert [list(x) for x in order_twin.stream(stages, limits, on_exhausted, 60)] == expected
    laid_out = []
    for cursor, shares in stages:
        laid_out.append(Stage(cursor, 1, shares or laid_out[-1].shares, continues=shares is None))
    laid = lay_out(laid_out, limits, on_exhausted, 60)
    assert laid.end == len(expected)
    assert [list(laid.segments_in(n, n + 1)[0].at(n)) for n in range(laid.end)] == expected


@pytest.mark.parametrize("row", vectors("windows"), ids=lambda row: row[1])
def test_windows(row: list) -> None:
    """Windows of `concat` begin at the positions in the vectors (ORD-7)."""
    seed, name, num_tokens, length, starts = row
    for k, start in starts:
        assert window_start(seed, name, num_tokens, length, k) == start
        assert order_twin.window_start(seed, name, num_tokens, length, k) == start


@pytest.mark.parametrize("row", vectors("repeats"), ids=lambda row: f"{row[0]}/{row[1]}-{row[2]}")
def test_repeats(row: list) -> None:
    """Every epoch has the documents of the vectors at its ranks (ORD-12)."""
    p, q, count, epochs = row
    for epoch, expected in epochs:
        found = positions_of(range(len(expected)), epoch, p, q)
        assert [x if x < count else None for x in found] == expected
        assert [packing_twin.position(k, epoch, count, p, q) for k in range(len(expected))] == expected


@pytest.mark.parametrize("row", vectors("ramps"), ids=lambda row: "-".join(map(str, row[:4])))
def test_ramps(row: list) -> None:
    """The sizes of a batch ramp equal the vectors, and the last one is the target (ORD-17)."""
    first, last, steps, multiple, expected = row
    changes = dict(ramp_sizes(first, last, steps, multiple))
    assert order_twin.ramp(first, last, steps, multiple) == expected
    sizes = [changes[max(step for step in changes if step <= k)] for k in range(steps + 2)]
    assert sizes == [*expected, last, last]


@pytest.mark.parametrize("row", vectors("slices"), ids=lambda row: "-".join(map(str, row[:6])))
def test_slices(row: list) -> None:
    """A slice has the documents of the vectors, and counts those before each position (ORD-16)."""
    *numbers, expected = row
    chosen = Slice(*numbers)
    assert chosen.num_documents == len(expected) == packing_twin.slice_size(*numbers[1:])
    assert chosen.positions(range(len(expected))).tolist() == expected
    assert slice_positions(range(len(expected)), chosen) == expected
    last = chosen.first + chosen.count + 4
    assert chosen.before(range(last)).tolist() == [sum(x < position for x in expected) for position in range(last)]
    assert [x for x in range(last) if chosen.number_of(x) is not None] == expected


@pytest.mark.parametrize("row", vectors("huge_slices"), ids=lambda row: "-".join(map(str, row[:6])))
def test_huge_slices(row: list) -> None:
    """Slices of up to 10**12 documents equal the vectors, in the kernel too (ORD-16)."""
    *numbers, size, places = row
    chosen = Slice(*numbers)
    assert chosen.num_documents == size == packing_twin.slice_size(*numbers[1:])
    for y, position in places:
        assert packing_twin.slice_position(y, *numbers) == position
        assert chosen.positions(y) == slice_positions([y], chosen)[0] == position
        assert chosen.number_of(position) == y


def classes_of(counts: list, length: int) -> LengthClasses:
    documents = np.repeat([v for v, _ in counts], [h for _, h in counts])
    return length_classes([member(documents)], length)


@pytest.mark.parametrize("row", vectors("sequence_numbers"), ids=lambda row: f"{row[0]}-{len(row[1])}-{row[2]}")
def test_sequence_numbers(row: list) -> None:
    """The number of sequences of an epoch of best_fit equals the vectors (ORD-14)."""
    length, counts, expected = row
    assert num_best_fit(classes_of(counts, length)) == expected
    assert packing_twin.num_sequences(dict(counts), length, "best_fit") == expected


@pytest.mark.parametrize("row", vectors("packings"), ids=lambda row: f"{row[0]}-{len(row[1])}-{row[4]}-{row[6]}")
def test_packings(row: list) -> None:
    """Every attempt, with and without shuffle: each bin has the slots of the vectors, in that order (ORD-14,
    ORD-15).
    """
    length, counts, seed, name, epoch, shuffle, attempt, expected = row
    expected = [[tuple(slot) for slot in content] for content in expected]
    classes = classes_of(counts, length)
    made = pack(classes, len(expected), base_key(seed, "jitter", name), epoch, shuffle)
    assert made.attempt == attempt
    assert bins(made, classes) == expected
    assert packing_twin.pack(dict(counts), length, len(expected), seed, name, epoch, shuffle) == (expected, attempt)


def test_packings_cover_every_attempt() -> None:
    """The first seven vectors use one attempt each."""
    assert [row[6] for row in vectors("packings")[:7]] == list(range(7))


@pytest.mark.parametrize("row", vectors("packed"), ids=lambda row: f"{row[3]}-{row[1]}-{row[4]}-{row[5]}")
def test_packed(row: list) -> None:
    """Sequences of packed sources contain the pieces of the vectors, in that order (ORD-12 to ORD-15)."""
    members, length, seed, name, packing, shuffle, sequences = row
    ks = [k for k, _ in sequences]
    expected = [[tuple(piece) for piece in pieces] for _, pieces in sequences]
    assert packed_sequences(members, length, seed, name, ks, packing, shuffle) == expected
    found = [packing_twin.packed_sequence(members, length, seed, name, k, packing, shuffle) for k in ks]
    assert found == expected


@pytest.mark.parametrize("row", vectors("aligned"), ids=lambda row: f"{row[4]}-{row[1]}-{row[2]}-{row[5]}-{row[6]}")
def test_aligned(row: list) -> None:
    """With alignment, sequences contain the pieces of the vectors; the rooms, which decide costs, fit their rows (ORD-18)."""
    members, length, align, seed, name, packing, shuffle, count, sequences = row
    ks, pieces = [k for k, *_ in sequences], [[tuple(piece) for piece in pieces] for _, pieces, _ in sequences]
    assert packed_sequences(members, length, seed, name, ks, packing, shuffle, align) == pieces
    for k, expected, rooms in sequences:
        arguments = (members, length, seed, name, k, packing, shuffle, align)
        assert [list(piece) for piece in packing_twin.packed_sequence(*arguments)] == expected
        assert packing_twin.rooms(*arguments) == rooms
        assert sum(rooms) <= length
        assert not any(room % align for room in rooms)
    frozen = tuple((tuple(lengths), p, q) for lengths, p, q in members)
    assert packing_twin.classes_of(frozen, length, packing, align)[2] == count
    classes = length_classes([member(*each) for each in members], length, align)
    assert (num_best_fit(classes) if packing == "best_fit" else classes.num_pieces) == count


@pytest.mark.parametrize("row", vectors("balanced"), ids=lambda row: f"{len(row[0])}-{row[1]}-{row[2]}-{row[3]}")
def test_balanced(row: list) -> None:
    """Rows are dealt by cost to the ranks of the vectors (ORD-19)."""
    costs, start, world, size, expected = row
    numbers = by_cost(np.array(costs))
    assert [numbers[dealt_places(start, rank, world, size)].tolist() for rank in range(world)] == expected
    assert [order_twin.dealt_rows(costs, start, rank, world, size) for rank in range(world)] == expected
    if start % (world * size) == 0:
        places = {row: place for place, row in enumerate(numbers.tolist())}
        owners = [[rank_of_place(places[row], world, size) for row in rows] for rows in expected]
        assert owners == [[rank] * size for rank in range(world)]


@pytest.mark.parametrize("row", vectors("lanes"), ids=lambda row: "-".join(map(str, row[2:6])))
def test_lanes(row: list) -> None:
    """Windows and lanes of numbers equal the vectors, and the inverse inverts them (ORD-20)."""
    seed, name, count, block, width, epoch, numbers, found, owners = row
    lanes, bases = Lanes.of(count, block, width), [base_key(seed, purpose, name) for purpose in ("block", "place")]
    assert lane_windows(lanes, np.array(numbers), epoch, *bases).tolist() == found
    assert lane_numbers(lanes, np.array(found), epoch, *bases).tolist() == numbers
    assert owner_lanes(lanes, np.array(numbers)).tolist() == owners
    assert [lanes_twin.window(seed, name, count, block, width, epoch, i) for i in numbers] == found
    assert [lanes_twin.owner(i, count, block, width) for i in numbers] == owners
    if count <= 100:
        assert lanes_twin.windows(seed, name, count, block, width, epoch) == found


@pytest.mark.parametrize("row", vectors("node_groups"), ids=lambda row: f"{len(row[0])}-{','.join(row[1])}-{row[2]}")
def test_node_groups(row: list) -> None:
    """Every group gets the rows of the vectors (ORD-21)."""
    rows, shapes, groups, dealt, owners = row
    names = sorted({source for source, _ in rows if source} | set(shapes))
    lanes = NodeGroups([Lanes.of(*shapes[name]) if name in shapes else None for name in names], groups)
    located = np.array([(-1 if source is None else names.index(source), k) for source, k in rows], np.int64)
    assert lanes.deal(located).tolist() == dealt == groups_twin.deal(rows, shapes, groups)
    assert [None if g == NO_OWNER else g for g in lanes.owners(located).tolist()] == owners


def test_worked_examples_of_the_specification() -> None:
    """The examples in the docstring of the order are correct (ORD-4, ORD-7, ORD-12, ORD-14, ORD-17, ORD-18, ORD-20,
    ORD-21).
    """
    example = (((5, 13, 20), 1, 1),)
    assert packing_twin.slots(example, 16, 8) == {8: [(0, 0, 0), (0, 2, 1)], 16: [(0, 1, 0), (0, 2, 0)]}
    assert packing_twin.classes_of(example, 16, "best_fit", 8)[2] == 3
    assert packing_twin.places_in_row([5, 4], 16, 8) == [(0, 8), (8, 16)]
    costs = [5, 9, 1, 7, 9, 3, 3, 8]
    assert order_twin.rows_by_cost(costs) == [1, 4, 7, 3, 0, 5, 6, 2]
    assert [order_twin.balanced_rows(costs, rank, 2, 2) for rank in (0, 1)] == [[1, 3, 5, 6], [4, 7, 0, 2]]
    assert lanes_twin.line(0, "web", 10, 3, 0) == [8, 6, 7, 1, 0, 2, 9, 4, 5, 3]
    assert lanes_twin.windows(0, "web", 10, 3, 3, 0) == [8, 0, 4, 6, 2, 5, 7, 9, 3, 1]
    assert [lanes_twin.owner(i, 10, 3, 3) for i in range(10)] == [0, 1, 2] * 3 + [0]
    assert [lanes_twin.owner(i, 100, 1, 8) for i in range(8)] == [0, 5, 2, 7, 4, 1, 6, 3]
    assert groups_twin.deal([("a", i) for i in (5, 0, 7, 2)], {"a": (8, 1, 4)}, 2) == [[1, 2], [3, 0]]
    assert groups_twin.deal([("a", i) for i in (0, 4, 7, 2)], {"a": (8, 1, 4)}, 2) == [[0, 1], [2, 3]]
    assert order_twin.interleave({"a": 3, "b": 2}) == list("ababa")
    assert order_twin.interleave({"a": 1, "b": 1, "c": 2}) == list("cabc")
    assert [[(8 + 3 * w + j) % 10 for j in range(3)] for w in range(3)] == [[8, 9, 0], [1, 2, 3], [4, 5, 6]]
    assert positions_of(range(3), 0, 1, 2) == [1, 3, 5]  # 5 documents: the third rank is empty
    assert positions_of(range(3), 1, 1, 2) == [0, 2, 4]
    example = {10: 1, 6: 2, 4: 3, 3: 1}
    bins_of_example, attempt = packing_twin.pack(example, 10, 4, 0, "web", 0, shuffle=False)
    assert packing_twin.num_sequences(example, 10, "best_fit") == 4
    assert [[length for length, _ in content] for content in bins_of_example] == [[10], [4, 6], [4, 6], [3, 4]]
    assert bins_of_example[1:3] == [[(4, 0), (6, 0)], [(4, 1), (6, 1)]]
    assert attempt == 6
