"""ORD-20 in plain Python integers: the line of an epoch is a list, and the lanes are read from it in turn."""

from math import gcd

from tests.support.twins.order import base_key, counted_key, permute


def line(seed: int, name: str, num_windows: int, block: int, epoch: int) -> list[int]:
    """The windows of an epoch in the order of the line: all blocks, permuted, each with its windows permuted."""
    num_blocks = -(-num_windows // block)
    blocks = [list(range(num_windows))[b * block : (b + 1) * block] for b in range(num_blocks)]
    block_key = counted_key(base_key(seed, "block", name), epoch)
    place_key = counted_key(base_key(seed, "place", name), epoch)
    out = []
    for p in range(num_blocks):
        b = permute(p, num_blocks, block_key)
        key = counted_key(place_key, b)
        out += [blocks[b][permute(o, len(blocks[b]), key)] for o in range(len(blocks[b]))]
    return out


def windows(seed: int, name: str, num_windows: int, block: int, lanes: int, epoch: int) -> list[int]:
    """The window of each number of an epoch: one window of each stretch in turn."""
    order = line(seed, name, num_windows, block, epoch)
    count = min(lanes, -(-num_windows // block))
    size, longer = divmod(num_windows, count)
    stretches = []
    for j in range(count):
        take = size + (j < longer)
        stretches.append(order[:take])
        order = order[take:]
    return [stretch[q] for q in range(size + 1) for stretch in stretches if q < len(stretch)]


def owner(number: int, num_windows: int, block: int, lanes: int) -> int:
    """The lane of a number of an epoch."""
    count = min(lanes, -(-num_windows // block))
    stride = next(f for f in range(max(count * 618034 // 1000000, 1), count + 2) if gcd(f, count) == 1)
    return number % count * (stride if count >= 3 else 1) % count


def window(seed: int, name: str, num_windows: int, block: int, lanes: int, epoch: int, number: int, short: int) -> int:
    """The window of one number of an epoch, by the formulas; `short` is the place of the last block."""
    num_blocks = -(-num_windows // block)
    count, last = min(lanes, num_blocks), num_windows - (num_blocks - 1) * block
    (a, t), (q, j) = divmod(num_windows, count), divmod(number, count)
    x = j * a + min(j, t) + q
    y = x + block - last if x >= short * block + last else x
    p, o = divmod(y, block)
    b = permute(p, num_blocks, counted_key(base_key(seed, "block", name), epoch))
    key = counted_key(counted_key(base_key(seed, "place", name), epoch), b)
    return b * block + permute(o, last if b == num_blocks - 1 else block, key)
