"""Tables of integers that kernels read: 4 bytes per number if that is enough for all of them, otherwise 8.

A plan of 1,000 sources has thousands of these tables. Nearly all are narrow, which also keeps more of them in the
processor's caches.
"""

import numpy as np

from tokenstore.jit import Integer, inline_kernel

NARROW, WIDE = range(2)  # base-2 logarithm of the rows of 4-byte numbers per row of a table


def packed_words(rows: np.ndarray, wide: int) -> np.ndarray:
    """Convert a table to the form that `word` reads: int64[n, columns] -> uint32[n << wide, columns].

    In a wide table the lower halves of a row are followed by the upper halves. So the columns have the same places in
    both kinds of tables, and a kernel finds a number by a shift.

    rows: numbers in 0..2**63 - 1; if `wide` is NARROW, below 2**32.
    """
    if not wide:
        return rows.astype(np.uint32)
    return np.stack([rows & 0xFFFFFFFF, rows >> 32], axis=1).reshape(-1, rows.shape[1]).astype(np.uint32)


def unpacked_words(table: np.ndarray, wide: int) -> np.ndarray:
    """The inverse of `packed_words`."""
    numbers = table.astype(np.int64)
    return numbers[::2] | numbers[1::2] << 32 if wide else numbers


@inline_kernel
def word(table: np.ndarray, row: Integer, column: int, wide: int) -> Integer:
    """A number of a table, see `packed_words`."""
    number: Integer = np.int64(table[row << wide, column])
    if wide:  # the same for all numbers of a source, so the processor predicts it
        number |= np.int64(table[(row << wide) + 1, column]) << 32
    return number


@inline_kernel
def put_word(table: np.ndarray, row: Integer, column: int, wide: int, number: Integer) -> None:
    """Write a number that `word` reads."""
    table[row << wide, column] = number & 0xFFFFFFFF
    if wide:
        table[(row << wide) + 1, column] = number >> 32


@inline_kernel
def both_parts(number: Integer, bits: int) -> tuple[Integer, Integer]:
    """The parts of a number that consists of two: the upper one, and the one in its lowest `bits` bits."""
    return number >> bits, number & ((1 << bits) - 1)
