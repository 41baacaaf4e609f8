"""Survive SIGBUS: if a file is truncated while it is mapped, a kernel that reads after its end continues with zeros.

The system sends SIGBUS to the thread that reads such a page. Our handler maps a page of zeros there and records it. So
the kernel finishes, and its caller discards the batch and reports which file was truncated. Every other SIGBUS goes to
the previous handler. A sampler has its own maps, which only its kernels read, so nothing else ever sees the zeros.

The handler is installed when a sampler first runs, and again if other code has replaced it. Linux only; elsewhere
nothing is done.
"""

import mmap
import signal
import sys
import weakref
from functools import cache
from typing import Any

import numpy as np
from numba import carray, types

from tokenstore.batches.tables import ADDRESS, FILE_COLUMNS, NUM_BYTES
from tokenstore.intrinsics import int32_at, int64_at, own_word
from tokenstore.jit import callback, inline_kernel
from tokenstore.store.maps import SignalAction

# Words of the state that the handler and Python share. PREVIOUS, DEFAULT: addresses of two actions. PASSED_ON: number
# of signals that the handler passed to the previous action since it was installed. PAGE_BYTES: size of a page. Then one
# row per sampler. FILES, NUM_FILES: address (0: no sampler) and rows of its table of files. NUM_REPLACED: number of
# pages that were replaced by zeros. REPLACED: an address in the last one
PREVIOUS, DEFAULT, PASSED_ON, PAGE_BYTES, FIRST_ROW = range(5)
FILES, NUM_FILES, NUM_REPLACED, REPLACED = range(4)
ROW_WORDS, MAX_ROWS = 4, 4096
STATE_WORDS = FIRST_ROW + ROW_WORDS * MAX_ROWS
_SET_STATE = 0  # no signal has this number
_IN_MAP, _READ, _FIXED_ZEROS = 2, 1, 0x32  # BUS_ADRERR, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS

_mmap: Any = types.ExternalFunction(
    "mmap", types.int64(types.int64, types.uint64, types.int32, types.int32, types.int32, types.int64)
)
_sigaction: Any = types.ExternalFunction("sigaction", types.int32(types.int32, types.int64, types.int64))
_raise: Any = types.ExternalFunction("raise", types.int32(types.int32))


@inline_kernel
def _is_held(page: int, page_bytes: int, files: int, num_files: int) -> bool:
    """Whether a page is in one of the maps of a table of files. Tokens may begin inside of a page, after a header (FMT-14)."""
    table = carray(int64_at(files), (num_files * FILE_COLUMNS,))
    for file in range(num_files):
        start = table[file * FILE_COLUMNS + ADDRESS]
        if start != 0 and start & -page_bytes <= page < start + table[file * FILE_COLUMNS + NUM_BYTES]:
            return True
    return False


def _on_bus_error(number: int, info: int, context: int) -> None:
    """The signal handler.

    It only reads and writes memory and makes calls that are allowed in a handler. None of them sets errno if it
    succeeds. With the number _SET_STATE, it stores the address of the shared state instead.
    """
    word = carray(int64_at(own_word()), (1,))
    if number == _SET_STATE:
        word[0] = info
        return
    state = carray(int64_at(word[0]), (STATE_WORDS,))
    code, address = carray(int32_at(info), (3,))[2], carray(int64_at(info), (3,))[2]
    if code == _IN_MAP:
        page = address & -state[PAGE_BYTES]
        for row in range(FIRST_ROW, STATE_WORDS, ROW_WORDS):
            files, num_files = state[row + FILES], state[row + NUM_FILES]
            is_ours = files != 0 and _is_held(page, state[PAGE_BYTES], files, num_files)
            if is_ours and _mmap(page, np.uint64(state[PAGE_BYTES]), _READ, _FIXED_ZEROS, -1, 0) == page:
                state[row + NUM_REPLACED] += 1
                state[row + REPLACED] = address
                return
    # Not ours: the previous action gets the signal. If that passes it to us again, the default action ends the process
    _sigaction(number, state[PREVIOUS] if state[PASSED_ON] == 0 else state[DEFAULT], 0)
    state[PASSED_ON] += 1
    if code <= 0:  # sent by a process: it will not be raised again by itself
        _raise(number)


@cache
def _installed() -> tuple[np.ndarray, SignalAction]:
    """The shared state and the action. Both live as long as the process."""
    handler = callback(_on_bus_error, types.void(types.int32, types.int64, types.int64))
    state = np.zeros(STATE_WORDS, np.int64)
    action = SignalAction(signal.SIGBUS, handler.address)
    state[[PREVIOUS, DEFAULT, PAGE_BYTES]] = action.previous, action.default, mmap.PAGESIZE
    handler.ctypes(_SET_STATE, state.ctypes.data, 0)
    return state, action


_free = [FIRST_ROW + ROW_WORDS * row for row in reversed(range(MAX_ROWS))]


class Guard:
    """Protects the maps of one sampler, which are in `files`."""

    def __init__(self, files: np.ndarray):
        self._files = files  # the handler knows its address
        self._row = FIRST_ROW
        self._use(np.zeros(FIRST_ROW + ROW_WORDS, np.int64))  # replaced by the shared state in `install`
        self._is_ready = False

    def _use(self, state: np.ndarray) -> None:
        self._state, self._state_at = state.data, state.ctypes.data

    def install(self) -> None:
        """Install the handler if it is not the current one, and register these maps with it."""
        if not sys.platform.startswith("linux"):
            return
        state, action = _installed()
        if action.install():
            state[PASSED_ON] = 0
        if not self._is_ready and _free:
            self._row = _free.pop()
            self._use(state)
            weakref.finalize(self, _leave, self._row).atexit = False
            state[self._row : self._row + ROW_WORDS] = self._files.ctypes.data, len(self._files), 0, 0
            self._is_ready = True

    @property
    def zeros(self) -> int:
        """Address of an int64 that is not 0 if a kernel read zeros in a map since the last call of `take_replaced`.

        `install` may change it.
        """
        return self._state_at + 8 * (self._row + NUM_REPLACED)

    def take_replaced(self) -> int:
        """An address in a map where a kernel read zeros since the last call; 0 if there is none."""
        if not self._state[self._row + NUM_REPLACED]:
            return 0
        self._state[self._row + NUM_REPLACED] = 0
        return self._state[self._row + REPLACED]


def _leave(row: int) -> None:
    _installed()[0][row] = 0
    _free.append(row)
