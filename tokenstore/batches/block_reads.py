"""Reads the rows of a microbatch from cached blocks (ORD-20), into a buffer of the microbatch."""

import numpy as np

from tokenstore.batches.byte_ranges import Ranges, room_of
from tokenstore.batches.coming import Coming
from tokenstore.batches.lane_rows import CachedBlocks
from tokenstore.store.block_ranges import Block
from tokenstore.store.remote.block_cache import Part
from tokenstore.store.remote.token_files import TokenFiles


def read_blocks(
    blocks: CachedBlocks, spans: np.ndarray, ranges: Ranges, numbers: np.ndarray, coming: Coming, files: TokenFiles
) -> Ranges:
    """Read what is in blocks, now or when they arrive, and let its spans point to the buffer.

    Args:
        blocks: those that have a place.
        spans: int64[n, SPAN_COLUMNS].
        ranges: what spans of the store consist of.
        numbers: int64[n], the sequence of each span.
        coming: gets the buffer, and a job for what is not there yet.
        files: of the store.

    Returns:
        The ranges that are in no block.
    """
    runs, in_run = _runs(blocks, ranges, numbers[ranges.spans])
    if not runs:
        return ranges
    buffer = coming.buffer(files, sum(room_of(stop - start) for _, _, start, stop in runs))
    parts: dict[tuple[int, int], tuple[Block, list[Part]]] = {}
    at, bases = 0, []
    for block, file, start, stop in runs:
        parts.setdefault(block.key, (block, []))[1].append((file, start, buffer[at : at + stop - start]))
        bases.append(buffer.ctypes.data + at - start)
        at += room_of(stop - start)
    for block, mine in parts.values():
        if blocks.sink.request(block, mine, coming.group):
            files.traffic.cache_hits += len(mine)
        else:
            files.traffic.cache_misses += len(mine)
    found = ranges.only(in_run >= 0)
    found.put_addresses(spans, np.array(bases, np.int64)[in_run[in_run >= 0]] + found.starts)
    return ranges.only(in_run < 0)


def _runs(
    blocks: CachedBlocks, ranges: Ranges, numbers: np.ndarray
) -> tuple[list[tuple[Block, int, int, int]], np.ndarray]:
    """(block, file, start, stop) of what to read; and int64[n], which of these each range is in, or -1.

    The spans of a row follow one another, so its ranges usually are one run.
    """
    runs: list[tuple[Block, int, int, int]] = []
    in_run, found = np.full(len(numbers), -1), dict[int, Block | None]()
    columns = zip(numbers.tolist(), ranges.files.tolist(), ranges.starts.tolist(), ranges.stops.tolist(), strict=True)
    last = -1
    for i, (number, file, start, stop) in enumerate(columns):
        if number not in found:
            found[number] = blocks.block_to_read(number)
        block = found[number]
        if block is None or block.offset(file, start, stop) is None:
            continue
        if last == number and runs[-1][1] == file and runs[-1][2] <= start <= runs[-1][3]:
            joined = max(runs[-1][3], stop)
            if block.offset(file, runs[-1][2], joined) is not None:
                runs[-1] = block, file, runs[-1][2], joined
                in_run[i] = len(runs) - 1
                continue
        runs.append((block, file, start, stop))
        in_run[i], last = len(runs) - 1, number
    return runs, in_run
