"""The second hot kernel: fills all arrays of a microbatch in one pass over its spans.

Tokens are read in chunks of CHUNK = 512, and each chunk is written to all arrays while it is in the first-level cache.
Before each chunk, the kernel prefetches the same number of bytes of the next microbatch. Sequences are far apart in
memory, so without prefetching each of them would begin with a wait for memory. The waits took half of the time of a
batch of 8 x 2048. With larger chunks, the prefetched lines have too little time to arrive. With smaller chunks, the
loops are too short for vector instructions to pay off.

The kernel also finds the largest id, so that an id outside the vocabulary never reaches a model.
"""

import numpy as np

from tokenstore.batches.block import (
    AHEAD_BYTES,
    AHEAD_SPAN,
    AHEAD_STOP,
    ALIGN,
    BORDERS,
    CROSS,
    DOCUMENTS,
    EXTRA_BEFORE,
    EXTRA_IDS,
    FLAT_LABELS,
    IDS,
    IGNORED_TARGET,
    LABEL_MASK,
    LABELS,
    LONGEST,
    LOSS_MASK,
    MASK_SCRATCH,
    NEXT_ROWS,
    NEXT_SPANS,
    NEXT_STARTS,
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
    block_at,
    report,
)
from tokenstore.batches.masks import read_bits, widen_in_loss
from tokenstore.batches.spans import (
    CONTINUES,
    DOCUMENT_START,
    LENGTH,
    MASK,
    MEMORY,
    SPAN_COLUMNS,
    SPAN_STORE,
    START,
)
from tokenstore.batches.tables import BAD_ID, OK
from tokenstore.batches.token_copies import copy_ids, fill_ids, widen
from tokenstore.intrinsics import array_at, float32_at, int32_at, int64_at, prefetch, uint8_at, uint16_at, uint32_at
from tokenstore.jit import Integer, inline_kernel, kernel

IGNORE = -100  # the target that torch's losses ignore by default
CHUNK = 512  # tokens
LINE_BYTES = 64


# ---- loops over a chunk. They take addresses, because passing an array updates its reference count; `out` is an
# address too


@inline_kernel
def _largest(tokens: Integer, token_bytes: Integer, count: Integer) -> Integer:
    """The largest of `count` tokens; 0 if there are none."""
    if token_bytes == 2:
        short = array_at(uint16_at(tokens), (count,))
        most = np.uint16(0)
        for i in range(count):
            most = max(most, short[i])
        return np.int64(most)
    words = array_at(uint32_at(tokens), (count,))
    largest = np.uint32(0)
    for i in range(count):
        largest = max(largest, words[i])
    return np.int64(largest)


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


# ---- prefetching the next microbatch


@inline_kernel
def _begin_ahead(block: np.ndarray) -> None:
    """Begin prefetching at the first span of the next microbatch."""
    block[AHEAD_SPAN], block[AHEAD_BYTES], block[AHEAD_STOP] = 0, 0, 0
    if block[NEXT_ROWS]:
        starts = array_at(int64_at(block[NEXT_STARTS]), (block[NEXT_ROWS] + 1,))
        block[AHEAD_SPAN], block[AHEAD_STOP] = starts[0], starts[block[NEXT_ROWS]]


