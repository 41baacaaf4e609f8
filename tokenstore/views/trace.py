"""The contents of a step: its sequences, their pieces, origins and text. And every step in which a document appears."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.format.input_lines import Origin
from tokenstore.order.rank_rows import check_split
from tokenstore.planning.pieces import Piece
from tokenstore.planning.plan import Plan
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import Excerpt, document_of_id, excerpt_of


@dataclass(frozen=True)
class TracedPiece:
    """Tokens [start, stop) of a document, as a part of a sequence.

    Attributes:
        source: name of the source, in a pool of the member.
        document: number of the document in its store.
        id: None if the store has no ids.
        origin: None if the store has no origins.
        metadata: None if the store has no metadata.
        start: first token of the piece.
        stop: end of the piece.
        padding: number of positions without a token after the piece, up to the next piece or the end of the row.
        num_tokens: tokens of the whole document.
        excerpt: the first tokens of the piece, decoded.
    """

    source: str
    document: int
    id: str | None
    origin: Origin | None
    metadata: dict[str, Any] | None
    start: int
    stop: int
    padding: int
    num_tokens: int
    excerpt: Excerpt


@dataclass(frozen=True)
class TracedRow:
    """A sequence of a step.

    Attributes:
        row: its number in the step, from 0.
        rank: the rank that receives it.
        microbatch: number of the microbatch of that rank.
        place: its index in the microbatch.
        source: name of the source or pool; None for an empty row after the end of the run.
        sequence: its number in the source, counted over the whole run; None for an empty row.
        epoch: the epoch of the source; None for an empty row.
        pieces: the pieces of documents, in order.
        padding: number of positions without a token, after the pieces or between them.
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
    """A step of a run.

    Attributes:
        step: its number.
        cursor: number of its first sequence in the run.
        global_batch_size: number of sequences.
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch.
        nodes: node groups among which the rows are divided (ORD-21).
        sequences: number of sequences of each source.
        padding_rows: number of empty rows.
    """

    step: int
    cursor: int
    global_batch_size: int
    world_size: int
    microbatch_size: int
    nodes: int
    sequences: dict[str, int]
    padding_rows: int


@dataclass(frozen=True)
class Appearance:
    """A piece of a document in a run: tokens [start, stop) are in row `row` of `step`, on rank `rank`, in epoch `epoch`."""

    epoch: int
    step: int
    row: int
    rank: int
    start: int
    stop: int


def trace_step(
    plan: Plan, step: int, world_size: int = 1, microbatch_size: int | None = None, *, nodes: int = 1
) -> TracedStep:
    """Describe a step without its rows.

    Raises: ConfigError: the plan does not have the step or skips it, or the sizes do not divide it evenly.
    """
    size = _microbatch_size(plan, step, world_size, microbatch_size)
    batch_size = plan.global_batch_size(step)
    numbers = plan.sampler().locate(step, 0, batch_size)[:, 0]
    names = tuple(plan.num_sequences)
    counts = {name: int((numbers == number).sum()) for number, name in enumerate(names)}
    cursor = plan.schedule.cursor(step)
    groups = plan.num_groups(step, world_size, nodes)
    return TracedStep(step, cursor, batch_size, world_size, size, groups, counts, int((numbers < 0).sum()))


def trace_rows(
    plan: Plan,
    decoder: Decoder,
    step: int,
    rank: int | None = None,
    world_size: int = 1,
    microbatch_size: int | None = None,
    row: int | None = None,
    max_tokens: int | None = 48,
    *,
    nodes: int = 1,
) -> Iterator[TracedRow]:
    """Yield the sequences of a step, in order.

    Args:
        plan: a plan.
        decoder: the decoder of its stores, which all have one tokenizer.
        step: 0 <= step < num_steps, not skipped.
        rank: yield only rows of this rank; default: of all.
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch; default: a rank's whole share of the step.
        row: yield only this row of the step.
        max_tokens: tokens to decode per piece; None: all.
        nodes: number of nodes that the ranks are on, as in TokenLoader.
    Raises: ConfigError: the plan does not have the step, rank or row, or the sizes do not divide the step evenly.

    Example:
        >>> for row in trace_rows(plan, decoder, step=48123):
        ...     print(row.source, [piece.document for piece in row.pieces])
    """
    size = _microbatch_size(plan, step, world_size, microbatch_size, rank or 0)
    batch_size = plan.global_batch_size(step)
    if row is not None and not 0 <= row < batch_size:
        raise ConfigError(f"row: expected 0 to {batch_size - 1}, the rows of step {step}, found {row}")
    return _rows(plan, decoder, step, rank, (world_size, size, nodes), row, max_tokens)


