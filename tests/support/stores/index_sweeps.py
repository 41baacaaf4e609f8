"""Sweeps over damaged indexes and tokens (P9): everything that a store and its plans return is requested; it is valid or an error.

Indexes are damaged in place while plans have them mapped, so kernels meet every value there is.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

import tokenstore
from tests.support.stores.forge import overwrite, unpinned
from tests.support.stores.hostile_stores import STORES, check_message, flips
from tokenstore.batches import block as words
from tokenstore.errors import TokenStoreError
from tokenstore.store import open_store, verify

LENGTHS = {"small": 8, "wide": 8, "long": 512}  # of a sequence


def plan_of(path: Path, **fields: object) -> tokenstore.Plan:
    """A plan of `concat` over a bit more than an epoch of the store; its batches are of 4 sequences."""
    fields = {"sequence_length": LENGTHS[path.name], "packing": "concat", **fields}
    steps = json.loads((path / "manifest.json").read_bytes())["num_tokens"] // fields["sequence_length"] // 4 + 1
    return tokenstore.Plan.of(path, global_batch_size=4, num_steps=steps, **fields)


def every_step(plan: tokenstore.Plan, name: str) -> None:
    """Every step of a plan is sane, or a TokenStoreError that names the file `name`."""
    (store,) = plan.stores.values()
    length = plan.config.sequence_length
    sampler = plan.sampler()
    for step in range(plan.num_steps or 0):
        with reported(name):
            batch = plan.batch(step)
            for field, low in (("input_ids", 0), ("targets", -100)):
                assert batch[field].shape == (4, length)
                assert low <= batch[field].min() <= batch[field].max() < store.vocab_size
        with reported(name):
            for pieces in plan.documents(step):
                assert sum(piece.stop - piece.start for piece in pieces) == length
                assert all(0 <= p.start < p.stop <= store.num_tokens and 0 <= p.document < len(store) for p in pieces)
        with reported(name):
            ids, targets, positions, documents = np.empty((4, 4, length), np.int64)
            arrays = {words.IDS: ids, words.TARGETS: targets, words.POSITIONS: positions, words.DOCUMENTS: documents}
            (planned,) = sampler.plan(sampler.locate(step, 0, 4))
            for word, array in arrays.items():
                sampler.block[word] = array.ctypes.data
            sampler.copy(planned, planned)
            assert 0 <= positions.min() <= positions.max() < length
            assert 0 <= documents.min() <= documents.max() < length


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Allow a TokenStoreError, if it says what it must and names the file."""
    try:
        yield
    except TokenStoreError as error:
        check_message(error, name)


def every_document(path: Path, name: str) -> None:
    """Every document of the store is sane, or a TokenStoreError that names the file `name`."""
    with reported(name), open_store(path, check="lazy") as store:
        for i in range(len(store)):
            with reported(name):
                document = store[i]
                assert 1 <= document.size <= store.num_tokens
                assert document.max() < store.vocab_size


