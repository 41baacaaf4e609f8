"""Damage stores at random for a given time, and read everything from them.

    NUMBA_BOUNDSCHECK=1 python -m tests.fuzz --minutes 60 --seed 3

Each round flips, overwrites, moves or cuts bytes of some files, or swaps bytes between files, either before the store is opened
or while plans have its files mapped. Reading must then return valid values or raise a TokenStoreError that says what and where.
`verify` must report the change in every version that includes the file (P9). With NUMBA_BOUNDSCHECK=1 kernels also check every
index.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tokenstore
from tests.support.stores.grown import contents, documents_of, grow, write
from tests.support.stores.hostile_stores import check_message
from tokenstore.errors import TokenStoreError
from tokenstore.store import Store, open_store, verify, versions
from tokenstore.views.decoding import Decoder
from tokenstore.views.store_summary import summarize_store
from tokenstore.views.trace import trace_rows

LENGTHS = [1, 3, 40, 8, 8, 17, 64, 2, 9, 30, 5, 8]
NUMBERS = [0, 1, -1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 4096, 255]
PACKINGS = ("best_fit", "concat", "none")


def make_store(folder: Path) -> Path:
    """A store with every optional file, two versions and several shards."""
    path = write(folder / "store", documents_of(1, LENGTHS), shard_bytes=120)
    grow(path, documents_of(2, LENGTHS[::-1]), shard_bytes=120)
    return path


def damage(sound: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """Change a store's files in one to three ways. Returns the changed files; only `_cut` changes a file's size."""
    damaged = dict(sound)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([name for name, data in damaged.items() if data])
        damaged[name] = rng.choice(WAYS)(bytearray(damaged[name]), rng, damaged)
    return {name: data for name, data in damaged.items() if data != sound[name]}


def _flip(data: bytearray, rng: random.Random, _: dict[str, bytes]) -> bytes:
    for _ in range(rng.choice([1, 1, 2, 30])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _number(data: bytearray, rng: random.Random, _: dict[str, bytes]) -> bytes:
    """Overwrite one integer, mostly an aligned one, with a value that code might trust."""
    at = rng.randrange(0, max(len(data) - 7, 1), 8 if rng.random() < 0.8 else 1)
    size = min(8, len(data) - at)
    data[at : at + size] = (rng.choice(NUMBERS) % 2**64).to_bytes(8, "little")[:size]
    return bytes(data)


def _move(data: bytearray, rng: random.Random, _: dict[str, bytes]) -> bytes:
    """Swap two parts of the file."""
    size = rng.randint(1, max(len(data) // 2, 1))
    a, b = rng.randint(0, len(data) - size), rng.randint(0, len(data) - size)
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return bytes(data)


def _fill(data: bytearray, rng: random.Random, _: dict[str, bytes]) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    data[a:b] = rng.choice([b"\0", b"\xff", rng.randbytes(1)]) * (b - a)
    return bytes(data)


def _cut(data: bytearray, rng: random.Random, _: dict[str, bytes]) -> bytes:
    return (
        bytes(data[: rng.randrange(len(data))])
        if rng.random() < 0.7
        else bytes(data) + rng.randbytes(rng.randint(1, 99))
    )


def _other(data: bytearray, rng: random.Random, files: dict[str, bytes]) -> bytes:
    """Replace the content by that of another file, at the same size."""
    other = files[rng.choice(sorted(files))]
    return (other * (len(data) // max(len(other), 1) + 1))[: len(data)] or bytes(data)


WAYS: list[Callable[[bytearray, random.Random, dict[str, bytes]], bytes]] = [
    _flip,
    _number,
    _number,
    _move,
    _fill,
    _cut,
    _other,
]


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Accept a TokenStoreError, if its message says what and where."""
    try:
        yield
    except TokenStoreError as error:
        check_message(error)


def ask_store(store: Store) -> None:
    """Read every document with its mask, origin and id, and summarize the store."""
    for i in range(len(store)):
        for ask in (store.__getitem__, store.loss_mask, store.origin, store.id):
            with reported():
                ask(i)
    with reported():
        summarize_store(store)


def ask_plan(plan: tokenstore.Plan) -> None:
    """Read batches, documents and traces of all steps, and find one document."""
    (store,) = plan.stores.values()
    for step in range(plan.num_steps or 0):
        with reported():
            batch = plan.batch(step)
            assert 0 <= batch["input_ids"].min() <= batch["input_ids"].max() < store.vocab_size
            assert -100 <= batch["targets"].min() <= batch["targets"].max() < store.vocab_size
        with reported():
            assert all(0 <= piece.document < len(store) for row in plan.documents(step) for piece in row)
        with reported():
            list(trace_rows(plan, Decoder(None, "not wanted"), step))
    with reported():
        next(plan.find(next(iter(plan.stores)), 3), None)


def plan_of(path: Path, packing: str) -> tokenstore.Plan:
    return tokenstore.Plan.of(path, 16, 4, num_steps=4, packing=packing)


def files_of(path: Path, version: int) -> set[str]:
    """The names of all files of a version, with its manifest."""
    with open_store(path, version=version) as store:
        manifest = store.manifest
        names = {shard.file for shard in manifest.shards} | set(manifest.files)
        return names | {"manifest.json" if version == max(versions(path)) else f"manifest-v{version}.json"}


def check(path: Path, damaged: dict[str, bytes], rng: random.Random) -> None:
    """Damage a store, before it is opened or while plans have it mapped; then verify it and read everything."""
    under = rng.random() < 0.5
    plans = [plan_of(path, packing) for packing in PACKINGS] if under else []
    for plan in plans:
        plan.batch(0)
    concerned = [version for version in versions(path) if damaged.keys() & files_of(path, version)]
    for name, data in damaged.items():
        file = path / name
        file.chmod(0o644)
        if under and len(data) == file.stat().st_size:
            with open(file, "r+b") as opened:
                opened.write(data)  # in place, so that open maps show it
        else:
            file.unlink()
            file.write_bytes(data)
    for version in concerned:
        assert verify(path, version=version), f"verify of version {version} found nothing in {sorted(damaged)}"
    for plan in plans:
        ask_plan(plan)
    with reported(), open_store(path, check=rng.choice(["sizes", "lazy"])) as store:
        ask_store(store)
    for packing in PACKINGS:
        with reported():
            ask_plan(plan_of(path, packing))


def fuzz(seconds: float, seed: int, most: int = sys.maxsize) -> int:
    """Damage and read stores until the time is over or `most` rounds are done. Returns the number of rounds."""
    end, count = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory(prefix="tokenstore-fuzz-") as name:
        sound = contents(make_store(Path(name)))
        while time.monotonic() < end and count < most:
            path = Path(name) / f"{count}"
            path.mkdir()
            for file, data in sound.items():
                (path / file).write_bytes(data)
            rng = random.Random(f"{seed} {count}")
            try:
                check(path, damage(sound, rng), rng)
            except BaseException as error:
                error.add_note(f"round {count} of --seed {seed}")
                raise
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
            count += 1
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rounds = fuzz(60 * arguments.minutes, arguments.seed)
    sys.stdout.write(f"{rounds:,} damaged stores: every read was valid or raised an error\n")
