"""Layer -1: the garbage collector of Python, paused where it finds nothing.

Python looks for unreachable cycles while objects are made. After `import torch` there are some 200,000 objects to look at,
which takes 0.1 s. Imports and plans make many objects at once, and all of them stay.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Make objects that stay without searching for garbage. It has no effect if the collector is disabled.

    The collector is one for all threads. It looks at the new objects when it runs next.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