def sweep(path: Path, name: str, contents: Iterable[bytes]) -> int:
    """Damage a file of a sound store in place, in many ways; ask for all it has. Returns how many ways."""
    sound = (path / name).read_bytes()
    variants = ({}, {"shuffle": False}, {"cross_document_targets": True})
    open_plans = [unpinned(plan_of(path, **fields)) for fields in variants]
    number = 0
    for number, content in enumerate(contents, 1):
        assert len(content) == len(sound)
        overwrite(path / name, content)
        findings = verify(path)
        assert content == sound or any(name in str(finding) for finding in findings), findings
        every_document(path, name)
        every_step(open_plans[number % 3], name)
        with reported(name):
            every_step(plan_of(path, **variants[(number // 3) % 3]), name)
    overwrite(path / name, sound)
    assert verify(path) == []
    return number


def hostile_values(path: Path) -> Iterator[bytes]:
    """boundaries.bin with every entry, of the starts and of the lookup, set to every bad number."""
    sound = np.frombuffer((path / "boundaries.bin").read_bytes(), "<i8")
    body = json.loads((path / "manifest.json").read_bytes())
    tokens, documents = body["num_tokens"], body["num_documents"]
    values = (-1, -(2**63), -(2**62), 2**62, 2**63 - 1, 0, documents - 1, documents, tokens - 1, tokens, tokens + 1)
    for entry in range(sound.size):
        for value in values:
            damaged = sound.copy()
            damaged[entry] = value
            yield damaged.tobytes()


def hostile_patterns(path: Path, num_random: int) -> Iterator[bytes]:
    """boundaries.bin as a whole made of bad numbers: constant, falling, swapped, cut elsewhere, at random."""
    sound = np.frombuffer((path / "boundaries.bin").read_bytes(), "<i8")
    body = json.loads((path / "manifest.json").read_bytes())
    tokens, documents = body["num_tokens"], body["num_documents"]
    starts, lookup = sound[: documents + 1], sound[documents + 1 :]
    falling = np.concatenate([starts[::-1], lookup[::-1]])
    for value in (0, -1, 1, documents, tokens, 2**62, -(2**63), 2**63 - 1):
        yield np.full_like(sound, value).tobytes()
        yield np.concatenate([np.full_like(starts, value), lookup]).tobytes()
        yield np.concatenate([starts, np.full_like(lookup, value)]).tobytes()
        inside = np.full_like(starts, value)
        inside[0], inside[-1] = 0, tokens  # what opening looks at
        yield np.concatenate([inside, lookup]).tobytes()
    yield from (falling.tobytes(), sound[::-1].tobytes(), (-sound).tobytes(), np.roll(sound, 1).tobytes())
    yield from (np.roll(sound, -1).tobytes(), sound.byteswap().tobytes(), np.arange(sound.size, dtype="<i8").tobytes())
    rng = np.random.default_rng(7)
    for turn in range(num_random):
        inside = rng.integers(-2, tokens + 3, documents + 1)
        if turn % 3 == 0:
            inside = np.sort(inside)
        elif turn % 3 == 1:  # as sound as can be, cut into other documents: they straddle shards
            inside = np.sort(rng.choice(tokens - 1, documents + 1, replace=False))
        inside[0], inside[-1] = 0, tokens
        table = lookup if turn % 2 else rng.integers(-1, documents + 1, lookup.size)
        yield np.concatenate([inside, table]).astype("<i8").tobytes()


def bad_ids(path: Path, name: str) -> Iterator[bytes]:
    """A shard in which one token is not below the vocabulary, for every token."""
    body = json.loads((path / "manifest.json").read_bytes())
    sound = np.frombuffer((path / name).read_bytes(), body["dtype"])
    for at in range(0, sound.size, max(1, sound.size // 100)):
        damaged = sound.copy()
        damaged[at] = body["vocab_size"] if at % 2 else np.iinfo(sound.dtype).max
        yield damaged.tobytes()


SWEEPS: dict[str, Callable[[Path], int]] = {
    "flipped-boundaries": lambda path: sweep(path, "boundaries.bin", flips(path, "boundaries.bin", all_bits=False)),
    "hostile-values": lambda path: sweep(path, "boundaries.bin", hostile_values(path)),
    "hostile-patterns": lambda path: sweep(path, "boundaries.bin", hostile_patterns(path, 60)),
    "bad-ids": lambda path: sweep(path, "tokens-00000.bin", bad_ids(path, "tokens-00000.bin")),
}

# The width of tokens is nothing to an index: `wide` is for the tokens alone.
RUNS = [(name, what) for name in STORES for what in SWEEPS if name != "wide" or what == "bad-ids"]


def sweep_all(folder: Path) -> int:
    """Every sweep."""
    return sum(SWEEPS[what](STORES[name](folder / what / name)) for name, what in RUNS)
