"""Finds the input files and puts them in order, which is the order of their documents in the store."""

import glob
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from tokenstore.builder.reading.remote_inputs import InputPath, RemotePath, is_remote, objects_of, open_input, stat_of
from tokenstore.errors import ConfigError, TokenStoreError
from tokenstore.outside import MAX_RECIPE_BYTES, read_file
from tokenstore.paths import entries_of, is_file, is_folder, is_there, resolved
from tokenstore.store.remote.client import ObjectInfo

TABLES = (".parquet", ".arrow")  # compressed internally, so never with an ending of COMPRESSIONS
FORMATS = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".tar", *TABLES)
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
_SHORT = {".tgz": (".tar", ".gz"), ".tbz2": (".tar", ".bz2"), ".txz": (".tar", ".xz"), ".tzst": (".tar", ".zst")}
STANDARD_INPUT = "-"  # as an input
_STATE = "state.json"
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HEAD_BYTES = 4096
_HINT = "; to read other files as text, name their ending, such as --text-endings .py"
_MOST_SHOWN, _SHOWN = 5, 200
_HIDDEN = ""  # key under which hidden files are counted, where other files have their ending


@dataclass(frozen=True)
class InputFile:
    """One input file.

    Attributes:
        path: absolute, or of an object; links in it are not resolved.
        name: its path below the folder that all inputs share, so that it stays the same if that folder moves.
        format: one of FORMATS, as which the file is read.
        compression: one of COMPRESSIONS, or "".
        num_bytes: size on disk.
        modified_ns: modification time, in nanoseconds.
        partition: columns of a .parquet file that its folders name, as in `lang=en/part-0.parquet`.
    """

    path: InputPath
    name: str
    format: str
    compression: str
    num_bytes: int
    modified_ns: int
    partition: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The input files, and what was skipped.

    Attributes:
        files: in order.
        skipped: number of files with other endings in the folders named, by ending.
        num_hidden: number of files and folders there whose names begin with a dot.
        num_repeated: how many times a file was named again; it is read once.
    """

    files: tuple[InputFile, ...]
    skipped: dict[str, int]
    num_hidden: int = 0
    num_repeated: int = 0


def known_formats(text_endings: Sequence[str] = ()) -> dict[str, str]:
    """The format, one of FORMATS, of every ending that is known."""
    return {ending: ending for ending in FORMATS} | {ending.lower(): ".txt" for ending in text_endings}


def find_inputs(
    arguments: tuple[str, ...],
    text_endings: tuple[str, ...] = (),
    written: Sequence[Path] = (),
    spooled: Path | None = None,
) -> Inputs:
    """Find the input files, in the order of the arguments; within a folder or glob pattern, sorted by path.

    A folder stands for all files with known endings below it. Skipped there are hidden files, links to folders, .json files
    (more often settings than data) and .arrow files that a `save_to_disk` folder does not list. A file named twice is read
    once, at its first place.

    Args:
        arguments: files, folders and glob patterns.
        text_endings: other endings to read like .txt, such as ".py".
        written: absolute paths that the build itself writes; they and all below them are never inputs.
        spooled: the file that holds what `-` stands for, standard input; None if it cannot be read here.

    Raises:
        ConfigError: an argument names nothing, a file has no known ending or is no regular file, a folder cannot be read, or
            a file that `save_to_disk` lists is missing; the first five of these, one per line.
    """
    formats = known_formats(text_endings)
    known = f"{', '.join(formats)}, or one of these followed by {' or '.join(COMPRESSIONS)}"
    found: dict[InputPath, None] = {}
    infos: dict[RemotePath, ObjectInfo] = {}
    skipped: Counter[str] = Counter()
    own = tuple(f"{path}/" for path in written)
    num_named = 0
    wrong: list[str] = []
    try:
        for argument in arguments:
            if argument == STANDARD_INPUT and spooled is not None:
                found[spooled] = None
                num_named += 1
                continue
            if is_remote(argument):
                objects, fault = _objects(argument, formats, known, skipped)
                wrong += [fault] if fault else []
                num_named += len(objects)
                infos |= objects
                found.update(dict.fromkeys(objects))
                continue
            paths = _named_by(argument, formats, written, skipped)
            wrong += [fault for path in paths if (fault := _fault(path, formats, known))]
            if not paths:
                wrong.append(_nothing(argument, known))
            named = [p for p in map(_absolute, paths) if not f"{p}/".startswith(own)]
            num_named += len(named)
            found.update(dict.fromkeys(named))
        if not found and not wrong:
            wrong.append(f"input: {', '.join(arguments)} holds only files that the build itself wrote; name others")
        if not wrong:
            num_hidden = skipped.pop(_HIDDEN, 0)
            files = tuple(_describe(list(found), formats, spooled, infos))
            return Inputs(files, dict(skipped), num_hidden, num_named - len(found))
    except OSError as error:
        place = str(error.filename or ", ".join(arguments))[:_SHOWN]
        wrong.append(f"input: {place} cannot be read ({error.strerror}); check its name and permissions")
    more = f"\nand {len(wrong) - _MOST_SHOWN} more errors like these" if len(wrong) > _MOST_SHOWN else ""
    raise ConfigError("\n".join(wrong[:_MOST_SHOWN]) + more)


def _objects(
    argument: str, formats: dict[str, str], known: str, skipped: Counter[str]
) -> tuple[dict[RemotePath, ObjectInfo], str]:
    """The inputs that a URL names, and what is wrong with it, "" if nothing."""
    try:
        objects = objects_of(argument)
    except TokenStoreError as error:
        return {}, f"input: {str(error).partition(': ')[2]}"
    if list(map(str, objects)) == [argument]:  # one object, by its name
        fault = (
            "" if format_of(next(iter(objects)), formats) else f"input: {argument} has no known ending ({known}){_HINT}"
        )
        return objects, fault
    wanted = {path: info for path, info in objects.items() if format_of(path, formats) and path.suffix != ".json"}
    for path in objects.keys() - wanted.keys():
        skipped[path.suffix or "no ending"] += 1
    if wanted:
        return wanted, ""
    return {}, f"input: {argument} names no object with a known ending ({known}){_HINT}"


def _nothing(argument: str, known: str) -> str:
    if argument == STANDARD_INPUT:
        return "input: - is standard input, which this command cannot read, because it reads its inputs more than once; name files"
    if is_folder(Path(argument)):
        return f"input: {argument} holds no files with a known ending ({known}){_HINT}"
    if glob.has_magic(argument):
        return f"input: no file matches {argument}; check the pattern"
    return f"input: {argument} does not exist; check the path"


def _named_by(argument: str, formats: dict[str, str], written: Sequence[Path], skipped: Counter[str]) -> list[Path]:
    """The paths an argument names; not all of them need be files."""
    path = Path(argument)
    if is_folder(path):
        return _of_folder(path, formats, written, skipped)
    if is_there(path) or path.is_symlink():
        return [path]
    return _sorted(p for p in map(Path, glob.glob(argument, recursive=True)) if not is_folder(p))


def _of_folder(folder: Path, formats: dict[str, str], written: Sequence[Path], skipped: Counter[str]) -> list[Path]:
    wanted: list[Path] = []
    lost: list[Path] = []
    for path in _walk(folder, written, skipped):
        if path.name == _STATE:
            lost += _lost(path)
        if _is_wanted(path, formats):
            wanted.append(path)
        else:
            skipped[path.suffix or "no ending"] += 1
    return wanted + lost


def _walk(folder: Path, written: Sequence[Path], skipped: Counter[str]) -> Iterator[Path]:
    """All paths below a folder that are not folders, sorted by their parts; without hidden ones and those in `written`.

    Links to folders are not followed, as one may lead back here.
    """
    place = _absolute(folder)
    own = {path.name for path in written if path.parent == place}  # deeper ones are found when their folder is walked
    for name, is_a_folder, is_link in entries_of(folder):
        if name.startswith("."):
            skipped[_HIDDEN] += 1
        elif name in own:
            continue
        elif is_a_folder:
            yield from _walk(folder / name, written, skipped)
        elif is_link and is_folder(folder / name):
            skipped["link to a folder"] += 1
        else:
            yield folder / name


def _fault(path: Path, formats: dict[str, str], known: str) -> str:
    """Why this path cannot be an input; "" if it can."""
    if is_file(path):
        return "" if format_of(path, formats) else f"input: {path} has no known ending ({known}){_HINT}"
    if is_there(path):
        return f"input: {path} is a pipe or a device; copy its content to a file, or pipe it in and name the input -"
    if path.is_symlink():
        return f"input: {path} is a link to nothing; fix or remove it"
    return f"input: {path} is missing, though its data set lists it; fetch the folder again"


def _absolute(path: Path) -> Path:
    """One spelling per file, independent of the working directory. Links are not resolved, so a file keeps its name."""
    return resolved(path.parent) / path.name if ".." in path.parts else path.absolute()


def _describe(
    paths: list[InputPath], formats: dict[str, str], spooled: Path | None, infos: dict[RemotePath, ObjectInfo]
) -> list[InputFile]:
    named = [path for path in paths if path != spooled]  # by the user: the others are in the work folder
    shared = min((p.parent.parts for p in named), key=len, default=())
    while not all(p.parts[: len(shared)] == shared for p in named):
        shared = shared[:-1]
    files = []
    for path in paths:
        stat = stat_of(infos[path]) if isinstance(path, RemotePath) else path.stat()
        fmt, compression = format_of(path, formats)  # type: ignore[misc]  # only files of a known format come here
        if fmt == ".json" and not compression and not _is_array(path):
            fmt = ".jsonl"  # which can be cut
        name = path.name if path == spooled else "/".join(path.parts[len(shared) :])
        partition = _partition(path) if fmt == ".parquet" else ()
        files.append(InputFile(path, name, fmt, compression, stat.st_size, stat.st_mtime_ns, partition))
    return files


def _partition(path: InputPath) -> tuple[tuple[str, str | None], ...]:
    """Columns and values that the folders of a hive-partitioned table name. The innermost of one name counts."""
    pairs = (part.split("=", 1) for part in path.parent.parts if "=" in part[1:])
    found = {unquote(name): None if value == _HIVE_NULL else unquote(value) for name, value in pairs}
    return tuple(sorted(found.items()))


def _is_array(path: InputPath) -> bool:
    """Whether a .json file begins like an array. Many files of this name hold a record per line."""
    with io.BufferedReader(open_input(path)) as file:
        return starts_array(file.read(_HEAD_BYTES))


def starts_array(head: bytes) -> bool:
    """Whether JSON that begins with these bytes is an array."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def format_of(name: str | InputPath, formats: dict[str, str]) -> tuple[str, str] | None:
    """(format, compression) of a file by its name; None if its ending is not known."""
    path = PurePosixPath(name) if isinstance(name, str) else name
    # As `path.suffixes`, which takes three times as long: this is called three times for each of a million files
    parts = [] if path.name.endswith(".") else path.name.lstrip(".").lower().split(".")[1:]
    suffixes = [f".{part}" for part in parts[-2:]]
    if suffixes and suffixes[-1] in _SHORT:
        return _SHORT[suffixes[-1]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    found = formats.get(suffixes[-1]) if suffixes else None
    return None if found is None or (compression and found in TABLES) else (found, compression)


def _is_wanted(path: Path, formats: dict[str, str]) -> bool:
    """Whether a file found in a folder is an input."""
    return format_of(path, formats) is not None and path.suffix.lower() != ".json" and _is_listed(path)


def _is_listed(path: Path) -> bool:
    """Whether a `save_to_disk` folder lists this .arrow file as data. Caches of other tables may be in the same folder."""
    if path.suffix != ".arrow" or not is_file(state := path.parent / _STATE):
        return True
    try:
        listed = _listed(state)
    except ValueError as error:
        raise ConfigError(
            f"input: {state} is not the state of a saved data set ({error}); fix it, or name the .arrow files themselves"
        ) from error
    return listed is None or path.name in listed


def _listed(state: Path) -> list[str] | None:
    """Names of the files of a `save_to_disk` folder; None if `state` belongs to something else.

    Raises:
        ValueError: it is not the JSON that `save_to_disk` writes.
    """
    try:
        listed = json.loads(read_file(state, MAX_RECIPE_BYTES)).get("_data_files")
        return None if listed is None else [str(each["filename"]) for each in listed]
    except (AttributeError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _lost(state: Path) -> list[Path]:
    """Files that are listed but missing. Ignoring them would silently build a smaller store."""
    try:
        return [path for name in _listed(state) or () if not is_file(path := state.parent / name)]
    except ValueError:
        return []  # the state of something else; if .arrow files are next to it, `_is_listed` reports it


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.parts)
