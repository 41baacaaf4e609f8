"""The second hot kernel: fills all arrays of a microbatch in one pass over its spans.

Tokens are copied in chunks of 32, one cache line of uint16, and each chunk is written to all arrays while it is in
registers. Outputs are written in whole cache lines where they allow it. A span of at least one chunk needs no loop for
what is left of it: its last chunk ends where the span ends, and writes some values again.

Sequences are far apart in memory, so each would begin with a wait for memory. So `ahead` prefetches the next microbatch.

The kernel also finds the largest id, so that an id outside the vocabulary never reaches a model.
"""

import numpy as np

from tokenstore.batches.ahead import begin_ahead, prefetch_line, prefetch_rest
from tokenstore.batches.block import (
    ALIGN,
    BORDERS,
    CROSS,
    DOCUMENTS,
    EXTRA_BEFORE,
    EXTRA_IDS,
    FLAT_LABELS,
    ID_BYTES,
    IDS,
    IGNORED_TARGET,
    LABEL_MASK,
    LABELS,
    LONGEST,
    LOSS_MASK,
    NUM_BORDERS,
    NUM_ROWS,
    PAD_ID,
    PIECE_TOKENS,
    POSITIONS,
    SEQUENCE_LENGTH,
    SPANS,
    STARTS,
    TARGETS,
    TOKEN_BYTES,
    VOCAB_SIZE,
    ZEROS,
    block_at,
    report,
)
from tokenstore.batches.masks import ALL_BITS, bits_at
from tokenstore.batches.spans import CONTINUES, DOCUMENT_START, LENGTH, MASK, MEMORY, SPAN_COLUMNS, SPAN_STORE, START
from tokenstore.batches.tables import BAD_ID, OK, ZEROS_READ
from tokenstore.batches.token_copies import (
    copy_chunk_in_loss,
    copy_chunk_of_ids,
    copy_ids,
    copy_in_loss,
    fill_ids,
    largest_in_chunk,
    token_at,
)
from tokenstore.intrinsics import CHUNK, array_at, fill_chunk, float32_at, int32_at, int64_at, uint8_at
from tokenstore.jit import Integer, inline_kernel, kernel

IGNORE = -100  # the target that torch's losses ignore by default
ELEMENTS_PER_LINE = 8  # int64


# ---- loops. They take addresses, because passing an array updates its reference count; `out` is an address too


@inline_kernel
def _fill(out: Integer, count: Integer, value: Integer, step: Integer) -> None:
    """Write value, value + step, ... to int64[count]."""
    wide = array_at(int64_at(out), (count,))
    for i in range(count):
        wide[i] = value + i * step


@inline_kernel
def _put(out: Integer, value: Integer) -> None:
    """Write one int64."""
    array_at(int64_at(out), (1,))[0] = value


@inline_kernel
def _id_at(block: np.ndarray, at: Integer) -> Integer:
    """Address of an element of IDS. at: its number in the flattened array, without the extra elements of rows."""
    return block[IDS] + block[ID_BYTES] * (at + block[EXTRA_BEFORE])


# ---- copying the microbatch


@inline_kernel
def _in_loss(span: np.ndarray, token: Integer, count: Integer) -> np.uint64:
    """Which of `count` tokens, at most a chunk, are in the loss; the first is number `token` of the span."""
    return bits_at(span[MASK] + token, count) if span[MASK] else ALL_BITS


