"""Reads and writes the fields of a plan file."""

from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.outside import MAX_PLAN_BYTES, read_file
from tokenstore.store.remote import is_url
from tokenstore.store.writing import write_atomically


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the fields of a YAML or JSON file.

    Raises:
        ConfigError: the file is not a regular file, is too large or is not YAML; a key is repeated (plain YAML would
            silently keep the last one); values are nested too deeply, aliases expand to too many values, or a number
            has too many digits.
    """
    from tokenstore.planning.yaml_text import parse  # imports the YAML library, needed only for plans in files

    try:
        text = read_file(path, MAX_PLAN_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"plan: expected text in UTF-8, found {error.reason} at byte {error.start} ({path})"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        found = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"plan: cannot read {path}: {found}; give the path of a plan file, which lists stores as its sources"
        ) from error
    try:
        fields = parse(text)
    except Exception as error:  # a tag such as !!bool with an invalid value raises errors of many types
        found = " ".join(str(error).split()).replace('in "<unicode string>", ', "at ")[:300] or type(error).__name__
        raise ConfigError(f"plan: cannot be read as YAML: {found} ({path})") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        kind = type(fields).__name__
        raise ConfigError(f"plan: expected fields such as sequence_length and sources, found {kind} ({path})")
    return fields


def write_yaml(path: Path, fields: dict[str, Any], comment: str = "") -> None:
    """Write fields to a YAML file, which is replaced atomically. `comment`: its first line.

    Paths of sources are relative to the file if they are inside its folder, and absolute otherwise.

    Raises:
        ConfigError: the file cannot be written.
    """
    from tokenstore.planning.yaml_text import dump

    sources = {name: _moved(source, path.parent) for name, source in fields["sources"].items()}
    text = dump({**fields, "sources": sources})
    first = f"# {' '.join(comment.split())}\n" if comment else ""
    try:
        write_atomically(path, f"{first}{text}".encode())
    except OSError as error:
        raise ConfigError(f"plan: cannot write {path}: {error.strerror}; choose another file") from error


def _moved(source: dict[str, Any], folder: Path) -> dict[str, Any]:
    given = source.get("path")
    if given is None or is_url(given):
        return source
    path, folder = Path(given).absolute(), folder.absolute()
    return {**source, "path": str(path.relative_to(folder) if path.is_relative_to(folder) else path)}
