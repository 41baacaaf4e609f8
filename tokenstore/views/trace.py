"""What a step holds: every sequence, its pieces, where they are from, their text. And every step a document comes by in."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tokenstore.errors import ConfigError
from tokenstore.format.input_lines import Origin
from tokenstore.order.rank_rows import check_split
from tokenstore.planning.plan import Piece, Plan
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import Excerpt, document_of_id, excerpt_of


@dataclass(frozen=True)
class TracedPiece:
    """Tokens [start, stop) of a document, as they stand in a sequence.

    Attributes:
        source, document: whose, and its number in the store.
        id, origin: None in a store that does not have them.
        start, stop, num_tokens: of the piece, and of the whole document.
        excerpt: its first tokens, decoded.
    """

    source: str
    document: int
    id: str | None
    origin: Origin | None
    start: int
    stop: int
    num_tokens: int
    excerpt: Excerpt


@dataclass(frozen=True)
class TracedRow:
    """A sequence of a step.

    Attributes:
        row: in the step, from 0.
        rank, microbatch, place: who is given it, in which of its microbatches, and where in that.
        source: the source it is of, a pool's name for a pool; None for a row behind the end of the run.
        sequence, epoch: its number in the source over the whole run, and the pass that is; None for padding.
        pieces: in order.
        padding: positions behind them.
    """

    row: int
    rank: int
    microbatch: int
    place: int
    source: str | None
    sequence: int | None
    epoch: int | None
    pieces: tuple[TracedPiece, ...]
    padding: int


@dataclass(frozen=True)
class TracedStep:
    """A step: which sequences of the run, [cursor, cursor + global_batch_size), and how many of them of each source."""

    step: int
    cursor: int
    global_batch_size: int
    world_size: int
    microbatch_size: int
    sequences: dict[str, int]
    padding_rows: int


@dataclass(frozen=True)
class Appearance:
    """Where a piece of a document comes by: tokens [start, stop) in row `row` of `step`, given to `rank`, in `epoch`."""

    epoch: int
    step: int
    row: int
    rank: int
    start: int
    stop: int


def trace_step(plan: Plan, step: int, world_size: int = 1, microbatch_size: int | None = None) -> TracedStep:
    """What a step is made of, its text apart.

    Raises: ConfigError: a step the plan does not have or skips, or a split that leaves ranks unequal.
    """
    size = _checked_split(plan, step, world_size, microbatch_size)
    batch_size = plan.global_batch_size(step)
    numbers = plan.sampler().locate(step, 0, batch_size)[:, 0]
    names = tuple(plan.num_sequences)
    counts = {name: int((numbers == number).sum()) for number, name in enumerate(names)}
    cursor = plan.schedule.cursor(step)
    return TracedStep(step, cursor, batch_size, world_size, size, counts, int((numbers < 0).sum()))


def trace_rows(
    plan: Plan,
    decoder: Decoder,
    step: int,
    rank: int | None = None,
    world_size: int = 1,
    microbatch_size: int | None = None,
    row: int | None = None,
    max_tokens: int | None = 48,
) -> Iterator[TracedRow]:
    """The sequences of a step, lazily, in the order in which they stand in it.

    Args:
        plan: a plan.
        decoder: of its stores, which are of one tokenizer.
        step: 0 <= step < num_steps, not skipped.
        rank: only what this rank is given; left out: all.
        world_size, microbatch_size: how a step is given; a microbatch size left out is a rank's whole share.
        row: only this one of the step.
        max_tokens: of a piece that are decoded; None: all.
    Raises: ConfigError: a step, rank, row or split the plan does not have.
    """
    size = _checked_split(plan, step, world_size, microbatch_size, rank or 0)
    batch_size = plan.global_batch_size(step)
    if row is not None and not 0 <= row < batch_size:
        raise ConfigError(f"row: expected one of the step's {batch_size}, found {row}")
    return _rows(plan, decoder, step, rank, world_size, size, row, max_tokens)


def _rows(
    plan: Plan,
    decoder: Decoder,
    step: int,
    rank: int | None,
    world_size: int,
    size: int,
    row: int | None,
    max_tokens: int | None,
) -> Iterator[TracedRow]:
    batch_size = plan.global_batch_size(step)
    located = plan.sampler().locate(step, 0, batch_size).tolist()
    for first in range(0, batch_size, size):
        microbatch, mine = divmod(first // size, world_size)
        if (rank is not None and mine != rank) or (row is not None and not first <= row < first + size):
            continue
        # as of one rank, were every microbatch given to a rank of its own
        sequences = plan.documents(step, first // size, batch_size // size)
        for place in range(size) if row is None else (row - first,):
            pieces = tuple(_piece(plan, decoder, piece, max_tokens) for piece in sequences[place])
            source, sequence, epoch = _sequence(plan, *located[first + place])
            padding = plan.config.sequence_length - sum(piece.stop - piece.start for piece in pieces)
            yield TracedRow(first + place, mine, microbatch, place, source, sequence, epoch, pieces, padding)


def _sequence(plan: Plan, number: int, sequence: int) -> tuple[str, int, int] | tuple[None, None, None]:
    """(source, sequence, epoch) of a located row."""
    if number < 0:
        return None, None, None
    name = tuple(plan.num_sequences)[number]
    return name, sequence, sequence // plan.num_sequences[name]


def _piece(plan: Plan, decoder: Decoder, piece: Piece, max_tokens: int | None) -> TracedPiece:
    store = plan.stores[piece.source]
    first, end = store.boundaries()[piece.document : piece.document + 2].tolist()
    stop = piece.stop if max_tokens is None else min(piece.stop, piece.start + max_tokens)
    excerpt = excerpt_of(store, decoder, piece.document, piece.start, stop)
    known = store.id(piece.document), store.origin(piece.document)
    return TracedPiece(piece.source, piece.document, *known, piece.start, piece.stop, end - first, excerpt)


def appearances(
    plan: Plan,
    source: str,
    document: int,
    epoch: int | None = None,
    steps: range | None = None,
    limit: int | None = 20,
    world_size: int = 1,
    microbatch_size: int | None = None,
) -> Iterator[Appearance]:
    """Where a document comes by, in order of step, at most `limit` pieces.

    Raises: ConfigError: a source, document, epoch or split the plan does not have.
    """
    try:
        found = plan.find(source, document, epoch, steps)
    except (ValueError, IndexError) as error:
        raise ConfigError(str(error)) from error
    for each in islice(found, limit):
        size = _checked_split(plan, each.step, world_size, microbatch_size)
        yield Appearance(each.epoch, each.step, each.row, each.row // size % world_size, each.start, each.stop)


def document_named(plan: Plan, name: str) -> tuple[str, int]:
    """(source, number) of `SOURCE:NUMBER`, or of `SOURCE:ID`, which is looked for in all ids of the store.

    Raises: ConfigError: no such source or document.
    """
    source = max((each for each in plan.stores if name.startswith(f"{each}:")), key=len, default=None)
    if source is None:
        raise ConfigError(
            f"document: expected SOURCE:NUMBER or SOURCE:ID with one of the sources {', '.join(plan.stores)}, found {name!a}"
        )
    rest = name.removeprefix(f"{source}:")
    if rest.isascii() and rest.isdigit():
        return source, int(rest)
    return source, document_of_id(plan.stores[source], rest.removeprefix("id="))


def _checked_split(plan: Plan, step: int, world_size: int, microbatch_size: int | None, rank: int = 0) -> int:
    try:
        plan.check_step(step)
        return check_split(plan.global_batch_size(step), rank, world_size, microbatch_size)
    except ValueError as error:
        raise ConfigError(str(error)) from error
