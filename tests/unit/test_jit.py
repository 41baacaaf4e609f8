"""The policy for kernels: cached under a stamp of all their sources, compiled in memory where nothing can be cached."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokenstore import jit
from tokenstore.batches import gather, planner
from tokenstore.order import interleave, inverse, packing, rows, sorting

KERNELS = [
    interleave._interleave_kernel,
    rows.locate_rows,
    gather.gather,
    planner.plan_spans,
    packing.place,
    packing._cut_classes,
    packing.write_nodes,
    packing.write_leaves,
    sorting.count_lengths,
    sorting.place_by_length,
    inverse._unpermute,
    inverse._offset,
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


def test_kernels_from_the_cache_load_nothing_that_only_compiling_needs() -> None:
    """Neither extensions of other packages (Awkward's takes .1 s and 18 MB) nor numba's implementations of Python and
    numpy (a quarter of a second and 15 MB). The first kernel that is not ours loads both.
    """
    interleave.interleave((3, 2))  # is in the cache from here on
    code = (
        "import sys, numba, numpy as np; from numba.core import entrypoints; loaded = [];"
        "entrypoints.importlib_metadata.entry_points = lambda: loaded.append(1) or {};"
        "from tokenstore.order.interleave import interleave; print(interleave((3, 2)).source.tolist());"
        "print(loaded, 'numba.np.arraymath' in sys.modules);"
        "print(numba.njit(lambda a: a.sum())(np.arange(4)));"
        "print(loaded, 'numba.np.arraymath' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[0, 1, 0, 1, 0]", "[] False", "6", "[1] True"]


_USE_ALL = """
import sys, pathlib
from tests.conftest import random_documents, write_store
from tests.unit.test_jit import KERNELS
from tokenstore import Plan
folder = pathlib.Path(sys.argv[1])
for vocab_size in (300, 70_000):
    stores = {}
    for i, name in enumerate(("a", "b")):
        path = folder / f"{name}{vocab_size}"
        stores[name] = write_store(path, random_documents(i, 90, 30, vocab_size), vocab_size, length_index=True)
    for packing in ("best_fit", "concat", "none"):
        plan = Plan.of(stores, 16, 4, weights={"a": 2, "b": 1}, packing=packing)
        plan.batch(1), plan.documents(1), next(plan.find("a", 3))
print(*(kernel.__name__ for kernel in KERNELS if len(kernel.signatures) > 1))
"""


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    """A disk too full for compiled kernels does not stop who needs them: here no file may be longer than 1,000 bytes."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "import numpy as np; from tokenstore.order.sorting import LONG, count_lengths\n"
        "counts = np.zeros(LONG + 1, np.int64); print(count_lengths(np.array([0, 3, 4]), counts), counts[:4])"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "True [0 1 0 1]\n"


def test_kernels_are_called_with_one_set_of_types(tmp_path: Path) -> None:
    """One compiled form a kernel: processes that compile at once write the same cache file (numba #4807)."""
    command = [sys.executable, "-c", _USE_ALL, str(tmp_path)]  # tests call kernels with types of their own
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_kernels_that_check_indexes_have_a_stamp_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_BOUNDSCHECK=1 takes none from the cache that do not check, nor the other way round."""
    monkeypatch.setattr(jit.config, "BOUNDSCHECK", 1)
    checked = jit._source_stamp.__wrapped__()
    monkeypatch.setattr(jit.config, "BOUNDSCHECK", None)
    assert jit._source_stamp.__wrapped__() != checked
