"""Which source each slot of a period goes to (ORD-4): Tijdeman's chairman assignment.

R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980).

One period takes O(P log k) time for P slots and k sources. A source is either in the bucket of the first slot for which
it is eligible, or, once eligible, in a heap sorted by deadline. No slot examines all sources.
"""

from dataclasses import dataclass

import numpy as np

from tokenstore.jit import inline_kernel, kernel


@dataclass(frozen=True)
class Interleave:
    """One period of P slots over k sources.

    Attributes:
        source: int32[P], the source of each slot.
        earlier: int32[P], number of earlier slots of the same source.
        places: int32[P], the slots of source 0 in rising order, then those of source 1, and so on.
        first: int64[k + 1], index in `places` of each source's first slot.
    """

    source: np.ndarray
    earlier: np.ndarray
    places: np.ndarray
    first: np.ndarray

    @property
    def period(self) -> int:
        """Number of slots in a period."""
        return self.source.size

    def count(self, source: int, num_slots: int) -> int:
        """Number of slots of `source` among the first `num_slots`, with the period repeated without end."""
        share = int(self.first[source + 1] - self.first[source])
        periods, rest = divmod(num_slots, self.period)
        places = self.places[self.first[source] : self.first[source + 1]]
        return periods * share + int(np.searchsorted(places, rest))

    def place(self, source: int, number: int) -> int:
        """Slot of sequence `number` of `source`. Both count from 0, over all periods."""
        share = int(self.first[source + 1] - self.first[source])
        periods, rest = divmod(number, share)
        return periods * self.period + int(self.places[self.first[source] + rest])

    def place_each(self, source: int, numbers: np.ndarray) -> np.ndarray:
        """`place` of many sequences of a source: int64[n] -> int64[n]."""
        share = int(self.first[source + 1] - self.first[source])
        slots: np.ndarray = self.places[self.first[source] + numbers % share]
        return numbers // share * self.period + slots


def interleave(shares: tuple[int, ...]) -> Interleave:
    """Assign the slots of one period.

    shares: of the sources sorted by name, each at least 1, with a sum of at most `weights.MAX_PERIOD`.
    """
    weights = np.array(shares, np.int64)
    period, num_sources = int(weights.sum()), weights.size
    first = np.concatenate([[0], np.cumsum(weights)])
    if num_sources == 1:
        slots = np.arange(period, dtype=np.int32)
        return Interleave(np.zeros(period, np.int32), slots, slots, first)
    source, earlier, places = np.empty((3, period), np.int32)
    work = np.zeros(period + 2 + 2 * num_sources, np.int64)
    _interleave_kernel(weights, period, first, np.zeros((num_sources, 2), np.int64), work, source, earlier, places)
    return Interleave(source, earlier, places, first)


@kernel
def _interleave_kernel(
    c: np.ndarray,
    period: int,
    first: np.ndarray,
    heap: np.ndarray,
    work: np.ndarray,
    source: np.ndarray,
    earlier: np.ndarray,
    places: np.ndarray,
) -> None:
    """Assign slots 1..P in turn, each to the eligible source with the smallest deadline; ties go to the first source.

    A source with x earlier slots has exactly one entry, in a bucket or in the heap, until it has all of its c slots.
    ORD-4 makes it eligible from slot ceil(P (1 + D x) / (D c)) on, where D = 2k - 2. Buckets are linked lists in two
    int64 arrays, so the kernel allocates nothing.

    Args:
        c: int64[k], shares.
        period: P, their sum.
        first: int64[k + 1], see `Interleave`.
        heap: int64[k, 2], scratch: a binary heap of (deadline, source).
        work: int64[P + 2 + 2k], zeros: first source of each bucket, next source in the same bucket, and x of each
            source.
        source, earlier, places: int32[P], output, see `Interleave`.
    """
    k = c.size
    d = 2 * k - 2
    head, link, x = work[: period + 2], work[period + 2 : period + 2 + k], work[period + 2 + k :]
    for s in range(k):  # head and link contain source + 1; 0 is the end of a list
        release = -((-period) // (d * c[s]))
        link[s] = head[release]
        head[release] = s + 1
    size = 0
    for n in range(1, period + 1):
        s = head[n] - 1  # the sources that become eligible at this slot move to the heap
        while s >= 0:
            deadline = (period * (d * x[s] + d - 1)) // (d * c[s]) + 1
            size = _push(heap, size, deadline, s)
            s = link[s] - 1
        s = heap[0, 1]
        size = _pop(heap, size)
        source[n - 1], earlier[n - 1] = s, x[s]
        places[first[s] + x[s]] = n - 1
        x[s] += 1
        if x[s] < c[s]:
            release = -((-period * (1 + d * x[s])) // (d * c[s]))
            release = max(release, n + 1)  # one slot per source and turn
            link[s] = head[release]
            head[release] = s + 1


@inline_kernel
def _push(heap: np.ndarray, size: int, deadline: int, source: int) -> int:
    """Insert (deadline, source) and return the new size."""
    at = size
    while at > 0:
        up = (at - 1) // 2
        if heap[up, 0] < deadline or (heap[up, 0] == deadline and heap[up, 1] < source):
            break
        heap[at, 0], heap[at, 1] = heap[up, 0], heap[up, 1]
        at = up
    heap[at, 0], heap[at, 1] = deadline, source
    return size + 1


@inline_kernel
def _pop(heap: np.ndarray, size: int) -> int:
    """Remove the smallest entry and return the new size."""
    size -= 1
    deadline, source = heap[size, 0], heap[size, 1]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        right = child + 1
        if right < size and (
            heap[right, 0] < heap[child, 0] or (heap[right, 0] == heap[child, 0] and heap[right, 1] < heap[child, 1])
        ):
            child = right
        if deadline < heap[child, 0] or (deadline == heap[child, 0] and source < heap[child, 1]):
            break
        heap[at, 0], heap[at, 1] = heap[child, 0], heap[child, 1]
        at = child
    heap[at, 0], heap[at, 1] = deadline, source
    return size