@inline_kernel
def _copy_chunks(
    block: np.ndarray, span: np.ndarray, size: Integer, pairs: Integer, at: Integer, document: Integer
) -> Integer:
    """Copy a span to all arrays; see `_copy_tokens`. Requires pairs >= CHUNK."""
    token_bytes, first = block[TOKEN_BYTES], span[MEMORY]
    largest: Integer = np.int64(0)
    ids, targets, labels = block[IDS], block[TARGETS], block[LABELS]
    positions, documents = block[POSITIONS], block[DOCUMENTS]
    # All chunks but the first and the last begin at a line of the output
    for start in range(-(at % ELEMENTS_PER_LINE), size, CHUNK):
        for _ in range(token_bytes >> 1):  # as many lines as the block has
            prefetch_line(block)
        done = max(min(start, size - CHUNK), 0)
        tokens = first + done * token_bytes
        if ids:
            copy_chunk_of_ids(tokens, token_bytes, _id_at(block, at + done), block[ID_BYTES])
        if targets:
            pair = max(min(start, pairs - CHUNK), 0)
            in_loss = _in_loss(span, pair + 1, CHUNK)
            out = targets + 8 * (at + pair)
            copy_chunk_in_loss(first + (pair + 1) * token_bytes, token_bytes, in_loss, IGNORE, out)
        if labels:
            in_loss = _in_loss(span, done, CHUNK)
            copy_chunk_in_loss(tokens, token_bytes, in_loss, IGNORE, labels + 8 * (at + done))
        if positions:
            fill_chunk(int64_at(positions + 8 * (at + done)), done, 1)
        if documents:
            fill_chunk(int64_at(documents + 8 * (at + done)), document, 0)
        largest = max(largest, largest_in_chunk(tokens, token_bytes))
    return largest


@inline_kernel
def _copy_few(
    block: np.ndarray, span: np.ndarray, size: Integer, pairs: Integer, at: Integer, document: Integer
) -> Integer:
    """Copy a span that is too short for `_copy_chunks`; see `_copy_tokens`."""
    token_bytes, tokens = block[TOKEN_BYTES], span[MEMORY]
    largest: Integer = np.int64(0)
    if block[IDS]:
        copy_ids(tokens, token_bytes, size, _id_at(block, at), block[ID_BYTES])
    if block[TARGETS] and pairs > 0:
        in_loss, out = _in_loss(span, 1, pairs), block[TARGETS] + 8 * at
        copy_in_loss(tokens + token_bytes, token_bytes, pairs, in_loss, IGNORE, out)
    if block[LABELS]:
        copy_in_loss(tokens, token_bytes, size, _in_loss(span, 0, size), IGNORE, block[LABELS] + 8 * at)
    if block[POSITIONS]:
        _fill(block[POSITIONS] + 8 * at, size, 0, 1)
    if block[DOCUMENTS]:
        _fill(block[DOCUMENTS] + 8 * at, size, document, 0)
    for i in range(size):
        largest = max(largest, token_at(tokens + i * token_bytes, token_bytes))
    return largest


@inline_kernel
def _copy_tokens(block: np.ndarray, span: np.ndarray, size: Integer, at: Integer, document: Integer) -> Integer:
    """Copy the first `size` tokens of a span, at least one, to all arrays. Returns the largest id read.

    The target of a token is the next token of its document, so targets are the same tokens, read one token later. The
    last token of a document has no next token. `pairs` is the number of tokens that have one, inside the span or
    directly after it.

    Args:
        block: the argument block.
        span: int64[SPAN_COLUMNS].
        size: tokens.
        at: index of the first element to write, in the flattened arrays.
        document: number of the span in its row, for DOCUMENTS.
    """
    pairs = min(size, span[LENGTH] + span[CONTINUES] - 1)
    if pairs >= CHUNK:
        largest = _copy_chunks(block, span, size, pairs, at, document)
    else:
        prefetch_line(block)
        largest = _copy_few(block, span, size, pairs, at, document)
    return max(largest, token_at(span[MEMORY] + pairs * block[TOKEN_BYTES], block[TOKEN_BYTES]))


@inline_kernel
def _put_first(block: np.ndarray, span: np.ndarray, row_at: Integer, at: Integer) -> None:
    """Write what depends on the boundary before a span: the target of the token before it, or its own first label.

    If targets cross documents, the span's first token is the target of the token before it. Otherwise nothing predicts
    the first token of a document or of a row's later spans, so it has no label.
    """
    if block[CROSS]:
        if at > row_at and block[TARGETS]:
            out = block[TARGETS] + 8 * (at - 1)
            copy_in_loss(span[MEMORY], block[TOKEN_BYTES], 1, _in_loss(span, 0, 1), IGNORE, out)
    elif block[LABELS] and (at > row_at or span[START] == span[DOCUMENT_START]):
        _put(block[LABELS] + 8 * at, IGNORE)


