"""Layer 0: the one policy for numba kernels.

nogil, no fastmath, no parallel, cached on disk. This module works around two problems of numba's cache. First, numba
checks only the file of the kernel itself, not those of the kernels it calls, so a changed callee would leave a stale
result. Our stamp is a hash of every source file of the package that contains kernels. Second, if the package's
directory and the user's cache directory are both read-only, numba raises an error; then the kernel is compiled in
memory. The same happens if the disk is full.

Kernels take plain arrays and integers, `out` last; they allocate nothing, raise nothing, and are always called with
the same types, so each has one compiled form and processes that compile at once write the same file (numba #4807).
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numba import config, njit
from numba.core import entrypoints, sigutils
from numba.core.ccallback import CFunc
from numba.core.runtime import rtsys

from tokenstore.collector import paused_collector

_config: Any = config  # its attributes are made from the environment
_KERNEL_FOLDERS = ("order", "batches")
_Function = TypeVar("_Function", bound=Callable[..., Any])
Integer = int | np.int64  # kernels pass np.int64 to each other; Python gets an int


@cache
def _source_stamp() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(repr(_config.BOUNDSCHECK).encode())  # kernels that check indexes are other kernels
    for path in [
        root / "intrinsics.py",
        *sorted(p for folder in _KERNEL_FOLDERS for p in (root / folder).glob("*.py")),
    ]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _unless_it_fails(save: Callable[..., None]) -> Callable[..., None]:
    """Ignore a full disk when the cache is written: the kernel is already compiled."""

    def guarded(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    return guarded


@contextmanager
def _without_extensions() -> Iterator[None]:
    """Compile or load a kernel without the numba extensions of other installed packages.

    Before its first kernel numba imports every package that has registered an extension. With awkward, a dependency of
    gigatoken, that takes 0.1 s and 18 MB. Our kernels need only arrays and integers. The flag is restored, so numba
    loads the extensions as usual before the first kernel that is not ours.
    """
    state: Any = entrypoints
    before = state._already_initialized
    state._already_initialized = True
    try:
        yield
    finally:
        state._already_initialized = before


def _loaded_alone(compiled: Any) -> Any:
    """Load or make a function's machine code without other packages' extensions."""
    compile_for = compiled._compile_for_args

    @wraps(compile_for)
    def compile_alone(*arguments: Any, **keywords: Any) -> Any:
        with _without_extensions(), paused_collector():
            return compile_for(*arguments, **keywords)

    compiled._compile_for_args = compile_alone
    return compiled


def _without_registries(cache: Any) -> Callable[..., Any]:
    """Load machine code from a cache without everything that numba needs to compile.

    Before it loads a function numba imports its implementations of Python and numpy, which takes a quarter of a second
    and 15 MB. Only compiling needs them, and the compiler imports them itself.
    """

    def load(signature: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return cache._load_overload(signature, target_context)

    return load


def _adapt_cache(cache: Any) -> None:
    """Let a kernel's cache depend on all sources, survive a full disk, and load fast."""
    cache._cache_file._source_stamp = _source_stamp()
    cache.save_overload = _unless_it_fails(cache.save_overload)
    cache.load_overload = _without_registries(cache)


def kernel(function: _Function) -> _Function:
    """Compile `function` under the package's policy; its plain Python stays at `.py_func`.

    Type checkers see the function itself.
    """
    try:
        compiled: Any = njit(nogil=True, cache=True)(function)
        _adapt_cache(compiled._cache)
    except RuntimeError:  # no directory numba could write to
        compiled = njit(nogil=True)(function)
    typed: _Function = _loaded_alone(compiled)
    return typed


def callback(function: Callable[..., Any], signature: Any) -> Any:
    """Compile `function` for C code to call; its machine code is at `.address`. It must not raise."""
    compiled: Any = CFunc(function, sigutils.normalize_signature(signature), locals={}, options={})
    with suppress(RuntimeError):  # no directory numba could write to
        compiled.enable_caching()
        _adapt_cache(compiled._cache)
    with _without_extensions(), paused_collector():
        compiled.compile()
    return compiled


def inline_kernel(function: _Function) -> _Function:
    """A kernel that only other kernels call. It is compiled into them and has no cache file of its own.

    LLVM always inlines it. Otherwise a call copies the shapes of its array arguments and counts references to them.
    """
    compiled: Any = njit(nogil=True, inline="never", forceinline=True)(function)
    typed: _Function = compiled
    return typed
