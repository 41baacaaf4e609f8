"""The order in plain Python integers, written from the specification in `tokenstore/order/__init__.py`.

Slow, and simple enough to check by reading. It imports nothing from the package. `tools/make_golden.py` writes the golden
vectors from it.
"""

import hashlib
import json
from fractions import Fraction
from math import gcd, lcm

MASK = (1 << 64) - 1


# ---- ORD-1
def mix(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def base_key(seed, purpose, name=""):
    text = json.dumps([seed, purpose, name]).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def counted_key(base, counter):
    return mix((base + (counter + 1) * 0x9E3779B97F4A7C15) & MASK)


# ---- ORD-2
def permute(i, n, key):
    if n < 65536:
        x = i
        for r in range(24):
            k = mix((mix(key) + r) & MASK)
            pivot = ((k >> 32) * n) >> 32
            y = (pivot - x) % n
            if mix(k ^ max(x, y)) % 2 == 1:
                x = y
        return x
    bits = (n - 1).bit_length()
    high_bits, low_bits = bits // 2, bits - bits // 2
    x = i
    while True:
        for r in range(8):
            low, high = x % 2**low_bits, x >> low_bits
            k = mix((mix(key) + r) & MASK)
            if r % 2 == 0:
                high ^= mix(low ^ k) % 2**high_bits
            else:
                low ^= mix(high ^ k) % 2**low_bits
            x = (high << low_bits) + low
        if x < n:
            return x


# ---- ORD-3
def integer_shares(weights):
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    exact = {name: weight for name, weight in exact.items() if weight > 0}
    scale = lcm(*(weight.denominator for weight in exact.values()))
    whole = {name: int(weight * scale) for name, weight in exact.items()}
    whole = {name: weight // gcd(*whole.values()) for name, weight in whole.items()}
    if sum(whole.values()) <= 2**20:
        return whole
    shares, rest = {}, dict(whole)
    while True:
        room, total = 2**20 - len(shares), sum(rest.values())
        small = [name for name in rest if rest[name] * room < total]
        if not small:
            break
        for name in small:
            shares[name] = 1
            del rest[name]
    exact = {name: Fraction(rest[name] * room, total) for name in rest}
    for name in rest:
        shares[name] = int(exact[name])
    left = room - sum(int(share) for share in exact.values())
    for name in sorted(rest, key=lambda name: (-(exact[name] - int(exact[name])), name))[:left]:
        shares[name] += 1
    return shares


# ---- ORD-4
def interleave(shares):
    """The source of each slot of one period."""
    names, period, d = sorted(shares), sum(shares.values()), 2 * len(shares) - 2
    count, slots = dict.fromkeys(names, 0), []
    for n in range(1, period + 1):
        choices = []
        for s in names:
            c, x = shares[s], count[s]
            if d == 0:
                choices.append((0, s))
            elif d * (c * n - x * period) >= period:
                choices.append(((period * (d * x + d - 1)) // (d * c) + 1, s))
        _, chosen = min(choices)
        slots.append(chosen)
        count[chosen] += 1
    return slots


# ---- ORD-5: one sequence at a time, with memory
def stream(stages, limits, on_exhausted, num_sequences):
    """[(source, number)] of the first `num_sequences` sequences of the run, or fewer if it ends.

    stages: [(first cursor, shares)]. With shares None the stage continues the one before.
    limits: {source: how many sequences it has at most}.
    """
    out, count, gone = [], {}, set()
    slots, n = None, 0
    for t, (_, own) in enumerate(stages):
        border = stages[t + 1][0] if t + 1 < len(stages) else num_sequences
        if own is not None:
            shares, slots, n = own, None, 0
        while len(out) < min(border, num_sequences):
            if slots is None:
                if on_exhausted == "drop":
                    gone |= {s for s in shares if count.get(s, 0) == limits.get(s, -1)}
                here = {s: c for s, c in shares.items() if s not in gone}
                if not here:
                    return out
                slots, n = interleave(here), 0
            s = slots[n % len(slots)]
            k = count.get(s, 0)
            if on_exhausted == "stop" and k == limits.get(s, -1):
                return out
            out.append((s, k))
            count[s], n = k + 1, n + 1
            if on_exhausted == "drop" and count[s] == limits.get(s, -1):
                slots = None
    return out


# ---- ORD-17
def ramp(g, h, s, m):
    """Sequences of each step of a ramp."""
    return [m * ((g * s + (h - g) * k) // (s * m)) for k in range(s)]


# ---- ORD-6
def step_rows(seed, step, cursor, size, shuffle=True):
    """The sequence at each row of a step, numbered over the whole run."""
    key = counted_key(base_key(seed, "step"), step)
    return [cursor + (permute(p, size, key) if shuffle else p) for p in range(size)]


# ---- ORD-7
def window_start(seed, name, num_tokens, length, k, shuffle=True):
    n = num_tokens // length
    epoch, i = divmod(k, n)
    if not shuffle:
        return i * length
    place = permute(i, n, counted_key(base_key(seed, "sequence", name), epoch))
    offset = counted_key(base_key(seed, "offset", name), epoch) % num_tokens
    return (offset + length * place) % num_tokens


def window(documents, start, length, cross=False):
    """(token ids, targets) of `length` tokens from `start`, on the circle of all documents' tokens."""
    tokens = [token for document in documents for token in document]
    last = {sum(map(len, documents[: i + 1])) - 1 for i in range(len(documents))}
    places = [(start + j) % len(tokens) for j in range(length)]
    ids = [tokens[at] for at in places]
    after = [tokens[(at + 1) % len(tokens)] for at in places]
    return ids, [-100 if at in last and not cross else token for at, token in zip(places, after, strict=True)]


def window_pieces(lengths, start, length):
    """Tokens of each piece in a window of the circle of documents with these lengths."""
    owner = [document for document, tokens in enumerate(lengths) for _ in range(tokens)]
    pieces = []
    for j in range(length):
        at = (start + j) % len(owner)
        if j == 0 or at == 0 or owner[at] != owner[at - 1]:
            pieces.append(0)
        pieces[-1] += 1
    return pieces


# ---- ORD-8
def rank_rows(size, rank, world_size, microbatch_size):
    """The rows of a step that a rank gets, in the order of its microbatches."""
    starts = range(rank * microbatch_size, size, world_size * microbatch_size)
    return [row for start in starts for row in range(start, start + microbatch_size)]


# ---- ORD-19
def cost(pieces, length, a=1, b=0):
    """What a row costs. pieces: the tokens of each of its pieces."""
    return a * sum(tokens * tokens for tokens in pieces) + b * length


def rows_by_cost(costs):
    """The row at each place."""
    return sorted(range(len(costs)), key=lambda p: (-costs[p], p))


def dealt_rows(costs, start, rank, world_size, microbatch_size):
    """The rows that a rank gets of the microbatch whose first place, over all ranks, is `start`."""
    rows = rows_by_cost(costs)
    mine = [None] * microbatch_size
    j = start // (world_size * microbatch_size)
    for u in range(world_size * microbatch_size):
        i, w = u // world_size, u % world_size
        if rank == (w if (i + j) % 2 == 0 else world_size - 1 - w):
            mine[i] = rows[start + u]
    return mine


def balanced_rows(costs, rank, world_size, microbatch_size):
    """The rows of a step that a rank gets, in the order of its microbatches."""
    if world_size == 1 and microbatch_size == len(costs):
        return list(range(len(costs)))
    starts = range(0, len(costs), world_size * microbatch_size)
    return [row for start in starts for row in dealt_rows(costs, start, rank, world_size, microbatch_size)]
