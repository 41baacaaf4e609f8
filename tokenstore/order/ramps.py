"""Batch ramps (ORD-17): the batch size changes in multiples, over some steps."""

from bisect import bisect_left


def ramp_sizes(start: int, stop: int, steps: int, multiple: int) -> list[tuple[int, int]]:
    """The sizes of a ramp: (step, size) of step 0 and of each step with another size than the step before.

    Args:
        start, stop: sequences per step before and after the ramp, multiples of `multiple`.
        steps: steps of the ramp. Step `steps` is the first with `stop` sequences.
        multiple: every size is a multiple of it.

    Example:
        >>> ramp_sizes(8, 24, 8, 4)
        [(0, 8), (2, 12), (4, 16), (6, 20), (8, 24)]
    """

    def size(k: int) -> int:
        return multiple * ((start * steps + (stop - start) * k) // (steps * multiple))

    rising = stop > start
    changes, step = [(0, start)], 0
    while changes[-1][1] != stop:
        now = changes[-1][1]  # sizes are monotonic, so the next change is found by bisection
        step = bisect_left(
            range(steps), True, lo=step + 1, key=lambda k: (size(k) > now) if rising else (size(k) < now)
        )
        changes.append((step, size(step)))
    return changes
