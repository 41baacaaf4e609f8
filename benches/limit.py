"""The limits of the machine. For loading: a C loop that reads uint16 and writes two int64 blocks, which stay in the cache.

`Limit.run` reads in order, which no shuffled loader can do. For checking files: `read_all` reads them and does nothing else.
"""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benches.scenes import CannotRun

_SOURCE = """
#include <stdint.h>
static void widen(const uint16_t *restrict tokens, int64_t n, int64_t *restrict ids, int64_t *restrict targets) {
    for (int64_t i = 0; i < n; i++) { ids[i] = tokens[i]; targets[i] = tokens[i + 1]; }
}
void limit(const uint16_t *tokens, int64_t batches, int64_t n, int64_t *ids, int64_t *targets) {
    for (int64_t b = 0; b < batches; b++) {
        widen(tokens + b * n, n, ids, targets);
        __asm__ volatile("" : : "r"(ids), "r"(targets) : "memory");
    }
}
"""


class Limit:
    """The compiled loops. `compiler`: name of the compiler."""

    def __init__(self) -> None:
        self.compiler = next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None)
        if self.compiler is None:
            raise CannotRun("limit of the machine: no C compiler found; install gcc, cc or clang")
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "limit.c"), Path(folder, "limit.so")
            source.write_text(_SOURCE)
            command = [self.compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)]
            subprocess.run(command, check=True)
            loaded = ctypes.CDLL(str(library))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._limit = loaded.limit
        self._limit.argtypes = [pointer, number, number, pointer, pointer]

    def run(self, tokens: np.ndarray, batches: int, ids: np.ndarray, targets: np.ndarray) -> None:
        """Widen `batches` batches of `ids.size` tokens in order. `tokens` has one more token than that."""
        self._limit(tokens.ctypes.data, batches, ids.size, ids.ctypes.data, targets.ctypes.data)


def read_all(folder: Path) -> None:
    """Read every file of a folder once, in blocks of 4 MiB."""
    buffer = bytearray(1 << 22)
    for path in sorted(folder.iterdir()):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
