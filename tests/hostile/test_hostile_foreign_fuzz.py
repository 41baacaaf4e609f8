"""Foreign files that are damaged at random: either a valid store, or an error of ours that says what is wrong."""

import contextlib
import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.foreign.adopting import adopt
from tests.support.foreign.files import datatrove, dolma, llmc, megatron
from tokenstore.errors import TokenStoreError

NUMBERS = [0, 1, -1, 13, 255, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip bits, overwrite an integer, cut, or insert."""
    found = bytearray(data)
    way = rng.randrange(4)
    if way == 0:
        for _ in range(rng.choice([1, 2, 8])):
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    elif way == 1:
        at = rng.randrange(max(len(found) - 8, 1))
        found[at : at + 8] = (rng.choice(NUMBERS) % 2**64).to_bytes(8, "little")
    elif way == 2:
        del found[rng.randrange(len(found)) :]
    else:
        at = rng.randrange(len(found))
        found[at:at] = rng.randbytes(rng.choice([1, 2, 8, 100]))
    return bytes(found)


def damage_rows(path: Path, rng: random.Random) -> None:
    """Damage the text of the rows, or the compressed bytes."""
    rows = path.with_suffix(".csv.gz")
    if rng.random() < 0.7:
        rows.write_bytes(gzip.compress(damaged(gzip.decompress(rows.read_bytes()), rng)))
    else:
        rows.write_bytes(damaged(rows.read_bytes(), rng))


def damage_file(ending: str) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, rng: random.Random) -> None:
        file = path.with_name(path.name.removesuffix(path.suffix) + ending)
        file.write_bytes(damaged(file.read_bytes(), rng))

    return damage


WAYS = {
    "megatron": (lambda folder: megatron(folder / "x", cut=2), damage_file(".idx")),
    "megatron modes": (lambda folder: megatron(folder / "x", modes=[0] * 4), damage_file(".idx")),
    "datatrove": (lambda folder: datatrove(folder / "x.ds"), damage_file(".ds.index")),
    "datatrove metadata": (lambda folder: datatrove(folder / "x.ds"), damage_file(".ds.metadata")),
    "dolma": (lambda folder: dolma(folder / "x.npy"), damage_rows),
    "llmc": (lambda folder: llmc(folder / "x.bin"), damage_file(".bin")),
}


def damage_at_random(name: str, folder: Path, count: int) -> None:
    write, damage = WAYS[name]
    rng = random.Random(name)
    accepted = 0
    for number in range(count):
        path = write(folder)
        damage(path, rng)
        with contextlib.suppress(TokenStoreError):
            adopt(folder / f"s{number}", path, format=name.split()[0])
            accepted += 1
    assert accepted < count


@pytest.mark.parametrize("name", WAYS)
def test_damage_is_refused_or_harmless(name: str, tmp_path: Path) -> None:
    """No other exception, no crash; an accepted store verifies."""
    damage_at_random(name, tmp_path, 25)


@pytest.mark.deep
@pytest.mark.parametrize("name", WAYS)
def test_much_damage_is_refused_or_harmless(name: str, tmp_path: Path) -> None:
    """The same, more often."""
    damage_at_random(name, tmp_path, 2000)
