"""Which input files there are, and in which order: the order of documents in the store follows from it."""

import glob
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.errors import ConfigError
from tokenstore.outside import MAX_RECIPE_BYTES, read_file
from tokenstore.paths import entries_of, is_file, is_folder, is_there

TABLES = (".parquet", ".arrow")  # compressed inside, so never a .gz or .zst of their own
FORMATS = (".jsonl", ".txt", ".csv", ".tsv", *TABLES)
COMPRESSIONS = (".gz", ".zst")
_STATE = "state.json"
_HINT = "; --text-endings .py reads other files as text"
_MOST_SHOWN, _SHOWN = 5, 200
_HIDDEN = ""  # in the place of an ending, where hidden files are counted


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
    """The files in order, and what was not read.

    Attributes:
        passed_over: files of folders with other endings, by ending.
        num_hidden: files and folders below folders whose names begin with a dot.
        num_repeated: how often a file was named that had been named before; it is read once.
    """

    files: tuple[InputFile, ...]
    passed_over: dict[str, int]
    num_hidden: int = 0
    num_repeated: int = 0


def find_inputs(arguments: tuple[str, ...], text_endings: tuple[str, ...] = (), written: Sequence[Path] = ()) -> Inputs:
    """The input files, in the order of the arguments; inside a folder or glob sorted by path, folder by folder.

    A folder gives all its files of the known formats at any depth; hidden ones are passed over, and so are plain .json files,
    which are settings more often than data, .arrow files that a `save_to_disk` folder does not list, and links to folders.
    A file named twice is taken once, at its first place. Files that end in one of `text_endings` (".py") are read like
    .txt. What lies at or below one of `written` (absolute paths: what the build itself writes) is never an input.
    Raises: ConfigError: an argument that names nothing, a file of no known format or that is no file, a folder that
        cannot be read, a file that `save_to_disk` lists and that is not there; all of them at once.
    """
    formats = (
        {ending: ending for ending in FORMATS}
        | {".json": ".jsonl"}
        | {ending.lower(): ".txt" for ending in text_endings}
    )
    known = f"{', '.join(formats)}, or with {' or '.join(COMPRESSIONS)} behind it"
    found: dict[Path, None] = {}
    passed_over: Counter[str] = Counter()
    num_named = 0
    wrong: list[str] = []
    try:
        for argument in arguments:
            paths = _named_by(argument, formats, written, passed_over)
            wrong += [fault for path in paths if (fault := _fault(path, formats, known))]
            if not paths:
                wrong.append(_nothing(argument, known))
            named = [p for p in map(_absolute, paths) if not _below(p, written)]
            num_named += len(named)
            found.update(dict.fromkeys(named))
        if not found and not wrong:
            wrong.append(f"input: expected files, found none but what the build itself wrote ({', '.join(arguments)})")
        if not wrong:
            num_hidden = passed_over.pop(_HIDDEN, 0)
            files = tuple(_describe(list(found), formats))
            return Inputs(files, dict(passed_over), num_hidden, num_named - len(found))
    except OSError as error:
        place = str(error.filename or ", ".join(arguments))[:_SHOWN]
        wrong.append(f"input: expected to find it, found {error.strerror} ({place}); check its name and permissions")
    more = f"\nand {len(wrong) - _MOST_SHOWN} more like these" if len(wrong) > _MOST_SHOWN else ""
    raise ConfigError("\n".join(wrong[:_MOST_SHOWN]) + more)


def _nothing(argument: str, known: str) -> str:
    if is_folder(Path(argument)):
        return f"input: expected files ({known}), found none ({argument}){_HINT}"
    if glob.has_magic(argument):
        return f"input: no file matches {argument}; check the pattern"
    return f"input: {argument} does not exist; check the path"


def _named_by(argument: str, formats: dict[str, str], written: Sequence[Path], passed_over: Counter[str]) -> list[Path]:
    """The files an argument names, or what stands in the place of one."""
    path = Path(argument)
    if is_folder(path):
        return _of_folder(path, formats, written, passed_over)
    if is_there(path) or path.is_symlink():
        return [path]
    return _sorted(p for p in map(Path, glob.glob(argument, recursive=True)) if not is_folder(p))


def _of_folder(folder: Path, formats: dict[str, str], written: Sequence[Path], passed_over: Counter[str]) -> list[Path]:
    wanted: list[Path] = []
    lost: list[Path] = []
    for path in _walk(folder, written, passed_over):
        if path.name == _STATE:
            lost += _lost(path)
        if _is_wanted(path, formats):
            wanted.append(path)
        else:
            passed_over[path.suffix or "no ending"] += 1
    return wanted + lost


def _walk(folder: Path, written: Sequence[Path], passed_over: Counter[str]) -> Iterator[Path]:
    """What is below a folder and is no folder, sorted by the parts of its path; nothing hidden, nothing of `written`.

    Links to folders are not followed: one may lead back here.
    """
    place = _absolute(folder)
    own = {path.name for path in written if path.parent == place}  # what is deeper is in a folder of this name
    for name, is_a_folder, is_link in entries_of(folder):
        if name.startswith("."):
            passed_over[_HIDDEN] += 1
        elif name in own:
            continue
        elif is_a_folder:
            yield from _walk(folder / name, written, passed_over)
        elif is_link and is_folder(folder / name):
            passed_over["link to a folder"] += 1
        else:
            yield folder / name


def _fault(path: Path, formats: dict[str, str], known: str) -> str:
    """Why this is no input; "" if it is one."""
    if is_file(path):
        return "" if _format_of(path, formats) else f"input: expected {known}, found {path.name!r} ({path}){_HINT}"
    if not is_there(path):
        link = path.is_symlink()
        found, do = ("a link to nothing", "mend or remove it") if link else ("nothing", "fetch its folder again")
        return f"input: expected a file, found {found} ({path}); {do}"
    return f"input: expected a file or folder, found something else ({path}); write what it gives into a file"


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
    if path.suffix != ".arrow" or not is_file(state := path.parent / _STATE):
        return True
    try:
        listed = _listed(state)
    except ValueError as error:
        raise ConfigError(
            f"input: expected a table's state.json, found {error} ({state}); mend it or name the files"
        ) from error
    return listed is None or path.name in listed


def _listed(state: Path) -> list[str] | None:
    """Names of the files that a `save_to_disk` folder consists of; None if this is the state of something else."""
    try:
        listed = json.loads(read_file(state, MAX_RECIPE_BYTES)).get("_data_files")
        return None if listed is None else [str(each["filename"]) for each in listed]
    except (AttributeError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _lost(state: Path) -> list[Path]:
    """Files that are listed and not there; without them the corpus would be smaller, and nobody would know."""
    try:
        return [path for name in _listed(state) or () if not is_file(path := state.parent / name)]
    except ValueError:
        return []  # the state of something else, as no .arrow file lies beside it


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.parts)