@inline_kernel
def _put_extra_id(block: np.ndarray, span: np.ndarray, used: Integer, at: Integer, stop: Integer) -> None:
    """Write the token after a row, if it follows the first `used` tokens of this span, which is the last one of the row.

    at: element after these tokens. stop: element after the row.
    """
    if block[EXTRA_IDS] and at == stop and span[LENGTH] + span[CONTINUES] > used:
        tokens = span[MEMORY] + used * block[TOKEN_BYTES]
        copy_ids(tokens, block[TOKEN_BYTES], 1, _id_at(block, at), block[ID_BYTES])


@inline_kernel
def _put_border(block: np.ndarray, at: Integer, size: Integer) -> None:
    """Record that a piece, or padding, of `size` tokens begins at element `at`."""
    if block[BORDERS]:
        array_at(int32_at(block[BORDERS]), (block[NUM_BORDERS] + 1,))[block[NUM_BORDERS]] = at
        if block[PIECE_TOKENS]:
            array_at(int32_at(block[PIECE_TOKENS]), (block[NUM_BORDERS] + 1,))[block[NUM_BORDERS]] = size
        block[NUM_BORDERS] += 1
        block[LONGEST] = max(block[LONGEST], size)


@inline_kernel
def _copy_span(block: np.ndarray, span: np.ndarray, row_at: Integer, at: Integer, document: Integer) -> Integer:
    """Copy a span to elements at, at + 1, ... of all arrays. Returns the largest id read. The row begins at `row_at`.

    If targets cross documents, the spans of a row have one token more than the row. That token is only a target. So the
    last span can be longer than what is left of the row, or consist of that token alone (size 0).
    """
    length = block[SEQUENCE_LENGTH]
    size = min(span[LENGTH], row_at + length - at)
    largest: Integer = np.int64(0)
    if size > 0:
        largest = _copy_tokens(block, span, size, at, document)
        _put_border(block, at, size)
        if span[LENGTH] + span[CONTINUES] == size and block[TARGETS]:  # the document ends here
            _put(block[TARGETS] + 8 * (at + size - 1), IGNORE)
    else:
        largest = token_at(span[MEMORY], block[TOKEN_BYTES])
    _put_extra_id(block, span, size, at + size, row_at + length)
    _put_first(block, span, row_at, at)
    return largest


@inline_kernel
def _pad(block: np.ndarray, at: Integer, count: Integer, position: Integer) -> None:
    """Fill `count` elements of all arrays with padding from element `at` on; positions are counted from `position`."""
    if block[IDS]:
        fill_ids(block[PAD_ID], count, _id_at(block, at), block[ID_BYTES])
    if block[TARGETS]:
        _fill(block[TARGETS] + 8 * at, count, IGNORE, 0)
    if block[LABELS]:
        _fill(block[LABELS] + 8 * at, count, IGNORE, 0)
    if block[POSITIONS]:
        _fill(block[POSITIONS] + 8 * at, count, position, 1)
    if block[DOCUMENTS]:
        _fill(block[DOCUMENTS] + 8 * at, count, -1, 0)


@inline_kernel
def _end_piece(block: np.ndarray, row_at: Integer, at: Integer, tokens: Integer, is_last: bool) -> Integer:
    """Fill the padding after a piece of `tokens` tokens that ends before element `at` (ORD-18). Returns where it ends.

    The next piece begins at a multiple of ALIGN. After the last piece the rest of the row is padding of that piece.
    """
    stop = row_at + block[SEQUENCE_LENGTH] if is_last else at + -(at - row_at) % block[ALIGN]
    _pad(block, at, stop - at, tokens)
    return stop


