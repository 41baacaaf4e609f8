"""Progress as a flat dict of numbers, for a run's log: the same on every rank, by arithmetic, without communication.

    data/step                              the step to go on with
    data/sequences, data/tokens            of all sources before it; skipped steps count as used
    data/padding                           share of the positions of those sequences that hold no token
    data/<source>/sequences, epochs, tokens, padding, weight, realised_weight    see `progress.SourceProgress`
    data/<source>/piece_p50, piece_p95     tokens of the pieces an epoch gives; not there where the store cannot tell
    data/<pool>/<member>/epochs, tokens    of each member of a pool, expected inside an epoch of the pool

The keys of a plan are the same at every step. `sequences` and `epochs` are exact; `tokens` and `padding` are where
`SourceProgress.tokens` is, inside an epoch of a packed source their expectation.
"""

from collections.abc import Mapping

from tokenstore.planning.progress import SourceProgress

_FIELDS = ("sequences", "epochs", "tokens", "padding", "weight", "realised_weight")


def metrics_of(step: int, sources: Mapping[str, SourceProgress], sequence_length: int) -> dict[str, int | float]:
    """The metrics of a run that is to give `step` next; `sources`: its progress there."""
    sequences = sum(source.sequences for source in sources.values())
    tokens = sum(source.tokens for source in sources.values())
    padding = 1 - tokens / (sequences * sequence_length) if sequences else 0.0
    metrics = {"data/step": step, "data/sequences": sequences, "data/tokens": tokens, "data/padding": padding}
    for name, source in sources.items():
        metrics |= {f"data/{name}/{field}": getattr(source, field) for field in _FIELDS}
        if source.pieces is not None:
            metrics |= {f"data/{name}/piece_p50": source.pieces.p50, f"data/{name}/piece_p95": source.pieces.p95}
        for member, progress in source.members.items():
            metrics |= {
                f"data/{name}/{member}/epochs": progress.epochs,
                f"data/{name}/{member}/tokens": progress.tokens,
            }
    return metrics
