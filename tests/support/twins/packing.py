"""Packed sources in plain Python integers, written from ORD-12 to ORD-15 in `tokenstore/order/__init__.py`.

Slow, and simple enough to check by reading. It imports nothing from the package. A bin is a list, a group is a list of bins,
and each copy of a document is one entry.
"""

from bisect import bisect_left, insort
from functools import cache

from tests.support.twins.order import base_key, counted_key, permute

ATTEMPTS = [
    (2, 38),
    (5, 38),
    (10, 26),
    (25, 12),
    (50, 12),
    (None, 2),
    (None, 0),
]  # (c, f); c None: best fit for all pieces


# ---- ORD-12
def given_before(a, p, q):
    """F(a)."""
    return a * p // q


@cache
def copies(epoch, num_documents, p, q):
    """The position of each copy of an epoch, in order."""
    out = []
    for x in range(num_documents):
        out += [x] * (given_before(epoch + x + 1, p, q) - given_before(epoch + x, p, q))
    return out


def position(copy, epoch, num_documents, p, q):
    """The position of the document that is copy `copy` in an epoch; None if the epoch has no such copy."""
    places = copies(epoch, num_documents, p, q)
    return places[copy] if copy < len(places) else None


@cache
def by_length(lengths):
    """Position -> document. lengths: a tuple."""
    return sorted(range(len(lengths)), key=lambda document: (lengths[document], document))


def runs(lengths):
    """[(tokens, first position, number of documents)] of every length."""
    ordered = sorted(lengths)
    return [(tokens, ordered.index(tokens), ordered.count(tokens)) for tokens in sorted(set(ordered))]


