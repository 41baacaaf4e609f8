"""How far a run is in each source, by arithmetic: sequences, epochs, tokens, padding, lengths of pieces; and its metrics.

Metrics are the same values as a flat dict of numbers, for the log of a run. They are the same on every rank and need no
communication:
    data/step                              the next step
    data/sequences, data/tokens            of all sources before that step; skipped steps count as used
    data/padding                           share of the positions of those sequences that contain no token
    data/<source>/sequences, epochs, tokens, padding, weight, realised_weight    as in `SourceProgress`
    data/<source>/piece_p50, piece_p95     tokens of the pieces in an epoch; absent if the store has no length index
    data/<pool>/<member>/epochs, tokens    of each member of a pool; expected values inside an epoch of the pool
A loader adds what its process has done since it opened the plan, if a store is at a URL:
    data/remote/requests, retries          attempts to read an object, and those of them that followed a failure
    data/remote/bytes                      bytes that were fetched
    data/remote/cache_hits, cache_misses   spans that were in the mirror when they were planned, and those that were not
    data/remote/waits, wait_seconds        microbatches that had not arrived when they were needed
The keys of a plan are the same at every step. `sequences` and `epochs` are exact; `tokens` and `padding` are exact where
`SourceProgress.tokens` is, and expected values inside an epoch of a packed source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tokenstore.batches.sources import Source
from tokenstore.order.schedule import Schedule

_METRICS = ("sequences", "epochs", "tokens", "padding", "weight", "realised_weight")


@dataclass(frozen=True)
class PieceLengths:
    """Lengths in tokens of the pieces in an epoch, each piece counted once: median, 95th percentile, mean."""

    p50: int
    p95: int
    mean: float


@dataclass(frozen=True)
class MemberProgress:
    """A member of a pool after some steps: passes over its documents, and its tokens.

    Both follow from the epochs of the pool and the repeat factor. Inside an epoch they are expected values, because the sequences
    of a pool mix its members.
    """

    epochs: float
    tokens: int


@dataclass(frozen=True)
class SourceProgress:
    """A source after some steps. Sequences of skipped steps count as used.

    Attributes:
        sequences: sequences used so far; exact.
        epochs: passes over the source, sequences / sequences_per_epoch.
        tokens: tokens of its documents so far. Exact with `concat`, and when `epochs` is whole and every member of a pool has
            been used a whole number of times. Inside an epoch of a packed source it is the expected value; a run differs
            from it by less than the padding of one epoch.
        tokens_exact: whether `tokens` and `padding` are exact.
        padding: share of the positions of its sequences that contain no token.
        alignment: share of these positions that are padding because of `align`; a part of `padding`.
        weight: its target share of the sequences in the stage of the last step.
        realised_weight: its actual share of the sequences so far, over all stages.
        sequences_per_epoch: sequences in each epoch.
        steps_per_epoch: average at the shares of the last sequence; None if the source takes no part there or has run out.
        pieces: lengths of the pieces in an epoch. Exact for a packed source; for a pool, and with `align`, of the room it
            reserves. With `concat` an expected value over all offsets; None if the store has no length index.
        members: progress of each member of a pool, by name; otherwise empty.
    """

    sequences: int
    epochs: float
    tokens: int
    tokens_exact: bool
    padding: float
    alignment: float
    weight: float
    realised_weight: float
    sequences_per_epoch: int
    steps_per_epoch: float | None
    pieces: PieceLengths | None
    members: Mapping[str, MemberProgress]


def progress_of(
    schedule: Schedule,
    sources: tuple[Source, ...],
    pieces: Mapping[str, PieceLengths | None],
    length: int,
    step: int,
) -> dict[str, SourceProgress]:
    """The progress of every source after steps [0, step), by name.

    Args:
        schedule: the schedule of the run.
        sources: its sources.
        pieces: `piece_lengths` of each source, by name; they are the same at every step.
        length: tokens per sequence.
        step: number of steps.
    """
    cursor = schedule.cursor(step)
    counts = schedule.counts(cursor)
    in_force = schedule.segments_in(max(cursor - 1, 0), max(cursor, 1))
    shares = in_force[-1].shares if in_force else {}  # without sources that have run out
    stage = schedule.stage(max(step - 1, 0))
    period, total = sum(stage.shares.values()), max(sum(counts.values()), 1)
    rows = {}
    for source in sources:
        sequences, share = counts.get(source.name, 0), stage.shares.get(source.name, 0)
        epochs = Fraction(sequences, source.num_sequences)
        tokens = epochs * source.num_tokens
        # with a fractional repeat factor, tokens are exact only after a whole number of copies of each document
        whole = epochs.denominator == 1 and all((epochs * member.repeat).denominator == 1 for member in source.members)
        rows[source.name] = SourceProgress(
            sequences=sequences,
            epochs=float(epochs),
            tokens=int(tokens),
            tokens_exact=whole or source.packing == "concat",
            padding=float(1 - source.num_tokens / (source.num_sequences * length)),
            alignment=_alignment(source, length),
            weight=share / period,
            realised_weight=sequences / total,
            sequences_per_epoch=source.num_sequences,
            steps_per_epoch=_steps_per_epoch(source, shares, stage.global_batch_size),
            pieces=pieces[source.name],
            members=_members(source, epochs),
        )
    return rows


def metrics_of(step: int, sources: Mapping[str, SourceProgress], sequence_length: int) -> dict[str, int | float]:
    """The metrics of a run before `step`; `sources` is its progress there, and the module lists the keys."""
    sequences = sum(source.sequences for source in sources.values())
    tokens = sum(source.tokens for source in sources.values())
    padding = 1 - tokens / (sequences * sequence_length) if sequences else 0.0
    metrics = {"data/step": step, "data/sequences": sequences, "data/tokens": tokens, "data/padding": padding}
    for name, source in sources.items():
        metrics |= {f"data/{name}/{field}": getattr(source, field) for field in _METRICS}
        if source.pieces is not None:
            metrics |= {f"data/{name}/piece_p50": source.pieces.p50, f"data/{name}/piece_p95": source.pieces.p95}
        for member, progress in source.members.items():
            metrics |= {
                f"data/{name}/{member}/epochs": progress.epochs,
                f"data/{name}/{member}/tokens": progress.tokens,
            }
    return metrics


def _alignment(source: Source, length: int) -> float:
    """Share of the positions of a source that alignment adds."""
    added = 0 if source.length_classes is None else source.length_classes.padding
    return added / (source.num_sequences * length)


def _members(source: Source, epochs: Fraction) -> dict[str, MemberProgress]:
    """Progress of the members of a pool after `epochs` of the pool."""
    if not source.is_pool:
        return {}
    passes = [(member, epochs * member.repeat) for member in source.members]
    return {member.name: MemberProgress(float(n), int(n * member.num_tokens)) for member, n in passes}


def _steps_per_epoch(source: Source, shares: Mapping[str, int], batch_size: int) -> float | None:
    share = shares.get(source.name)
    return source.num_sequences * sum(shares.values()) / (share * batch_size) if share else None


def piece_lengths(source: Source, length: int) -> PieceLengths | None:
    """Lengths of the pieces in one epoch of a source; None if the store cannot tell."""
    if source.length_classes is not None:
        return _summary(source.length_classes.counts)
    store = source.members[0].store
    return _summary(_window_pieces(store.runs(), len(store), length)) if store.has_length_index else None


def _summary(counts: np.ndarray) -> PieceLengths:
    """counts: float or int[n], number of pieces of each length, from 0."""
    upto = np.cumsum(counts)
    p50, p95 = (int(np.searchsorted(upto, upto[-1] * share)) for share in (0.5, 0.95))
    return PieceLengths(p50, p95, float((counts * np.arange(len(counts))).sum() / upto[-1]))


def _window_pieces(runs: np.ndarray, num_documents: int, length: int) -> np.ndarray:
    """float64[length + 1]: how many pieces of each length the windows of `concat` cut documents into, averaged over all offsets.

    A window border falls on any given token of a document with probability 1 / length. A document of t <= length tokens is one
    piece, or two pieces of 1..t-1 tokens. A longer one has a first piece of 1..length tokens and a last one of 0..length-1, all
    equally likely, and whole windows between them.
    """
    tokens, numbers = runs[:, 0], np.diff(runs[:, 1], append=num_documents).astype(np.float64)
    counts = np.zeros(length + 2)
    short = tokens <= length
    t, n = tokens[short], numbers[short] / length
    np.add.at(counts, t, n * (length - t + 1))
    cut = np.zeros(length + 2)  # 2 n for every length below t, as differences; summed from the top below
    np.add.at(cut, t - 1, 2 * n)
    counts[1:] += np.cumsum(cut[:0:-1])[::-1]
    long, n = tokens[~short], numbers[~short] / length
    counts[1 : length + 1] += n.sum()
    counts[1:length] += n.sum()
    counts[length] += (n * (long - length)).sum()  # whole windows: t minus the mean lengths of both ends
    return counts[: length + 1]
