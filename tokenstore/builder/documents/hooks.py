"""The user's own functions in a build: `--filter module:function` and `--map module:function`.

A filter gets a record, a dict, and returns whether to keep it. A map gets a record and returns the record to use, or None to
drop it. Both may depend only on the record, as units are processed in any order by any number of workers.

A function runs only if the user names it, on the command line or as an argument. A store or an unfinished build that names
one never makes it run. Modules are found and hashed without running their code or that of their packages, so that a changed
module is refused before it is imported.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.paths import is_folder

Hook = Callable[[dict[str, Any]], Any]
_loaded: dict[str, str] = {}  # source file of each loaded module -> its hash at that time


def load_hook(name: str) -> Hook:
    """The function named by `module:function`. Modules are also searched in the working directory.

    Raises:
        ConfigError: the name is malformed, the module cannot be imported, or it has no such function.
    """
    module_name, function_name = _parts(name)
    source, sha256 = _source(name)
    try:
        found: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module is the user's: it may raise anything
        raise _not_imported(name, f"{type(error).__name__}: {error}") from error
    _loaded.setdefault(source, sha256)
    if not callable(found):
        raise ConfigError(f"hook: expected a function, found {type(found).__name__} ({name}); name a function")
    function: Callable[[dict[str, Any]], Any] = found
    return function


def hook_sha256(name: str) -> str:
    """sha256, in hex, of the source of a hook's module. The module is not imported.

    A build is resumed only with the same hash, hence the same code.

    Raises:
        ConfigError: there is no such module, or it changed since it was loaded.
    """
    return _source(name)[1]


def _parts(name: str) -> tuple[str, str]:
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ConfigError(f"hook: expected module:function, found {name!r}; name a function of an importable module")
    return module_name, function_name


def _source(name: str) -> tuple[str, str]:
    """The source file of a hook's module, and its hash."""
    module_name, _ = _parts(name)
    source = _file_of(module_name, name)
    try:
        found = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"hook: {source} cannot be read ({name}): {error.strerror}; check its permissions") from error
    if module_name in sys.modules and _loaded.setdefault(source, found) != found:  # the old code would run
        raise ConfigError(f"hook: {source} changed since it was loaded; restart Python")
    return source, found


def _file_of(module_name: str, name: str) -> str:
    if module_name in sys.modules:
        file: str | None = getattr(sys.modules[module_name], "__file__", None)
    else:
        spec = _find(module_name, name)
        file = spec.origin if spec.has_location else None
    if file is None:
        raise ConfigError(f"hook: module {module_name} has no source file ({name}); put the function into a file")
    return file


def _find(module_name: str, name: str) -> ModuleSpec:
    """Find a module, package by package. `importlib.util.find_spec` would import the packages that contain it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that installed modules take precedence
    importlib.invalidate_caches()  # the module may have been written a moment ago
    path: list[str] | None = None
    parts = module_name.split(".")
    for number in range(1, len(parts) + 1):
        whole = ".".join(parts[:number])
        found = _find_in(whole, path) if all(parts) else None
        if found is None:
            raise _not_imported(name, f"ModuleNotFoundError: No module named {whole!r}")
        spec = found
        path = _search_path(spec)
        if path is None and number < len(parts):
            raise _not_imported(name, f"ModuleNotFoundError: {whole!r} is not a package")
    return spec


def _find_in(whole: str, path: list[str] | None) -> ModuleSpec | None:
    """Find a module as Python's import does; the finders include those of packages installed in editable mode."""
    try:
        found = (finder.find_spec(whole, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a namespace package inside another one, of which Python expects the outer one to be imported
        spec = ModuleSpec(whole, None, is_package=True)
        folders = (Path(folder) / whole.rpartition(".")[2] for folder in path or ())
        spec.submodule_search_locations = [str(folder) for folder in folders if is_folder(folder)]
        return spec


def _search_path(spec: ModuleSpec) -> list[str] | None:
    """The folders of a package's modules; None if `spec` is not a package."""
    locations = spec.submodule_search_locations
    return None if locations is None else list(locations)


def _not_imported(name: str, found: str) -> ConfigError:
    return ConfigError(f"hook: cannot import {name!r}: {found}; check the name and the module")
