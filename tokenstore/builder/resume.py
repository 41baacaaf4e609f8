"""What a build or append leaves in its work folder for the next run: the recipe, finished parts, the list of bad records."""

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from stat import S_ISREG
from typing import Any

from tokenstore.builder.recipe import differences
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.format.manifest import canonical_json
from tokenstore.outside import MAX_RECIPE_BYTES
from tokenstore.paths import is_there
from tokenstore.store.files import read_bytes
from tokenstore.store.work import Work
from tokenstore.store.writing import create_again, move_file, own_folder, remove, remove_tree, write_atomically

MADE_HERE = "made-here"  # an empty file, as old as the work
REJECTS_PART = "rejects.jsonl"  # in the work of a build, before all bad records are in it

Note = Callable[[str], None]


def check_recipe(work: Work, recipe: dict[str, Any], note: Note, advice: str) -> None:
    """ConfigError where parts of an unfinished build of another recipe are there. One without a finished part is no loss."""
    if different := differences(read_recipe(work) or recipe, recipe):
        if any((work.building / "parts").glob("*.json")):
            raise ConfigError(
                f"output: expected to resume this command, found an unfinished build of another ({work.building}):"
                f" {different}; {advice}"
            )
        note(f"discarded an unfinished build of another command, of which nothing was done yet ({different})")
        remove_tree(work.building)


def write_recipe(work: Work, recipe: dict[str, Any]) -> None:
    """Begin or take up a build of this recipe."""
    own_folder(work.building)
    own_folder(work.building / "parts")
    write_atomically(work.building / "recipe.json", canonical_json(recipe).encode())


def time_of_work(work: Work) -> int:
    """When the work began, in nanoseconds, as the file system noted it: parts count only with this number in their key.

    Nobody can set this time (`st_ctime`). So an unfinished build that was copied, or came in somebody's archive, has another,
    and its parts are made again: whoever forged them could put any tokens into the store.
    """
    path = work.building / MADE_HERE
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if S_ISREG(found.st_mode):
            return found.st_ctime_ns
    create_again(path).close()
    return path.lstat().st_ctime_ns


def read_recipe(work: Work) -> dict[str, Any]:
    """The recipe of an unfinished build; {} where there is none."""
    path = work.building / "recipe.json"
    if not is_there(path):
        return {}
    try:
        recipe: Any = json.loads(read_bytes(path, MAX_RECIPE_BYTES))
        if isinstance(recipe, dict):
            return recipe
        found = "something else"
    except (CorruptionError, ValueError, RecursionError) as error:
        found = str(error)
    raise CorruptionError(
        f"recipe.json: expected the JSON object of an unfinished build, found {found} ({path}); use --overwrite, or"
        f" remove {work.building}"
    )


def publish_rejects(work: Work, rejects: Path) -> Path | None:
    """Move the list of bad records to its place; without any, remove an older list."""
    made = work.building / REJECTS_PART
    if made.stat().st_size == 0:
        remove(rejects)
        return None
    move_file(made, rejects)
    return rejects


def tidy(paths: Iterable[Path], note: Note) -> None:
    """Remove what is not needed any more. The work is done, so what cannot be removed is a note, no failure."""
    for path in paths:
        try:
            remove_tree(path)
        except OSError as error:
            note(f"{path} could not be removed ({error.strerror or error}); it is not needed any more: remove it")