def _rows(
    plan: Plan,
    decoder: Decoder,
    step: int,
    rank: int | None,
    sizes: tuple[int, int, int],
    row: int | None,
    max_tokens: int | None,
) -> Iterator[TracedRow]:
    world_size, size, _ = sizes
    located = plan.sampler().locate(step, 0, plan.global_batch_size(step)).tolist()
    owner = rank if row is None else plan.rank_of(step, row, *sizes)
    if rank not in (None, owner):
        return
    ranks = range(world_size) if owner is None else (owner,)
    numbers = {mine: plan.rows(step, mine, *sizes).tolist() for mine in ranks}
    sequences = {mine: plan.documents(step, mine, *sizes) for mine in ranks}
    for microbatch, mine in product(range(len(located) // (world_size * size)), ranks):
        for place in range(size):
            index = microbatch * size + place
            number = numbers[mine][index]
            if row in (None, number):
                pieces = tuple(_pieces(plan, decoder, sequences[mine][index], max_tokens))
                padding = plan.config.sequence_length - sum(piece.stop - piece.start for piece in pieces)
                source, sequence, epoch = _sequence(plan, *located[number])
                yield TracedRow(number, mine, microbatch, place, source, sequence, epoch, pieces, padding)


def _sequence(plan: Plan, number: int, sequence: int) -> tuple[str, int, int] | tuple[None, None, None]:
    """(source, sequence, epoch) of a located row; all None if it is empty."""
    if number < 0:
        return None, None, None
    name = tuple(plan.num_sequences)[number]
    return name, sequence, sequence // plan.num_sequences[name]


def _pieces(plan: Plan, decoder: Decoder, pieces: list[Piece], max_tokens: int | None) -> Iterator[TracedPiece]:
    """Describe the pieces of a row."""
    left, align = plan.config.sequence_length, plan.config.align or 1
    for number, piece in enumerate(pieces, 1):
        store = plan.stores[piece.source]
        first, end = store.boundaries()[piece.document : piece.document + 2].tolist()
        stop = piece.stop if max_tokens is None else min(piece.stop, piece.start + max_tokens)
        excerpt = excerpt_of(store, decoder, piece.document, piece.start, stop)
        known = store.id(piece.document), store.origin(piece.document), store.metadata(piece.document)
        size = piece.stop - piece.start
        padding = -size % align if number < len(pieces) else left - size
        left -= size + padding
        span = piece.start, piece.stop, padding
        yield TracedPiece(piece.source, piece.document, *known, *span, end - first, excerpt)


def appearances(
    plan: Plan,
    source: str,
    document: int,
    epoch: int | None = None,
    steps: range | None = None,
    limit: int | None = 20,
    world_size: int = 1,
    microbatch_size: int | None = None,
    *,
    nodes: int = 1,
) -> Iterator[Appearance]:
    """Yield where a document appears, in order of step: at most `limit` pieces.

    Args:
        plan: a plan.
        source: name of the source, or of a member of a pool.
        document: number of the document in its store.
        epoch: only this epoch; default: all.
        steps: only these steps; default: all.
        limit: at most this many pieces; None: all.
        world_size: number of data-parallel ranks.
        microbatch_size: sequences per microbatch; default: a rank's whole share of a step.
        nodes: number of nodes that the ranks are on, as in TokenLoader.
    Raises: ConfigError: the plan does not have the source, document or epoch, or the sizes do not divide a step evenly.
    """
    try:
        found = plan.find(source, document, epoch, steps)
    except (ValueError, IndexError) as error:
        raise ConfigError(str(error)) from error
    for each in islice(found, limit):
        size = _microbatch_size(plan, each.step, world_size, microbatch_size)
        rank = plan.rank_of(each.step, each.row, world_size, size, nodes)
        yield Appearance(each.epoch, each.step, each.row, rank, each.start, each.stop)


def document_named(plan: Plan, name: str) -> tuple[str, int]:
    """(source, document number) for `SOURCE:NUMBER` or `SOURCE:ID`. An id is searched for among all ids of the store.

    Raises: ConfigError: there is no such source or id.
    """
    source = max((each for each in plan.stores if name.startswith(f"{each}:")), key=len, default=None)
    if source is None:
        raise ConfigError(
            f"document: expected SOURCE:NUMBER or SOURCE:ID, with a source of {', '.join(plan.stores)}, found {name!a}"
        )
    rest = name.removeprefix(f"{source}:")
    if rest.isascii() and rest.isdigit():
        return source, int(rest)
    return source, document_of_id(plan.stores[source], rest.removeprefix("id="))


def _microbatch_size(plan: Plan, step: int, world_size: int, microbatch_size: int | None, rank: int = 0) -> int:
    """The microbatch size in sequences, checked for this step."""
    try:
        plan.check_step(step)
        return check_split(plan.global_batch_size(step), rank, world_size, microbatch_size)
    except ValueError as error:
        raise ConfigError(str(error)) from error
