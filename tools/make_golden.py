"""Write tests/golden/order_v1/*.json from the plain-int twins in tests/naive.py. A change there is a new ORDER_VERSION."""

import json
from pathlib import Path

from tests import naive

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
STAGES = (
    ([[0, {"a": 3, "b": 2}]], {"a": 20, "b": 11}, "drop"),
    ([[0, {"a": 3, "b": 2}], [13, {"b": 1, "c": 4}], [30, {"a": 1}]], {"b": 9}, "drop"),
    ([[0, {"a": 5, "b": 1, "c": 1}]], {"c": 3}, "stop"),
)


def keys() -> list:
    """[seed, purpose, name, base key, counted keys of 0, 1, 10**12]."""
    rows = []
    for seed in SEEDS:
        for purpose, name in (("step", ""), ("sequence", "web"), ("offset", "wéb ☃")):
            base = naive.base_key(seed, purpose, name)
            rows.append([seed, purpose, name, base, [naive.counted_key(base, c) for c in (0, 1, 10**12)]])
    return rows


def permutations() -> list:
    """[n, key, indices, images]."""
    rows = []
    for n in SIZES:
        for key in (0, 1, 2**64 - 1, naive.base_key(7, "step")):
            indices = sorted({*range(min(n, 8)), n // 2, n - 1})
            rows.append([n, key, indices, [naive.permute(i, n, key) for i in indices]])
    return rows


def interleaves() -> list:
    """[weights, shares, sources of the first 200 slots as one string]."""
    rows = []
    for weights in WEIGHTS:
        shares = naive.integer_shares(weights)
        slots = naive.interleave(shares)[:200] if sum(shares.values()) < 10_000 else []
        rows.append([weights, shares, " ".join(slots)])
    return rows


def streams() -> list:
    """[stages, limits, on_exhausted, stream]."""
    return [[*case, naive.stream(*case, 60)] for case in STAGES]


def windows() -> list:
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
                [[k, naive.window_start(seed, name, num_tokens, length, k)] for k in numbers],
            ]
        )
    return rows


def main() -> None:
    """Write every file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for make in (keys, permutations, interleaves, streams, windows):
        lines = ",\n".join(json.dumps(row) for row in make())
        (FOLDER / f"{make.__name__}.json").write_text(f"[\n{lines}\n]\n")
        print(f"wrote {FOLDER / make.__name__}.json")


if __name__ == "__main__":
    main()