def copy_rooms(lengths, p, q):
    """Tokens reserved for each copy."""
    rooms = []
    for tokens, first, number in runs(lengths):
        rooms += [tokens] * (given_before(first + number, p, q) - given_before(first, p, q))
    num_copies = -(-len(lengths) * p // q)
    return rooms + [max(lengths, default=0)] * (num_copies - len(rooms))


# ---- ORD-16
def slice_of(lengths, a=1, b=None, i=0, n=1, p=1, q=1):
    """The documents of a slice, by position. lengths: a tuple."""
    kept = [d for d in by_length(lengths) if a <= lengths[d] and (b is None or lengths[d] <= b)]
    kept = [d for x, d in enumerate(kept) if x % n == i]
    return [d for x, d in enumerate(kept) if (x + 1) * p // q > x * p // q]


def slice_size(count, i, n, p, q):
    """D'."""
    return max(-(-(count - i) // n), 0) * p // q


def slice_position(y, first, count, i, n, p, q):
    """g(y)."""
    return first + i + n * (-(-(y + 1) * q // p) - 1)


# ---- ORD-13, ORD-18
def slots(members, L, A=1):
    """Slots of every length class in order: {v: [(member, copy, j)]}. members: [(lengths, p, q)], sorted by name."""
    classes = {}
    for member, (lengths, p, q) in enumerate(members):
        for copy, tokens in enumerate(copy_rooms(lengths, p, q)):
            room = -(-tokens // A) * A
            for j in range(room // L):
                classes.setdefault(L, []).append((member, copy, j))
            if room % L > 0:
                classes.setdefault(room % L, []).append((member, copy, room // L))
    return classes


# ---- ORD-14: number of sequences
def num_bins_best_fit_decreasing(counts, L):
    """Put each piece into the fullest bin that has room for it, or into a new one."""
    num_bins, left = 0, []  # free tokens of every bin that is not full, ascending
    for v in sorted(counts, reverse=True):
        for _ in range(counts[v]):
            at = bisect_left(left, v)
            if at < len(left):
                r = left.pop(at)
            else:
                num_bins, r = num_bins + 1, L
            if r > v:
                insort(left, r - v)
    return num_bins


def num_sequences(counts, L, packing):
    num_pieces = sum(counts.values())
    if packing == "none":
        return num_pieces
    b = num_bins_best_fit_decreasing(counts, L)
    lb = -(-sum(v * h for v, h in counts.items()) // L)
    if lb < 32:
        return b
    q = 1000 if num_pieces >= 100_000 else 200
    return min(num_pieces, max(b + -(-b // (2 * q)), lb + -(-lb // q)))


# ---- ORD-14: bins
def place(entries, L, num_bins, joins):
    """Bins, each a list of placements; None if an entry does not fit. entries: [(worst fit?, v, a, b)]."""
    first = [[] for _ in range(num_bins)]
    groups = [first]  # in order of creation
    stacks = {L: [first]}  # free tokens -> groups, the top of the stack last
    for worst, v, a, b in entries:
        while a < b:
            rooms = [r for r, stack in stacks.items() if stack and r >= v and (joins > 0 or r == L)]
            if not rooms:
                return None
            r = max(rooms) if worst else min(rooms)
            empty, group = r == L, stacks[r][-1]
            m = 1 if worst else min(r // v, b - a)
            m = min(m, joins + 1 if empty else joins)
            cost = m - 1 if empty else m  # slots per bin that join a bin with content
            k = min(len(group), (b - a) // m)
            if cost > 0:
                k = min(k, joins // cost)
            made = group[:k]
            del group[:k]
            if not group:
                stacks[r].pop()
            for t, content in enumerate(made):
                content.append([(v, y) for y in range(a + t * m, a + (t + 1) * m)])
            groups.append(made)
            if r > m * v:
                stacks.setdefault(r - m * v, []).append(made)
            a, joins = a + k * m, joins - k * cost
    return [content for group in groups for content in group]


def cut_of(counts, L, c):
    """The greatest v for which pieces shorter than v hold at most c % of the tokens of pieces shorter than L."""
    hundredth = sum(v * h for v, h in counts.items() if v < L) // 100
    fits = [v for v in range(1, L + 1) if sum(u * h for u, h in counts.items() if u < v) <= c * hundredth]
    return max(fits)


def sub_entries(v, h, L, f, jitter, shuffle):
    """[(sort key, i, a, b)] of a length class; `jitter` is the epoch's key."""
    s = min(h, max(1, 16384 // L)) if shuffle and v < L else 1
    out = []
    for i in range(s):
        u = (counted_key(counted_key(jitter, v), i) >> 48) - 2**15
        out.append((v * (2**22 + f * u), i, i * h // s, (i + 1) * h // s))
    return out


def entries_of(counts, L, attempt, jitter, shuffle):
    """[(worst fit?, v, a, b)] in the order in which they are placed."""
    c, f = ATTEMPTS[attempt]
    cut = L + 1 if c is None else cut_of(counts, L, c)
    out = []
    for v, h in counts.items():
        for key, i, a, b in sub_entries(v, h, L, f, jitter, shuffle):
            out.append(((v != L, v < cut, -key, -v, i), (v >= cut, v, a, b)))
    return [entry for _, entry in sorted(out)]


def pack(counts, L, N, seed, name, epoch, shuffle):
    """(bins, index of the attempt that fitted). A bin is a list of slots (v, y), before the Fisher-Yates shuffle."""
    jitter = counted_key(base_key(seed, "jitter", name), epoch)
    for attempt in range(len(ATTEMPTS)) if shuffle else [len(ATTEMPTS) - 1]:
        bins = place(entries_of(counts, L, attempt, jitter, shuffle), L, N, sum(counts.values()) - N)
        if bins is not None:
            return [[slot for placement in reversed(content) for slot in placement] for content in bins], attempt
    raise AssertionError("every attempt failed")


def singles(counts, L):
    """Bins of packing `none`."""
    return [[(v, y)] for v in range(L, 0, -1) for y in range(counts.get(v, 0))]


# ---- ORD-15
def shuffled(slots_of_bin, key):
    """Shuffle by Fisher-Yates, with the row key of the sequence."""
    out = list(slots_of_bin)
    for t in range(len(out) - 1, 0, -1):
        other = ((counted_key(key, t) >> 32) * (t + 1)) >> 32
        out[t], out[other] = out[other], out[t]
    return out


@cache
def classes_of(members, L, packing, A=1):
    """(slots, counts, number of sequences) of a source."""
    classes = slots(members, L, A)
    counts = {v: len(places) for v, places in classes.items()}
    return classes, counts, num_sequences(counts, L, packing)


@cache
def bins_of(members, L, seed, name, epoch, packing, shuffle, A=1):
    """The bins of an epoch."""
    _, counts, n = classes_of(members, L, packing, A)
    return singles(counts, L) if packing == "none" else pack(counts, L, n, seed, name, epoch, shuffle)[0]


def slots_of_sequence(members, L, seed, name, k, packing, shuffle, A=1):
    """[(member, copy, j, v)] of the k-th sequence, in row order."""
    classes, counts, n = classes_of(members, L, packing, A)
    epoch, i = divmod(k, n)
    bins = bins_of(members, L, seed, name, epoch, packing, shuffle, A)
    if not shuffle:
        return [(*classes[v][y], v) for v, y in bins[i]]
    sequence_key = counted_key(base_key(seed, "sequence", name), epoch)
    class_key = counted_key(base_key(seed, "class", name), epoch)
    content = shuffled(bins[permute(i, n, sequence_key)], counted_key(base_key(seed, "row", name), k))
    return [(*classes[v][permute(y, counts[v], counted_key(class_key, v))], v) for v, y in content]


def packed_sequence(members, L, seed, name, k, packing, shuffle, A=1):
    """Pieces of the k-th sequence of a packed source, in row order: [(member, document, start, stop)]."""
    members = tuple((tuple(lengths), p, q) for lengths, p, q in members)
    epoch, pieces = k // classes_of(members, L, packing, A)[2], []
    for member, copy, j, v in slots_of_sequence(members, L, seed, name, k, packing, shuffle, A):
        lengths, p, q = members[member]
        x = position(copy, epoch, len(lengths), p, q)
        if x is not None:
            document = by_length(lengths)[x]
            start, stop = j * L, min(j * L + v, lengths[document])
            if start < stop:
                pieces.append((member, document, start, stop))
    return pieces


def rooms(members, L, seed, name, k, packing, shuffle, A=1):
    """The room of each piece of the k-th sequence, also of empty pieces, for the costs of ORD-19."""
    members = tuple((tuple(lengths), p, q) for lengths, p, q in members)
    return [v for *_, v in slots_of_sequence(members, L, seed, name, k, packing, shuffle, A)]


# ---- ORD-18
def places_in_row(sizes, L, A):
    """[(first position, position after its padding)] of pieces of these sizes in a row."""
    places, at = [], 0
    for size in sizes:
        stop = at + -(-size // A) * A
        places.append((at, stop))
        at = stop
    return [*places[:-1], (places[-1][0], L)] if places else []
