"""The policy for kernels: cached under a stamp of all their sources, compiled in memory where nothing can be cached."""

import subprocess
import sys

from tokenstore import jit
from tokenstore.order import interleave, rows
from tokenstore.sampling import gather, spans

KERNELS = [
    interleave._interleave_kernel,
    rows.locate_rows,
    gather.gather,
    gather.annotate,
    spans.spans_of,
]


def test_every_cached_kernel_carries_the_stamp_of_all_sources() -> None:
    """P6: a kernel in numba's cache is not used again after any kernel's source has changed."""
    for kernel in KERNELS:
        assert kernel._cache._cache_file._source_stamp == jit._source_stamp()


def test_no_kernel_has_fastmath_or_threads() -> None:
    """P6: nothing that may reorder arithmetic, and no threads of its own."""
    for kernel in KERNELS:
        options = kernel.targetoptions
        assert not options.get("fastmath")
        assert not options.get("parallel")
        assert options["nogil"]


def test_without_a_place_for_a_cache_kernels_are_compiled_in_memory() -> None:
    """A read-only installation works, it only starts slower."""
    code = (
        "from numba.core import caching; caching.CompileResultCacheImpl._locator_classes = [];"
        "from tokenstore.order.interleave import _interleave_kernel, interleave;"
        "print(interleave((3, 2)).source.tolist(), _interleave_kernel.stats.cache_path)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 1, 0, 1, 0] None"


def test_kernels_are_called_with_one_set_of_types() -> None:
    """One compiled form a kernel: processes that compile at once write the same cache file (numba #4807)."""
    interleave.interleave((3, 2))
    for kernel in KERNELS:
        assert len(kernel.signatures) <= 1, kernel