@inline_kernel
def _put_masks(block: np.ndarray, row_at: Integer) -> None:
    """Compute the masks of a row from its targets."""
    length = block[SEQUENCE_LENGTH]
    targets = array_at(int64_at(block[TARGETS] + 8 * row_at), (length,))
    if block[LOSS_MASK]:
        shares = array_at(float32_at(block[LOSS_MASK] + 4 * row_at), (length,))
        for i in range(length):
            shares[i] = targets[i] != IGNORE
    if block[LABEL_MASK]:
        flags = array_at(uint8_at(block[LABEL_MASK] + row_at), (length,))
        for i in range(length):
            flags[i] = targets[i] != IGNORE


@inline_kernel
def _replace_ignore(out: Integer, count: Integer, ignored: Integer) -> None:
    """Write `ignored` in place of IGNORE in int64[count]."""
    values = array_at(int64_at(out), (count,))
    for i in range(count):
        value = values[i]
        values[i] = ignored if value == IGNORE else value


@inline_kernel
def _end_row(block: np.ndarray, row_at: Integer, at: Integer) -> None:
    """Fill the rest of a row with padding from element `at` on, and complete what depends on all of its targets.

    The masks are computed before IGNORED_TARGET replaces IGNORE, because it may be a token id.
    """
    length = block[SEQUENCE_LENGTH]
    left = row_at + length - at
    if left > 0:
        _put_border(block, at, 0 if block[ALIGN] else left)
        _pad(block, at, left, 0)
    if block[LABELS] and block[FLAT_LABELS]:
        _put(block[LABELS] + 8 * row_at, IGNORE)
    if block[TARGETS]:
        _put_masks(block, row_at)
    if block[IGNORED_TARGET] != IGNORE:
        if block[TARGETS]:
            _replace_ignore(block[TARGETS] + 8 * row_at, length, block[IGNORED_TARGET])
        if block[LABELS]:
            _replace_ignore(block[LABELS] + 8 * row_at, length, block[IGNORED_TARGET])


@kernel
def gather(address: int) -> None:
    """Fill the arrays of a planned microbatch, and prefetch the tokens of the next one.

    Reads STARTS int64[NUM_ROWS + 1] and SPANS int64[n, SPAN_COLUMNS]; fills each array of the block whose address is
    not 0. The addresses in the spans are not checked: the planner has checked that they are inside mapped files. The
    report is OK, BAD_ID for an id outside the vocabulary, or ZEROS_READ.

    address: of the argument block.
    """
    block = block_at(address)
    length = block[SEQUENCE_LENGTH]
    starts = array_at(int64_at(block[STARTS]), (block[NUM_ROWS] + 1,))
    spans = array_at(int64_at(block[SPANS]), (starts[block[NUM_ROWS]], SPAN_COLUMNS))
    block[NUM_BORDERS] = block[LONGEST] = 0
    begin_ahead(block)
    for r in range(block[NUM_ROWS]):
        row_at = at = r * length
        block[EXTRA_BEFORE] = r * block[EXTRA_IDS]
        if block[IDS] and block[EXTRA_IDS]:
            fill_ids(block[PAD_ID], 1, _id_at(block, row_at + length), block[ID_BYTES])
        for j in range(starts[r], starts[r + 1]):
            span = spans[j]
            largest = _copy_span(block, span, row_at, at, j - starts[r])
            if largest >= block[VOCAB_SIZE]:
                report(block, BAD_ID, span[SPAN_STORE], span[START], block[VOCAB_SIZE], largest)
                return
            at += span[LENGTH]
            if block[ALIGN]:
                at = _end_piece(block, row_at, at, span[LENGTH], j + 1 == starts[r + 1])
        _end_row(block, row_at, at)
    prefetch_rest(block)
    if block[BORDERS]:
        array_at(int32_at(block[BORDERS]), (block[NUM_BORDERS] + 1,))[block[NUM_BORDERS]] = block[NUM_ROWS] * length
    zeros = array_at(int64_at(block[ZEROS]), (1,))[0]  # read last: none of the tokens may be made of zeros
    report(block, ZEROS_READ if zeros else OK, 0, 0, 0, 0)
