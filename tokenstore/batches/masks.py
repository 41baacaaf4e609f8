"""Loss masks (FMT-10): which tokens a model is not to learn to predict. Only for stores that have them."""

import numpy as np
from numba import carray

from tokenstore.batches.gather import IGNORE
from tokenstore.batches.spans import CONTINUES, LENGTH, SPAN_STORE, START, is_mapped, shard_of
from tokenstore.batches.tables import ADDRESS, FILE_TOKENS, FIRST_FILE, FIRST_MASK, FIRST_TOKEN, OK
from tokenstore.intrinsics import uint8_at
from tokenstore.jit import inline_kernel, kernel


@inline_kernel
def _read_bits(token: int, row: np.ndarray, clock: int, files: np.ndarray, report: np.ndarray, out: np.ndarray) -> bool:
    """The mask of stream tokens token, token + 1, ... of a store, all in one shard, into bool `out`; False for `report`.

    `out` stays as it is, all True, where the store has no masks.
    """
    if row[FIRST_MASK] < 0:
        return True
    shard = shard_of(token, row, files)
    mask = row[FIRST_MASK] + shard - row[FIRST_FILE] - 1
    if not is_mapped(mask, clock, files, report):
        return False
    at = token - files[shard, FIRST_TOKEN]
    bits = carray(uint8_at(files[mask, ADDRESS]), ((files[shard, FILE_TOKENS] + 7) // 8,))
    for i in range(out.size):
        out[i] = (bits[(at + i) >> 3] >> ((at + i) & 7)) & 1
    return True


@kernel
def mask(
    clock: int,
    stores: np.ndarray,
    files: np.ndarray,
    report: np.ndarray,
    starts: np.ndarray,
    spans: np.ndarray,
    in_loss: np.ndarray,
    targets: np.ndarray,
) -> None:
    """Leave masked tokens out of the microbatch that `gather` filled last.

    in_loss: bool[B, L + 1], filled: the mask of each token, and in the last column that of the token behind the row; True
    on padding. targets: int64[B, L]: IGNORE where the token to predict is masked.
    """
    length = targets.shape[1]
    for r in range(targets.shape[0]):
        at = 0
        in_loss[r, :] = True
        for j in range(starts[r], starts[r + 1]):
            size = spans[j, LENGTH] + spans[j, CONTINUES]  # what is behind a span is overwritten by the next one
            stop = min(at + size, length + 1)
            if not _read_bits(spans[j, START], stores[spans[j, SPAN_STORE]], clock, files, report, in_loss[r, at:stop]):
                return
            at += spans[j, LENGTH]
        for i in range(length):
            if not in_loss[r, i + 1]:
                targets[r, i] = IGNORE
    report[0] = OK
