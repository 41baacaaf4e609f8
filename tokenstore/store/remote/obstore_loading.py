"""The obstore library, in a copy that works in this process.

obstore runs its requests on threads of its own. They do not exist in a forked child, where every request would wait for
ever, and the library cannot start them again. So a child that uses obstore loads a private copy of the compiled module. It must
not even free the objects of the parent: that takes locks that one of those threads may have held at the fork.
"""

import contextlib
import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from tokenstore.errors import TokenStoreError, how_to_install
from tokenstore.store.files import after_fork_in_child

_NAME, _COMPILED = "obstore", "obstore._obstore"
_inherited = False  # whether the loaded module belongs to the parent of this process
_lock = threading.RLock()


def load_obstore() -> Any:
    """The package `obstore`, with `store` and `exceptions`.

    Raises:
        TokenStoreError: it is not installed.
    """
    global _inherited
    with _lock:
        try:
            if _inherited:
                _load_copy()
                _inherited = False
            package = importlib.import_module(_NAME)
            importlib.import_module("obstore.store")
        except ImportError as error:
            raise TokenStoreError(
                f"store: a URL needs the library obstore, which is not installed ({error}); {how_to_install('remote')}"
            ) from error
        return package


def leak(store: Any) -> None:
    """Let an obstore object of the parent process exist until this process has ended, its last cleaning up included."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


def _load_copy() -> None:
    """Replace the loaded package by a new one, whose compiled module comes from a copy of its file in memory."""
    names = [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]
    file = sys.modules[_COMPILED].__file__
    with contextlib.ExitStack() as undo:
        for name in names:
            undo.callback(sys.modules.__setitem__, name, sys.modules.pop(name))
        # The descriptor stays open: the linker recognizes libraries by name, so no later copy may have the same name
        descriptor = os.memfd_create(_NAME)
        data = memoryview(Path(str(file)).read_bytes())
        while data:
            data = data[os.write(descriptor, data) :]
        loader = importlib.machinery.ExtensionFileLoader(_COMPILED, f"/proc/self/fd/{descriptor}")
        spec = importlib.util.spec_from_file_location(_COMPILED, loader.path, loader=loader)
        if spec is None:
            raise ImportError(f"cannot load a copy of {file}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[_COMPILED] = module
        loader.exec_module(module)
        importlib.import_module(_NAME)
        undo.pop_all()


def _after_fork() -> None:
    global _inherited, _lock
    _inherited, _lock = _COMPILED in sys.modules, threading.RLock()


after_fork_in_child(_after_fork)
