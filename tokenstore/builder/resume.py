"""What a build or append keeps in its work folder for the next run: the recipe, finished parts, the list of bad records.

The recipe is written before the first part. So parts in a work folder were made by the recipe next to them, and a run with
another recipe either stops (there are finished parts, which may be hours of work) or starts again (there are none).
"""

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG
from typing import Any

from tokenstore.builder.part import SUMMARY
from tokenstore.builder.result import Note
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.format.differences import describe, differences
from tokenstore.format.manifest import canonical_json
from tokenstore.outside import MAX_RECIPE_BYTES
from tokenstore.paths import is_there
from tokenstore.store.files import read_bytes
from tokenstore.store.work import Work
from tokenstore.store.writing import create, move_file, own_folder, remove, remove_tree, write_shared

MADE_HERE = "made-here"  # an empty file whose inode change time is when the build began
_IS_TASK, _REPLACES = re.compile(r"[0-9]+-of-([1-9][0-9]{0,8})"), "overwrite"  # files in building/tasks
REJECTS_PART = "rejects.jsonl"  # in building/, until the list is complete


def check_recipe(work: Work, recipe: dict[str, Any], note: Note, advice: str, is_shared: bool = False) -> None:
    """Compare `recipe` with that of the unfinished build in `work`, if there is one.

    If they differ and the other build has no finished part, it is removed and `note` is called; unless `is_shared`, because
    other tasks may be making its first parts.

    Raises:
        ConfigError: they differ, and the other build has finished parts; `advice` says what to do.
    """
    if different := describe(differences(read_recipe(work) or recipe, recipe)):
        if is_shared or any((work.building / "parts").glob(f"[!.]*/{SUMMARY}")):
            raise ConfigError(
                f"output: {work.building} holds an unfinished build with another command: {different}; {advice}"
            )
        note(f"discarded an unfinished build with another command, which had no finished part ({different})")
        remove_tree(work.building)


def write_recipe(work: Work, recipe: dict[str, Any]) -> None:
    """Start or resume a build with this recipe: make its folders and write recipe.json. Several tasks may do so at once."""
    own_folder(work.building)
    own_folder(work.building / "parts")
    write_shared(work.building / "recipe.json", canonical_json(recipe).encode())


def time_of_work(work: Work) -> int:
    """When the build began: nanoseconds, from the file system. Part keys contain it, so parts of another time do not count.

    It is the inode change time (`st_ctime`) of a file, which no program can set. An unfinished build that was copied or
    unpacked from an archive has another, so its parts are made again. Otherwise whoever prepared such an archive could put
    any tokens into the store.
    """
    path = work.building / MADE_HERE
    for _ in range(2):  # the second time if another task creates it first
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if S_ISREG(found.st_mode):
                return found.st_ctime_ns
            remove(path)
        with contextlib.suppress(FileExistsError):
            create(path).close()
    return path.lstat().st_ctime_ns


def note_task(work: Work, number: int, of: int, overwrite: bool) -> None:
    """Record that a task of this run began, for `last_number_of_tasks` and `is_replacement`."""
    own_folder(folder := work.building / "tasks")
    for name in (f"{number}-of-{of}", *([_REPLACES] if overwrite else [])):
        write_shared(folder / name, b"")  # the same task may begin twice at once


def last_number_of_tasks(work: Work) -> int | None:
    """How many tasks the last run had; None if no task ran."""
    tasks = ((path, _IS_TASK.fullmatch(path.name)) for path in _entries(work.building / "tasks"))
    found = [(path.lstat().st_mtime_ns, int(task[1])) for path, task in tasks if task]
    return max(found)[1] if found else None


def is_replacement(work: Work) -> bool:
    """Whether tasks have made parts with `overwrite`, for a store that replaces another."""
    return is_there(work.building / "tasks" / _REPLACES)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_recipe(work: Work) -> dict[str, Any]:
    """The recipe of an unfinished build; {} if there is none.

    Raises:
        CorruptionError: recipe.json is not a JSON object.
    """
    path = work.building / "recipe.json"
    if not is_there(path):
        return {}
    try:
        recipe: Any = json.loads(read_bytes(path, MAX_RECIPE_BYTES))
        if isinstance(recipe, dict):
            return recipe
        found = "something else"
    except (CorruptionError, ValueError, RecursionError) as error:
        if not is_there(path):  # another process finished the build meanwhile
            return {}
        found = str(error)
    raise CorruptionError(
        f"recipe.json: expected the JSON object of an unfinished build, found {found} ({path}); use --overwrite, or"
        f" remove {work.building}"
    )


def publish_rejects(work: Work, rejects: Path) -> Path | None:
    """Move the finished list of bad records to `rejects` and return that; if it is empty, remove an older list instead."""
    made = work.building / REJECTS_PART
    if made.stat().st_size == 0:
        remove(rejects)
        return None
    move_file(made, rejects)
    return rejects


def tidy(paths: Iterable[Path], note: Note) -> None:
    """Remove files and folders that are no longer needed. The store is finished, so a failure is only a note."""
    for path in paths:
        try:
            remove_tree(path)
        except OSError as error:
            note(f"{path} could not be removed ({error.strerror or error}); it is no longer needed: remove it")
