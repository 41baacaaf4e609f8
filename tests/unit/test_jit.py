"""The policy for kernels: cached under a stamp of all their sources, compiled in memory where nothing can be cached."""

import subprocess
import sys

import numpy as np

from tokenstore import jit
from tokenstore.order import interleave, keys, permutation, rows
from tokenstore.sampling import gather, spans

KERNELS = [
    interleave._interleave_kernel,
    keys.counted_key_bits,
    permutation.permute_into,
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
        "import numpy as np; from numba.core import caching; caching.CompileResultCacheImpl._locator_classes = [];"
        "from tokenstore.order.permutation import permute_into; out = np.empty(3, np.int64);"
        "permute_into(np.arange(3), 3, 7, False, out); print(out.tolist(), permute_into.stats.cache_path)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    images, place = done.stdout.split("] ")
    assert sorted(images.strip("[").split(", ")) == ["0", "1", "2"]
    assert place.strip() == "None"


def test_kernels_are_called_with_one_set_of_types() -> None:
    """One compiled form a kernel: processes that compile at once write the same cache file (numba #4807)."""
    out = np.empty(3, np.int64)
    permutation.permute_into(np.arange(3), 3, 7, False, out)
    for kernel in KERNELS:
        assert len(kernel.signatures) <= 1, kernel
