"""The user's own code in a build: `--filter module:function` and `--map module:function`.

A filter is given a record, a dict of its fields, and says whether to keep it. A map is given a record and returns one, or
None to leave it out. Both must depend on nothing but the record: units are made in any order, on any number of workers.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError

Hook = Callable[[dict[str, Any]], Any]
_loaded: dict[str, str] = {}  # hash of the source of every module asked for, as it was when first asked for


def load_hook(name: str) -> Hook:
    """The function that `module:function` names; modules are also looked for in the working directory."""
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ConfigError(f"hook: expected module:function, found {name!r}; name a function of an importable module")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a module of that name that is installed stays what it is
    importlib.invalidate_caches()  # the module may have been written just now
    try:
        found: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except Exception as error:  # the module is the user's: it may raise anything
        raise ConfigError(
            f"hook: expected to import {name!r}, found {type(error).__name__}: {error}; check the name and the module"
        ) from error
    if not callable(found):
        raise ConfigError(f"hook: expected a function, found {type(found).__name__} ({name}); name a function")
    return found


def hook_sha256(name: str) -> str:
    """Hash of the source of the module a hook is in: a build is not resumed with other code."""
    function = load_hook(name)
    source = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    if source is None:
        raise ConfigError(f"hook: expected a module with a file, found {function!r} ({name}); put it into a file")
    found = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    if _loaded.setdefault(source, found) != found:  # what would run is the old code
        raise ConfigError(f"hook: expected the module as it was loaded, found it changed ({source}); start Python anew")
    return found
