"""The formats of other tools, by name, and which file of a prefix is which."""

import glob
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.errors import ConfigError
from tokenstore.foreign import datatrove, dolma, headerless, llmc, megatron
from tokenstore.foreign.reading import Documents, TokenFile
from tokenstore.format.layout import MANIFEST_NAME
from tokenstore.paths import entries_of, is_file, is_folder, resolved

AUTO = "auto"


@dataclass(frozen=True)
class Format:
    """A format of another tool.

    Attributes:
        name: as in `--from`.
        ending: of its token files.
        index_endings: of its index files, as they are kept in a store (FMT-14).
        describe: (token file, dtype that the user named) -> TokenFile.
        documents: (index files, largest number of documents) -> the documents of the index, in blocks.
        eos_at: where its tool puts the end-of-text token, if it has no index.
    """

    name: str
    ending: str
    index_endings: tuple[str, ...]
    describe: Callable[[Path, str | None], TokenFile]
    documents: Callable[[tuple[Path, ...], int], Iterator[Documents]]
    eos_at: str = "end"


FORMATS = {
    each.name: each
    for each in (
        Format("megatron", ".bin", megatron.INDEX_ENDINGS, megatron.describe, megatron.documents),
        Format("datatrove", ".ds", datatrove.INDEX_ENDINGS, datatrove.describe, datatrove.documents),
        Format("dolma", ".npy", dolma.INDEX_ENDINGS, dolma.describe, dolma.documents),
        Format("nanogpt", ".bin", headerless.INDEX_ENDINGS, headerless.describe, headerless.documents),
        Format("llmc", ".bin", llmc.INDEX_ENDINGS, llmc.describe, llmc.documents, "start"),
    )
}
_ENDINGS = tuple(dict.fromkeys(each.ending for each in FORMATS.values()))
_SIDE_ENDINGS = (".idx", ".ds.index", ".ds.metadata", ".ds.loss", ".csv.gz")  # of files that belong to a token file


def find_token_files(arguments: Sequence[str], name: str) -> tuple[Format, list[Path]]:
    """The token files that the arguments name, in their order, and their format.

    Args:
        arguments: token files, their prefixes (`x` or `x.idx` for `x.bin`), folders, and glob patterns. Files of a folder or
            pattern are sorted by path.
        name: of the format, or `auto`.

    Raises:
        ConfigError: nothing has that name, the formats differ or cannot be detected, a file is named twice, or a folder or
            pattern holds both training and validation files.
    """
    if name != AUTO and name not in FORMATS:
        raise ConfigError(f"from: expected one of {', '.join([AUTO, *FORMATS])}, found {name!r}")
    endings = _ENDINGS if name == AUTO else (FORMATS[name].ending,)
    paths: list[Path] = []
    for argument in arguments:
        try:
            paths += [path.absolute() for path in _named_by(argument, endings)]
        except OSError as error:
            raise ConfigError(f"input: {argument} cannot be read ({error.strerror}); check its permissions") from error
    if not paths:
        raise ConfigError("input: expected token files, found none; name at least one")
    if repeated := [path for path, count in Counter(map(resolved, paths)).items() if count > 1]:
        raise ConfigError(f"input: {repeated[0]} is named more than once; name every file once")
    if name != AUTO:
        return FORMATS[name], paths
    found = {_detect(path) for path in paths}
    if len(found) > 1:
        raise ConfigError(
            f"input: expected files of one format, found {', '.join(sorted(found))}; adopt them one by one"
        )
    return FORMATS[found.pop()], paths


def _named_by(argument: str, endings: Sequence[str]) -> list[Path]:
    path = Path(argument)
    if is_folder(path):
        found = list(_below(path, endings))
    elif glob.has_magic(argument) and not is_file(path):
        found = [Path(each) for each in sorted(glob.glob(argument, recursive=True)) if each.endswith(tuple(endings))]
    else:
        return [_of_prefix(path, endings)]
    if not found:
        raise ConfigError(
            f"input: {argument} holds no files that end in {' or '.join(endings)}; check the path or --from"
        )
    names = [each.name for each in found]
    if any("train" in each for each in names) and any("val" in each for each in names):
        raise ConfigError(
            f"input: {argument} holds training and validation files ({', '.join(names[:3])}, ...); name the files of one"
            " of them, and adopt the others as a store of their own"
        )
    return found


def _below(folder: Path, endings: Sequence[str]) -> Iterator[Path]:
    """The token files below a folder, sorted by path. Links to folders, hidden files and stores are skipped."""
    for name, is_directory, _ in entries_of(folder):
        if name.startswith("."):
            continue
        if is_directory and not is_file(folder / name / MANIFEST_NAME):
            yield from _below(folder / name, endings)
        elif not is_directory and name.endswith(tuple(endings)) and is_file(folder / name):
            yield folder / name


def _of_prefix(path: Path, endings: Iterable[str]) -> Path:
    """The token file for a path, its prefix, or the path of a file that belongs to it."""
    name = next((path.name.removesuffix(side) for side in _SIDE_ENDINGS if path.name.endswith(side)), path.name)
    choices = [path] if name == path.name else []
    choices += [path.with_name(name + ending) for ending in endings]
    for choice in choices:
        if is_file(choice):
            return choice
    raise ConfigError(
        f"input: {path} does not exist, also not as {', '.join(each.name for each in choices if each != path)}"
    )


def _detect(path: Path) -> str:
    if path.suffix in (".ds", ".npy"):
        return "datatrove" if path.suffix == ".ds" else "dolma"
    if is_file(path.with_name(path.name.removesuffix(path.suffix) + ".idx")):
        return "megatron"
    if llmc.is_llmc(path):
        return "llmc"
    raise ConfigError(
        f"input: {path} has neither an .idx next to it nor a header, so nothing says what it is; for a file of tokens alone"
        " add --from nanogpt, with --dtype unless it is uint16"
    )
