"""Write tests/golden/order_v1/*.json from the twins in tests/support/twins.

The twins use plain Python integers. If the files change, the order has a new ORDER_VERSION.
"""

import json
from pathlib import Path
from typing import Any

from tests.support.twins import lanes as lanes_twin
from tests.support.twins import node_groups as groups_twin
from tests.support.twins import order as order_twin
from tests.support.twins import packing as packing_twin

_Case = tuple[list[Any], dict[str, int], str]  # stages, limits, on_exhausted

FOLDER = Path(__file__).parent.parent / "tests" / "golden" / "order_v1"
SEEDS = (0, 1, -5, 2**63, 10**30)
SIZES = (1, 2, 5, 64, 1000, 65535, 65536, 65537, 10**9, 2**40 + 1, 2**61 - 1)
WEIGHTS = (
    {"a": "1"},
    {"a": "0.6", "b": "0.4"},
    {"web": "0.3", "code": "0.7", "books": "0.05"},
    {"a": "1", "b": "1", "c": "2"},
    {f"s{i:02d}": str(i + 1) for i in range(20)},
    {"big": "0.999999", "small": "0.000001"},
    {"x": "0.123456789", "y": "0.876543211", "z": "0.000000000001"},
)
STAGES: tuple[_Case, ...] = (
    ([[0, {"a": 3, "b": 2}]], {"a": 20, "b": 11}, "drop"),
    ([[0, {"a": 3, "b": 2}], [13, {"b": 1, "c": 4}], [30, {"a": 1}]], {"b": 9}, "drop"),
    ([[0, {"a": 5, "b": 1, "c": 1}]], {"c": 3}, "stop"),
)
CONTINUED: tuple[_Case, ...] = (
    ([[0, {"a": 3, "b": 2}], [7, None], [18, None]], {}, "stop"),
    ([[0, {"a": 3, "b": 2}], [4, None], [13, {"b": 1, "c": 4}], [22, None], [30, {"a": 1, "c": 1}]], {"b": 9}, "drop"),
    ([[0, {"a": 5, "b": 1, "c": 1}], [11, None]], {"c": 3}, "stop"),
)
REPEATS = ((1, 1), (1, 2), (2, 3), (7, 5), (3, 1), (1, 7), (12_345, 10_000))
MANY = {v: 100_000 // v for v in range(1, 65)}  # bins of 64 tokens: from 100,000 pieces on, N has less slack
SPREAD = {
    1: 70,
    2: 31,
    3: 23,
    5: 18,
    7: 16,
    8: 15,
    11: 9,
    13: 8,
    16: 7,
    17: 7,
    21: 5,
    24: 4,
    31: 3,
    33: 3,
    40: 2,
    64: 12,
}
HARDEST = {26: 2, 27: 2, 29: 4, 30: 1, 31: 3, 32: 2, 33: 5, 34: 4, 36: 4, 37: 3, 38: 3, 39: 3, 40: 5, 42: 3, 43: 2}
HARDEST |= {44: 6, 45: 2, 46: 2, 47: 1, 48: 2, 50: 1}
PACKINGS = (  # length, counts, seed, name, epoch, shuffle; the first seven end on attempts 0..6
    (64, {2: 1}, 1, "a", 0, True),
    (64, {13: 1, 16: 1, 19: 1, 27: 2, 38: 1, 40: 1, 50: 1, 56: 1, 62: 1}, 1, "a", 0, True),
    (31, {8: 1, 9: 1, 11: 1, 12: 1, 15: 1}, 1, "a", 1, True),
    (10, {4: 1, 5: 2, 6: 1}, 1, "a", 0, True),
    (64, {15: 1, 31: 1, 33: 1, 35: 1}, 1, "a", 0, True),
    (10, {3: 2, 4: 1, 5: 2}, 1, "a", 0, True),
    (100, HARDEST, 1, "a", 1, True),
    (1, {1: 9}, 0, "a", 0, True),
    (64, {5: 1}, 0, "a", 0, True),
    (64, {64: 7, 5: 1}, 0, "a", 3, True),
    (64, SPREAD, 0, "web", 0, True),
    (64, SPREAD, 0, "web", 10**9, True),
    (64, SPREAD, 10**30, "wéb ☃", 1, True),
    (64, SPREAD, 0, "web", 0, False),
    (4096, {300 * n + 7: 3 * n for n in range(1, 14)}, 0, "web", 0, True),  # sub-entries of several slots
    (20_000, {137 * n: 1 + n % 2 for n in range(1, 146)}, 0, "web", 0, True),
)
SLICES = (  # first, count, i, n, p, q
    (0, 10, 0, 1, 1, 1),
    (1, 8, 1, 2, 2, 3),
    (0, 1000, 3, 16, 1, 1),
    (7, 1000, 0, 1, 1, 16),
    (5, 333, 2, 3, 7, 9),
    (3, 2, 5, 8, 1, 1),
)
RAMPS = ((8, 24, 8, 4), (24, 8, 8, 4), (64, 1024, 37, 64), (1, 9, 100, 1), (96, 32, 1, 16), (6, 600, 11, 3))
HUGE_SLICES = ((12_345, 10**12, 3, 7, 999_983, 1_000_000), (0, 2**40, 0, 1, 1, 16), (9, 10**11, 99_999, 100_000, 2, 3))
POOL = (((5, 1, 9, 9, 30, 2, 5, 64, 3), 1, 1), ((16, 40, 3, 3, 7), 2, 3), ((8, 1, 21), 5, 2), ((12,), 1, 3))
ONE = (((*(3 + 97 * n % 50 for n in range(60)), 1000), 1, 1),)
PACKED = (  # members, length, seed, name, packing, shuffle
    (POOL, 16, 5, "pool", "best_fit", True),
    (POOL, 16, 5, "pool", "none", True),
    (POOL, 7, -1, "wéb ☃", "best_fit", True),
    (POOL, 16, 5, "pool", "best_fit", False),
    (ONE, 64, 0, "web", "best_fit", True),
    (ONE, 1, 0, "web", "best_fit", True),
)

ALIGNED = (  # members, length, align, seed, name, packing, shuffle
    (POOL, 16, 4, 5, "pool", "best_fit", True),
    (POOL, 16, 16, 5, "pool", "best_fit", True),
    (POOL, 16, 8, 5, "pool", "none", True),
    (POOL, 16, 2, 5, "pool", "best_fit", False),
    (ONE, 64, 8, 0, "web", "best_fit", True),
    ((((5, 13, 20), 1, 1),), 16, 8, 0, "web", "best_fit", True),  # the worked example
)
BALANCED = (  # costs, first place, ranks, rows per microbatch
    ((5, 9, 1, 7, 9, 3, 3, 8), 0, 2, 2),  # the worked example
    ((5, 9, 1, 7, 9, 3, 3, 8), 4, 2, 2),
    ((5, 9, 1, 7, 9, 3, 3, 8), 2, 3, 2),  # a run that continues inside the step with other ranks
    ((4,) * 12, 0, 3, 4),
    (tuple(97 * n * n % 1009 for n in range(24)), 12, 4, 3),
    (tuple((2**41 + 7 * n % 5) for n in range(10)), 5, 1, 5),
)
LANES = (  # seed, name, sequences per epoch, sequences per block, lanes, epoch
    (0, "web", 10, 3, 3, 0),  # the worked example
    (0, "web", 1, 1, 1, 0),
    (0, "web", 7, 9, 4, 3),
    (5, "wéb ☃", 41, 4, 8, 2),
    (-1, "a", 37, 6, 100, 10**9),
    (10**30, "web", 36, 1, 5, 1),
    (2, "web", 100_003, 1, 1024, 0),
    (2, "web", 200_000, 70_000, 2, 0),
    (2, "web", 488_281_250, 1024, 4096, 7),
    (2, "web", 2**40 + 1, 333, 2**24, 0),
)
_Groups = tuple[list[Any], dict[str, tuple[int, int, int]], int]
# (source, k) of each row, source None for one without pieces; N, s and W of each source with lanes; number of groups
NODE_GROUPS: tuple[_Groups, ...] = (
    ([("a", 5), ("a", 0), ("a", 7), ("a", 2)], {"a": (8, 1, 4)}, 2),  # the worked examples
    ([("a", 0), ("a", 4), ("a", 7), ("a", 2)], {"a": (8, 1, 4)}, 2),
    ([("a", 41 * n % 24 + 10**12) for n in range(24)], {"a": (10**6 + 3, 10, 24)}, 8),
    ([("a", 41 * n % 24 + 99_990) for n in range(24)], {"a": (100_000, 3, 24)}, 6),  # the border of an epoch
    ([("ab"[n % 3 > 0], 7 * n % 48) for n in range(48)], {"a": (500, 2, 50), "b": (64, 9, 100)}, 12),
    ([(source, 5 * n % 13) for n in range(12) for source in "abcd"], {"a": (900, 5, 7), "c": (77, 1, 31)}, 4),
    ([(None, 0)] * 5 + [("b", n) for n in range(9)] + [("a", n) for n in range(2)], {"b": (9, 1, 9)}, 4),
    ([("a", 3 * n) for n in range(16)], {"a": (1000, 1, 3)}, 16),  # fewer lanes than groups
    ([("web", 2**61 - n) for n in range(12)], {"web": (2**40 + 1, 333, 2**24)}, 3),
)


def keys() -> list[Any]:
    """[seed, purpose, name, base key, counted keys of 0, 1, 10**12]."""
    rows = []
    for seed in SEEDS:
        for purpose, name in (("step", ""), ("sequence", "web"), ("offset", "wéb ☃")):
            base = order_twin.base_key(seed, purpose, name)
            rows.append([seed, purpose, name, base, [order_twin.counted_key(base, c) for c in (0, 1, 10**12)]])
    return rows


def permutations() -> list[Any]:
    """[n, key, indices, images]."""
    rows = []
    for n in SIZES:
        for key in (0, 1, 2**64 - 1, order_twin.base_key(7, "step")):
            indices = sorted({*range(min(n, 8)), n // 2, n - 1})
            rows.append([n, key, indices, [order_twin.permute(i, n, key) for i in indices]])
    return rows


def interleaves() -> list[Any]:
    """[weights, shares, sources of the first 200 slots as one string]."""
    rows = []
    for weights in WEIGHTS:
        shares = order_twin.integer_shares(weights)
        slots = order_twin.interleave(shares)[:200] if sum(shares.values()) < 10_000 else []
        rows.append([weights, shares, " ".join(slots)])
    return rows


def streams() -> list[Any]:
    """[stages, limits, on_exhausted, stream]."""
    return [[*case, order_twin.stream(*case, 60)] for case in STAGES]


def continued_streams() -> list[Any]:
    """[stages, limits, on_exhausted, stream]; a stage of null continues the segment before it."""
    return [[*case, order_twin.stream(*case, 60)] for case in CONTINUED]


def windows() -> list[Any]:
    """[seed, name, num_tokens, length, [[k, start], ...]]."""
    rows = []
    for seed, name, num_tokens, length in ((0, "web", 10, 3), (5, "code", 10**12, 2048), (1, "a", 65536 * 7, 7)):
        count = num_tokens // length
        numbers = sorted({0, 1, 2, count - 1, count, 3 * count + 1})
        rows.append(
            [
                seed,
                name,
                num_tokens,
                length,
                [[k, order_twin.window_start(seed, name, num_tokens, length, k)] for k in numbers],
            ]
        )
    return rows


def repeats() -> list[Any]:
    """[p, q, documents, [[epoch, position of each copy, null if it is empty], ...]]."""
    rows = []
    for p, q in REPEATS:
        for count in (1, 5, 12):
            ranks = range(-(-count * p // q))
            epochs = (0, 1, 2, q - 1, q, 10**12)
            positions = [[e, [packing_twin.position(k, e, count, p, q) for k in ranks]] for e in epochs]
            rows.append([p, q, count, positions])
    return rows


def slices() -> list[Any]:
    """[first, count, i, n, p, q, [position of each document of the slice]]."""
    rows = []
    for first, count, i, n, p, q in SLICES:
        lengths = (1,) * first + (2,) * count + (3,) * 4
        rows.append([first, count, i, n, p, q, packing_twin.slice_of(lengths, 2, 2, i, n, p, q)])
    return rows


def ramps() -> list[Any]:
    """[from, to, steps, multiple, [sequences of each step of the ramp]]."""
    return [[*case, order_twin.ramp(*case)] for case in RAMPS]


def huge_slices() -> list[Any]:
    """[first, count, i, n, p, q, number of documents, [[y, position], ...]], by the formulas of ORD-16."""
    rows = []
    for case in HUGE_SLICES:
        number = packing_twin.slice_size(*case[1:])
        some = sorted({0, 1, number // 3, number - 1})
        rows.append([*case, number, [[y, packing_twin.slice_position(y, *case)] for y in some]])
    return rows


def sequence_numbers() -> list[Any]:
    """[length, [[class, slots], ...], number of sequences of best_fit]."""
    cases = [(length, counts) for length, counts, *_ in PACKINGS] + [(64, MANY), (63, {21: 1000}), (64, {33: 500})]
    return [
        [length, sorted(counts.items()), packing_twin.num_sequences(counts, length, "best_fit")]
        for length, counts in cases
    ]


def packings() -> list[Any]:
    """[length, [[class, slots], ...], seed, name, epoch, shuffle, attempt, [[[class, slot], ...] of each bin]]."""
    rows = []
    for length, counts, seed, name, epoch, shuffle in PACKINGS:
        n = packing_twin.num_sequences(counts, length, "best_fit")
        bins, attempt = packing_twin.pack(counts, length, n, seed, name, epoch, shuffle)
        rows.append([length, sorted(counts.items()), seed, name, epoch, shuffle, attempt, bins])
    return rows


def packed() -> list[Any]:
    """[members, length, seed, name, packing, shuffle, [[k, [[member, document, start, stop], ...]], ...]]."""
    rows = []
    for case in PACKED:
        members, length, seed, name, packing, shuffle = case
        count = packing_twin.classes_of(members, length, packing)[2]
        ks = [*range(min(2 * count, 12)), count - 1, count, 10**9 * count + 1]
        pieces = [packing_twin.packed_sequence(members, length, seed, name, k, packing, shuffle) for k in ks]
        rows.append([*case, [list(each) for each in zip(ks, pieces, strict=True)]])
    return rows


def aligned() -> list[Any]:
    """[members, length, align, seed, name, packing, shuffle, sequences, [[k, pieces, rooms], ...]]; pieces as in `packed`."""
    rows = []
    for case in ALIGNED:
        members, length, align, seed, name, packing, shuffle = case
        count = packing_twin.classes_of(members, length, packing, align)[2]
        found = []
        for k in [*range(min(2 * count, 8)), count - 1, 10**9 * count + 1]:
            arguments = (members, length, seed, name, k, packing, shuffle, align)
            found.append([k, packing_twin.packed_sequence(*arguments), packing_twin.rooms(*arguments)])
        rows.append([*case, count, found])
    return rows


def balanced() -> list[Any]:
    """[costs, first place of a microbatch, ranks, rows per microbatch, rows of each rank]."""
    return [
        [*case, [order_twin.dealt_rows(*case[:2], rank, *case[2:]) for rank in range(case[2])]] for case in BALANCED
    ]


def lanes() -> list[Any]:
    """[seed, name, windows, block, lanes, epoch, numbers, their windows, their lanes]."""
    rows = []
    for case in LANES:
        seed, name, count, block, width, epoch = case
        numbers = list(range(count)) if count <= 100 else [0, 1, width, count // 3, count - width, count - 1]
        found = [lanes_twin.window(seed, name, count, block, width, epoch, i) for i in numbers]
        rows.append([*case, numbers, found, [lanes_twin.owner(i, count, block, width) for i in numbers]])
    return rows


def node_groups() -> list[Any]:
    """[[[source, k] of each row, ...], {source: [N, s, W]}, groups, rows of each group, owner of each row]."""
    out = []
    for rows, shapes, groups in NODE_GROUPS:
        owners = [groups_twin.owner_of(row, shapes, groups) for row in rows]
        out.append([rows, shapes, groups, groups_twin.deal(rows, shapes, groups), owners])
    return out


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    of_order = (keys, permutations, interleaves, streams, continued_streams, windows, ramps)
    of_packing = (repeats, sequence_numbers, packings, packed, slices, huge_slices, aligned)
    for make in (*of_order, *of_packing, balanced, lanes, node_groups):
        lines = ",\n".join(json.dumps(row) for row in make())
        (FOLDER / f"{make.__name__}.json").write_text(f"[\n{lines}\n]\n")
        print(f"wrote {FOLDER / make.__name__}.json")


if __name__ == "__main__":
    main()
