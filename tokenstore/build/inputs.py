"""Which input files there are, and in which order: the order of documents in the store follows from it."""

import glob
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.errors import ConfigError

TABLES = (".parquet", ".arrow")  # compressed inside, so never a .gz or .zst of their own
FORMATS = (".jsonl", ".txt", ".csv", ".tsv", *TABLES)
COMPRESSIONS = (".gz", ".zst")
_MOST_SHOWN = 5


@dataclass(frozen=True)
class InputFile:
    """One input. `name` is its path below the folder all inputs share: it does not change when that folder moves."""

    path: Path
    name: str
    format: str
    compression: str
    num_bytes: int
    modified_ns: int


@dataclass(frozen=True)
class Inputs:
    """The files in order, and how many files of folders were passed over, by ending."""

    files: tuple[InputFile, ...]
    passed_over: dict[str, int]


def find_inputs(arguments: tuple[str, ...], text_endings: tuple[str, ...] = (), written: Sequence[Path] = ()) -> Inputs:
    """The input files, in the order of the arguments; inside a folder or glob sorted by path, folder by folder.

    A folder gives all its files of the known formats at any depth; hidden ones are passed over, and so are plain .json files,
    which are settings more often than data, and .arrow files that a `save_to_disk` folder does not list. A file named
    twice is taken once, at its first place. Files that end in one of `text_endings` (".py") are read like .txt. What lies
    at or below one of `written` (absolute paths: what the build itself writes) is never an input.
    Raises: ConfigError: an argument that names nothing, or a file of no known format; all of them at once.
    """
    formats = (
        {ending: ending for ending in FORMATS}
        | {".json": ".jsonl"}
        | {ending.lower(): ".txt" for ending in text_endings}
    )
    found: dict[Path, None] = {}
    passed_over: Counter[str] = Counter()
    wrong: list[str] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            paths = _sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
            paths = [p for p in paths if not _below(_absolute(p), written)]
            wanted = {p: _is_wanted(p, formats) for p in paths}
            passed_over.update(p.suffix or "no ending" for p in paths if not wanted[p])
            paths = [p for p in paths if wanted[p]]
        elif path.is_file():
            paths = [path]
        elif path.exists():
            wrong.append(f"input: expected a file or folder, found something else ({argument})")
            continue
        else:
            paths = _sorted(p for p in map(Path, glob.glob(argument, recursive=True)) if p.is_file())
        known = f"{', '.join(formats)}, or with {' or '.join(COMPRESSIONS)} behind it"
        wrong += [f"input: expected {known}, found {p.name!r} ({p})" for p in paths if _format_of(p, formats) is None]
        if not paths:
            wrong.append(f"input: expected files ({known}), found none ({argument})")
        found.update(dict.fromkeys(p for p in map(_absolute, paths) if not _below(p, written)))
    if not found and not wrong:
        wrong.append(f"input: expected files, found none but what the build itself wrote ({', '.join(arguments)})")
    if wrong:
        more = f"\nand {len(wrong) - _MOST_SHOWN} more like these" if len(wrong) > _MOST_SHOWN else ""
        raise ConfigError("\n".join(wrong[:_MOST_SHOWN]) + more + "; --text-endings .py reads other files as text")
    return Inputs(tuple(_describe(list(found), formats)), dict(passed_over))


def _absolute(path: Path) -> Path:
    """One spelling a file, so that its name does not depend on the working directory. Links keep their names."""
    return path.parent.resolve() / path.name if ".." in path.parts else path.absolute()


def _below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.parts[: len(folder.parts)] == folder.parts for folder in folders)


def _describe(paths: list[Path], formats: dict[str, str]) -> list[InputFile]:
    shared = min((p.parent.parts for p in paths), key=len)
    while not all(p.parts[: len(shared)] == shared for p in paths):
        shared = shared[:-1]
    files = []
    for path in paths:
        stat = path.stat()
        fmt, compression = _format_of(path, formats)  # type: ignore[misc]  # only files of a known format come here
        name = "/".join(path.parts[len(shared) :])
        files.append(InputFile(path, name, fmt, compression, stat.st_size, stat.st_mtime_ns))
    return files


def _format_of(path: Path, formats: dict[str, str]) -> tuple[str, str] | None:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    found = formats.get(suffixes[-1]) if suffixes else None
    return None if found is None or (compression and found in TABLES) else (found, compression)


def _is_wanted(path: Path, formats: dict[str, str]) -> bool:
    """Whether a folder gives this file."""
    return _format_of(path, formats) is not None and path.suffix.lower() != ".json" and _is_listed(path)


def _is_listed(path: Path) -> bool:
    """Whether a `save_to_disk` folder lists this .arrow file as data: there may be caches of other tables beside it."""
    state = path.parent / "state.json"
    if path.suffix != ".arrow" or not state.is_file():
        return True
    try:
        listed = json.loads(state.read_bytes()).get("_data_files")
        return listed is None or path.name in {each.get("filename") for each in listed}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"input: expected a table's state.json, found {error} ({state}); mend it or name the files"
        ) from error


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.parts)
