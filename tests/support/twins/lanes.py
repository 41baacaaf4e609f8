"""ORD-20 in plain Python integers: the line of an epoch is a list, and the lanes are read from it in turn."""

from functools import lru_cache
from math import gcd

from tests.support.twins import order as order_twin
from tests.support.twins.order import MASK, base_key, counted_key, mix, permute


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


@lru_cache(maxsize=256)
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


def window_start(
    seed: int, name: str, num_tokens: int, length: int, k: int, shuffle: bool, locality: tuple[int, int] | None
) -> int:
    """The stream position at which sequence k of a source of `concat` begins. locality: s and W, or None."""
    if locality is None:
        return order_twin.window_start(seed, name, num_tokens, length, k, shuffle)
    count = num_tokens // length
    epoch, i = divmod(k, count)
    offset = counted_key(base_key(seed, "offset", name), epoch) % num_tokens
    return (offset + length * windows(seed, name, count, *locality, epoch)[i]) % num_tokens


def owner(number: int, num_windows: int, block: int, lanes: int) -> int:
    """The lane of a number of an epoch."""
    count = min(lanes, -(-num_windows // block))
    stride = next(f for f in range(max(count * 618034 // 1000000, 1), count + 2) if gcd(f, count) == 1)
    return number % count * (stride if count >= 3 else 1) % count


def unpermute(image: int, n: int, key: int) -> int:
    """The inverse of `permute`: the rounds of ORD-2, each its own inverse, from the last to the first."""
    start, x = mix(key), image
    if n < 65536:
        for r in range(23, -1, -1):
            k = mix((start + r) & MASK)
            y = (((k >> 32) * n >> 32) - x) % n
            x = y if mix(k ^ max(x, y)) % 2 else x
        return x
    bits = (n - 1).bit_length()
    high_bits, low_bits = bits // 2, bits - bits // 2
    while True:
        for r in range(7, -1, -1):
            low, high = x % 2**low_bits, x >> low_bits
            k = mix((start + r) & MASK)
            if r % 2 == 0:
                high ^= mix(low ^ k) % 2**high_bits
            else:
                low ^= mix(high ^ k) % 2**low_bits
            x = (high << low_bits) + low
        if x < n:
            return x


def window(seed: int, name: str, num_windows: int, block: int, lanes: int, epoch: int, number: int) -> int:
    """The window of one number of an epoch, by the formulas of the text."""
    num_blocks = -(-num_windows // block)
    short = unpermute(num_blocks - 1, num_blocks, counted_key(base_key(seed, "block", name), epoch))
    count, last = min(lanes, num_blocks), num_windows - (num_blocks - 1) * block
    (a, t), (q, j) = divmod(num_windows, count), divmod(number, count)
    x = j * a + min(j, t) + q
    y = x + block - last if x >= short * block + last else x
    p, o = divmod(y, block)
    b = permute(p, num_blocks, counted_key(base_key(seed, "block", name), epoch))
    key = counted_key(counted_key(base_key(seed, "place", name), epoch), b)
    return b * block + permute(o, last if b == num_blocks - 1 else block, key)
