"""How far a run is in each source, by arithmetic: what was given, how often, with how much padding, in what pieces."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tokenstore.batches.sources import Source
from tokenstore.order.schedule import Schedule


@dataclass(frozen=True)
class PieceLengths:
    """Tokens of the pieces an epoch gives, each counted once: at least half, 95 % of them are no longer; their mean."""

    p50: int
    p95: int
    mean: float


@dataclass(frozen=True)
class MemberProgress:
    """A member of a pool after some steps: passes over its documents, and its tokens.

    Both follow from the epochs of the pool and the repeat factor. Inside an epoch they are expectations, as its sequences mix
    the members.
    """

    epochs: float
    tokens: int


@dataclass(frozen=True)
class SourceProgress:
    """A source after some steps; those of skipped steps count as used.

    Attributes:
        sequences: of this source, exactly.
        epochs: passes over it, exactly sequences / sequences_per_epoch.
        tokens: of its documents. Exact under `concat`, and where `epochs` is whole and every member of a pool was given a
            whole number of times; inside an epoch of a packed source its expectation, which a run differs from by less
            than one epoch's padding.
        tokens_exact: whether `tokens` and `padding` are.
        padding: share of the positions of its sequences that hold no token.
        weight: its share of the sequences asked for in the stage the last step belongs to.
        realised_weight: its share of the sequences so far, over all stages.
        sequences_per_epoch: the same in every epoch.
        steps_per_epoch: on average, at the shares of the last sequence; None where it takes no part there, or has run out.
        pieces: lengths of the pieces of an epoch: exact for a packed source, of a pool those it has room for; an expectation
            over the offsets of `concat`, None there where the store has no length index.
        members: of a pool, by name; else empty.
    """

    sequences: int
    epochs: float
    tokens: int
    tokens_exact: bool
    padding: float
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
    """Every stream after steps [0, step); `pieces`: its `piece_lengths`, which are the same at every step."""
    cursor = schedule.cursor(step)
    counts = schedule.counts(cursor)
    in_force = schedule.segments_in(max(cursor - 1, 0), max(cursor, 1))
    shares = in_force[-1].shares if in_force else {}  # of the sources that have not run out
    stage = schedule.stage(max(step - 1, 0))
    period, total = sum(stage.shares.values()), max(sum(counts.values()), 1)
    rows = {}
    for source in sources:
        sequences, share = counts.get(source.name, 0), stage.shares.get(source.name, 0)
        epochs = Fraction(sequences, source.num_sequences)
        tokens = epochs * source.num_tokens
        # a fractional repeat factor gives as much as on average only where its copies come out even
        whole = epochs.denominator == 1 and all((epochs * member.repeat).denominator == 1 for member in source.members)
        rows[source.name] = SourceProgress(
            sequences=sequences,
            epochs=float(epochs),
            tokens=int(tokens),
            tokens_exact=whole or source.packing == "concat",
            padding=float(1 - source.num_tokens / (source.num_sequences * length)),
            weight=share / period,
            realised_weight=sequences / total,
            sequences_per_epoch=source.num_sequences,
            steps_per_epoch=_steps_per_epoch(source, shares, stage.global_batch_size),
            pieces=pieces[source.name],
            members=_members(source, epochs),
        )
    return rows


def _members(source: Source, epochs: Fraction) -> dict[str, MemberProgress]:
    """The members of a pool after `epochs` of it."""
    if not source.is_pool:
        return {}
    passes = {member: epochs * member.repeat for member in source.members}
    return {each.name: MemberProgress(float(n), int(n * each.store.num_tokens)) for each, n in passes.items()}


def _steps_per_epoch(source: Source, shares: Mapping[str, int], batch_size: int) -> float | None:
    share = shares.get(source.name)
    return source.num_sequences * sum(shares.values()) / (share * batch_size) if share else None


def piece_lengths(source: Source, length: int) -> PieceLengths | None:
    """Lengths of the pieces of one epoch of a stream."""
    if source.length_classes is not None:
        return _summary(source.length_classes.counts)
    store = source.members[0].store
    return _summary(_window_pieces(store.runs(), len(store), length)) if store.has_length_index else None


def _summary(counts: np.ndarray) -> PieceLengths:
    """counts: pieces of each length, from 0 on."""
    upto = np.cumsum(counts)
    p50, p95 = (int(np.searchsorted(upto, upto[-1] * share)) for share in (0.5, 0.95))
    return PieceLengths(p50, p95, float((counts * np.arange(len(counts))).sum() / upto[-1]))


def _window_pieces(runs: np.ndarray, num_documents: int, length: int) -> np.ndarray:
    """float64[length + 1], how many pieces of each length windows cut documents into, on average over all offsets.

    A document of t tokens has a window's border at any of its tokens with probability 1 / length. One of t <= length is
    whole, or two pieces of 1..t-1 tokens. A longer one has a first piece of 1..length and a last one of 0..length-1,
    all equally likely, and whole windows between them.
    """
    tokens, numbers = runs[:, 0], np.diff(runs[:, 1], append=num_documents).astype(np.float64)
    counts = np.zeros(length + 2)
    short = tokens <= length
    t, n = tokens[short], numbers[short] / length
    np.add.at(counts, t, n * (length - t + 1))
    cut = np.zeros(length + 2)  # 2 n for every length below t, added up from the top
    np.add.at(cut, t - 1, 2 * n)
    counts[1:] += np.cumsum(cut[:0:-1])[::-1]
    long, n = tokens[~short], numbers[~short] / length
    counts[1 : length + 1] += n.sum()
    counts[1:length] += n.sum()
    counts[length] += (n * (long - length)).sum()  # tokens of whole windows: t less the means of both ends
    return counts[: length + 1]
