"""What the benches work on, with fixed seeds: stores with tokens in them, and huge ones that are sparse files."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import xxhash

from tokenstore.format.layout import BOUNDARIES_NAME, INPUTS_NAME, MANIFEST_NAME, lookup_entries, shard_name
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.store.length_index import write_length_index
from tokenstore.store.writer import StoreWriter

TOKENIZER = TokenizerEntry("bytes", None, None, None, None, None, "benches", "1")
VOCABULARY = 50_257


class CannotRun(Exception):
    """What a bench needs is not on this machine."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        claim, value: what, and how much.
        reach: what is to be reached.
        beside: what else was found in the same run.
        bars: the value by size, in `unit`, to be drawn.
        chances: probabilities that are to lie evenly between 0 and 1, to be drawn.
    """

    claim: str
    value: str
    reach: str
    beside: str
    bars: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""
    chances: tuple[float, ...] = ()


def show(value: float, unit: str = "") -> str:
    """Three digits, and no powers of ten."""
    return f"{value:,.0f} {unit}".strip() if value >= 100 else f"{value:.3g} {unit}".strip()


def web_lengths(seed: int, count: int) -> np.ndarray:
    """int64[count], document lengths as in web text: lognormal, median about 410 tokens, a 2 % Pareto tail."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(6.0, 1.0, count)
    tail = rng.random(count) < 0.02
    lengths[tail] = 2000 * (1 + rng.pareto(1.5, int(tail.sum())))
    return np.clip(lengths, 8, 1_000_000).astype(np.int64)


def token_store(path: Path, seed: int, num_tokens: int) -> Path:
    """A store of random ids in web-like documents."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with StoreWriter(path, VOCABULARY, 1 << 30) as writer:
        while writer.num_tokens < num_tokens:
            lengths = web_lengths(rng.integers(1 << 30), 2000)
            writer.append(rng.integers(0, VOCABULARY, int(lengths.sum())).astype(np.uint16), lengths)
        writer.finish(b"", ends_with_eos=False, tokenizer=TOKENIZER, options={}, counts={}, library_versions={})
    write_length_index(path)
    return path


def sparse_store(path: Path, num_documents: int, times: int = 1) -> Path:
    """A store of any size whose shards are sparse files (all ids 0): real maps, boundaries and order, no tokens on the disk.

    times: so many times as long as web-like documents.
    """
    path.mkdir(parents=True)
    checksum = xxhash.xxh3_128().hexdigest()
    block, shards, token = 1 << 19, [], 0
    with open(path / BOUNDARIES_NAME, "wb") as file, open(path / BOUNDARIES_NAME, "r+b") as lookup:
        lookup.seek(8 * (num_documents + 1))  # after the boundaries
        for number, first in enumerate(range(0, num_documents, block)):  # a shard each, of about half a GB of tokens
            lengths = times * web_lengths(number, min(block, num_documents - first))
            starts = token + np.cumsum(lengths) - lengths
            size = int(lengths.sum())
            with open(path / shard_name(number), "wb") as shard:
                shard.truncate(2 * size)
            shards.append(ShardEntry(shard_name(number), 2 * size, size, token, lengths.size, first, checksum))
            starts.astype("<i8").tofile(file)
            lookup_entries(starts, token, token + size, first).astype("<i8").tofile(lookup)
            token += size
        np.array([token], "<i8").tofile(file)
    (path / INPUTS_NAME).write_bytes(b"")
    files = {
        BOUNDARIES_NAME: FileEntry((path / BOUNDARIES_NAME).stat().st_size, checksum),
        INPUTS_NAME: FileEntry(0, checksum),
    }
    manifest = Manifest("uint16", VOCABULARY, token, num_documents, False, TOKENIZER, tuple(shards), files, {}, {}, {})
    (path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return path


def seconds(action: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def rounds(actions: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Times of all actions, in turn, so that a machine that changes its speed changes it for all alike."""
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(count):
        for name, action in actions.items():
            times[name].append(seconds(action))
    return times


def ratio(limit: list[float], ours: list[float]) -> str:
    """Median of limit / ours, round by round, and its spread."""
    ratios = sorted(a / b for a, b in zip(limit, ours, strict=True))
    return f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
