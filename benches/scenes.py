"""Shared by all benches: stores with fixed seeds, either with tokens or huge and sparse; rows of results; timers."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import xxhash

from tokenstore.format.layout import BOUNDARIES_NAME, INPUTS_NAME, MANIFEST_NAME, lookup_entries, shard_name
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.store.length_index import write_length_index
from tokenstore.store.writer import FileWriter

TOKENIZER = TokenizerEntry("bytes", None, None, None, None, None, "benches", "1")
VOCABULARY = 50_257


class CannotRun(Exception):
    """A bench requires something that is not on this machine."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        claim: what was measured.
        value: the result.
        reach: the target.
        beside: other results of the same run.
        bars: the value by size, in `unit`, for a chart.
        unit: unit of `bars`.
        chances: p-values, for a chart; they should be distributed uniformly.
    """

    claim: str
    value: str
    reach: str
    beside: str
    bars: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""
    chances: tuple[float, ...] = ()


def show(value: float, unit: str = "") -> str:
    """A number with three significant digits and its unit, without powers of ten."""
    return f"{value:,.0f} {unit}".strip() if value >= 100 else f"{value:.3g} {unit}".strip()


def web_lengths(seed: int, count: int) -> np.ndarray:
    """int64[count]: document lengths as in web text. Lognormal, with a median of about 410 tokens and a Pareto tail of 2 %."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(6.0, 1.0, count)
    tail = rng.random(count) < 0.02
    lengths[tail] = 2000 * (1 + rng.pareto(1.5, int(tail.sum())))
    return np.clip(lengths, 8, 1_000_000).astype(np.int64)


def token_store(path: Path, seed: int, num_tokens: int) -> Path:
    """Make a store of random tokens in web-like documents."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with FileWriter(path, VOCABULARY, 1 << 30) as writer:
        while writer.num_tokens < num_tokens:
            lengths = web_lengths(rng.integers(1 << 30), 2000)
            writer.append(rng.integers(0, VOCABULARY, int(lengths.sum())).astype(np.uint16), lengths)
        writer.finish(b"", ends_with_eos=False, tokenizer=TOKENIZER, options={}, counts={}, package_versions={})
    write_length_index(path)
    return path


def sparse_store(
    path: Path, num_documents: int, times: int = 1, lengths_of: Callable[[int, int], np.ndarray] = web_lengths
) -> Path:
    """Make a store whose shards are sparse files (all tokens are 0), so that it may be huge. Its other files are real.

    times: factor for the lengths of the documents. lengths_of: makes these lengths from a seed and their number.
    """
    path.mkdir(parents=True)
    checksum = xxhash.xxh3_128().hexdigest()
    block, shards, token = 1 << 19, [], 0
    with open(path / BOUNDARIES_NAME, "wb") as file, open(path / BOUNDARIES_NAME, "r+b") as lookup:
        lookup.seek(8 * (num_documents + 1))  # after the boundaries
        for number, first in enumerate(
            range(0, num_documents, block)
        ):  # one shard each, with about half a GB of tokens
            lengths = times * lengths_of(number, min(block, num_documents - first))
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
    """The elapsed time of one call, in seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def batch_microseconds(loaders: Mapping[str, Iterator[object]], smoke: bool) -> dict[str, float]:
    """CPU time of a batch of each loader: the median of rounds of 80 batches in which loaders take turns, without the first."""
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(3 if smoke else 15):
        for name, loader in loaders.items():
            start = time.process_time()
            for _ in range(80):
                next(loader)
            times[name].append((time.process_time() - start) / 80 * 1e6)
    return {name: median(found[1:]) for name, found in times.items()}


def rounds(actions: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Seconds of each action in `count` rounds. Actions take turns, so that a change of the machine's speed affects all alike."""
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(count):
        for name, action in actions.items():
            times[name].append(seconds(action))
    return times


def ratio(limit: list[float], ours: list[float]) -> str:
    """Median of limit / ours over the rounds, with the range in parentheses."""
    ratios = sorted(a / b for a, b in zip(limit, ours, strict=True))
    return f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