@inline_kernel
def _prefetch_ahead(block: np.ndarray, num_bytes: Integer) -> None:
    """Prefetch the following `num_bytes` of the next microbatch, in the order in which they will be read.

    AHEAD_SPAN and AHEAD_BYTES record the progress between calls. Without a next microbatch, AHEAD_STOP is 0 and nothing
    happens.
    """
    spans = array_at(int64_at(block[NEXT_SPANS]), (block[AHEAD_STOP], SPAN_COLUMNS))
    while num_bytes > 0 and block[AHEAD_SPAN] < block[AHEAD_STOP]:
        span = spans[block[AHEAD_SPAN]]
        size = (span[LENGTH] + span[CONTINUES]) * block[TOKEN_BYTES]
        part = min(num_bytes, size - block[AHEAD_BYTES])
        first = span[MEMORY] + block[AHEAD_BYTES]
        for line in range(first & -LINE_BYTES, first + part, LINE_BYTES):
            prefetch(line)
        if span[MASK]:  # one cache line of the mask has the bits of 512 tokens
            prefetch((span[MASK] >> 3) + (block[AHEAD_BYTES] // block[TOKEN_BYTES] >> 3))
        num_bytes -= part
        block[AHEAD_BYTES] += part
        if block[AHEAD_BYTES] == size:
            block[AHEAD_SPAN] += 1
            block[AHEAD_BYTES] = 0


# ---- copying the microbatch


@inline_kernel
def _copy_chunk(
    block: np.ndarray, span: np.ndarray, done: Integer, count: Integer, at: Integer, document: Integer
) -> Integer:
    """Copy a chunk of a span to all arrays. Returns the largest id read.

    The target of a token is the next token of its document, so targets are the same tokens, read one token later. The
    last token of a document has no next token. `pairs` counts the tokens of the chunk that have one, inside the span or
    directly after it.

    Args:
        block: the argument block.
        span: int64[SPAN_COLUMNS].
        done: tokens of the span that are copied already.
        count: tokens of the chunk, at most CHUNK.
        at: index of the first element to write, in the flattened arrays.
        document: number of the span in its row, for DOCUMENTS.
    """
    token_bytes, tokens = block[TOKEN_BYTES], span[MEMORY] + done * block[TOKEN_BYTES]
    pairs = min(count, span[LENGTH] + span[CONTINUES] - 1 - done)
    num_read = max(count, pairs + 1)
    in_loss: Integer = np.int64(0)  # address of one byte per token read; 0 if all are in the loss
    if span[MASK]:
        in_loss = read_bits(span[MASK] + done, num_read, block[MASK_SCRATCH])
    if block[IDS]:
        copy_ids(block, tokens, token_bytes, count, at)
    if block[TARGETS]:
        if in_loss:
            widen_in_loss(tokens + token_bytes, token_bytes, pairs, in_loss + 1, IGNORE, block[TARGETS] + 8 * at)
        else:
            widen(tokens + token_bytes, token_bytes, pairs, block[TARGETS] + 8 * at)
    if block[LABELS]:
        if in_loss:
            widen_in_loss(tokens, token_bytes, count, in_loss, IGNORE, block[LABELS] + 8 * at)
        else:
            widen(tokens, token_bytes, count, block[LABELS] + 8 * at)
    if block[POSITIONS]:
        _fill(block[POSITIONS] + 8 * at, count, done, 1)
    if block[DOCUMENTS]:
        _fill(block[DOCUMENTS] + 8 * at, count, document, 0)
    return _largest(tokens, token_bytes, num_read)


@inline_kernel
def _put_first(block: np.ndarray, span: np.ndarray, row_at: Integer, at: Integer) -> None:
    """Write what depends on the boundary before a span: the target of the token before it, or its own first label.

    If targets cross documents, the span's first token is the target of the token before it. Otherwise nothing predicts
    the first token of a document or of a row's later spans, so it has no label.
    """
    if block[CROSS]:
        if at > row_at and block[TARGETS]:
            target = span[MEMORY]
            if span[MASK]:
                in_loss = read_bits(span[MASK], 1, block[MASK_SCRATCH])
                widen_in_loss(target, block[TOKEN_BYTES], 1, in_loss, IGNORE, block[TARGETS] + 8 * (at - 1))
            else:
                widen(target, block[TOKEN_BYTES], 1, block[TARGETS] + 8 * (at - 1))
    elif block[LABELS] and (at > row_at or span[START] == span[DOCUMENT_START]):
        _put(block[LABELS] + 8 * at, IGNORE)


@inline_kernel
def _put_extra_id(block: np.ndarray, span: np.ndarray, used: Integer, at: Integer, stop: Integer) -> None:
    """Write the token after a row, if it follows the first `used` tokens of this span, which is the last one of the row.

    at: element after these tokens. stop: element after the row.
    """
    if block[EXTRA_IDS] and at == stop and span[LENGTH] + span[CONTINUES] > used:
        copy_ids(block, span[MEMORY] + used * block[TOKEN_BYTES], block[TOKEN_BYTES], 1, at)


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
    done: Integer = np.int64(0)
    while done < size:
        count = min(CHUNK, size - done)
        # One line more than the chunk, because the next microbatch also reads the tokens after its spans
        _prefetch_ahead(block, count * block[TOKEN_BYTES] + LINE_BYTES)
        largest = max(largest, _copy_chunk(block, span, done, count, at + done, document))
        done += count
    if size > 0:
        _put_border(block, at, size)
        if span[LENGTH] + span[CONTINUES] == size and block[TARGETS]:  # the document ends here
            _put(block[TARGETS] + 8 * (at + size - 1), IGNORE)
    else:
        largest = _largest(span[MEMORY], block[TOKEN_BYTES], 1)
    _put_extra_id(block, span, size, at + size, row_at + length)
    _put_first(block, span, row_at, at)
    return largest


@inline_kernel
def _pad(block: np.ndarray, at: Integer, count: Integer, position: Integer) -> None:
    """Fill `count` elements of all arrays with padding from element `at` on; positions are counted from `position`."""
    if block[IDS]:
        fill_ids(block, block[PAD_ID], count, at)
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
    report is OK, or BAD_ID for an id outside the vocabulary.

    address: of the argument block.
    """
    block = block_at(address)
    length = block[SEQUENCE_LENGTH]
    starts = array_at(int64_at(block[STARTS]), (block[NUM_ROWS] + 1,))
    spans = array_at(int64_at(block[SPANS]), (starts[block[NUM_ROWS]], SPAN_COLUMNS))
    block[NUM_BORDERS] = block[LONGEST] = 0
    _begin_ahead(block)
    for r in range(block[NUM_ROWS]):
        row_at = at = r * length
        block[EXTRA_BEFORE] = r * block[EXTRA_IDS]
        if block[IDS] and block[EXTRA_IDS]:
            fill_ids(block, block[PAD_ID], 1, row_at + length)
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
    if block[BORDERS]:
        array_at(int32_at(block[BORDERS]), (block[NUM_BORDERS] + 1,))[block[NUM_BORDERS]] = block[NUM_ROWS] * length
    report(block, OK, 0, 0, 0, 0)
