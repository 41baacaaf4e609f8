"""`tokenstore.build`: the command `tokenstore build` as a function, also for records from Python."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from tokenstore.builder.options import BuildOptions, check_names
from tokenstore.builder.pipeline import build_store
from tokenstore.builder.reading.inputs import STANDARD_INPUT
from tokenstore.builder.result import BuildResult, Note, Progress
from tokenstore.store.remote.location import is_url


def build(
    inputs: str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]],
    output: str | Path,
    tokenizer: str | Path,
    *,
    progress: Progress = lambda progress: None,
    note: Note = lambda text: None,
    **options: Any,
) -> BuildResult:
    """Build a store from files, or from records that a Python iterable yields. As `tokenstore build`, with the same options.

    A build that was killed resumes when it is called again. Records are first written to a file in the folder
    `OUTPUT.tokenstore`; if the iterable yields the same records again, finished work is kept. The store is the same as the one
    that `tokenstore build` makes of a .jsonl file with these records.

    Args:
        inputs: a path, or a list of paths: files, folders and glob patterns. Anything else is an iterable of records: dicts
            with the fields that a line of a .jsonl file would have, such as a data set of Hugging Face or a generator.
        output: folder of the new store; with splits, of one store per split.
        tokenizer: as in `tokenstore build`.
        progress: called several times per second while tokenizing, with a `BuildProgress`.
        note: called with one line of text for each thing a user should know.
        options: the other fields of `BuildOptions`, by name.

    Returns:
        The finished store. If it was there already, nothing is done.

    Raises:
        ConfigError: the options are invalid or impossible, or the output holds something else.
        StoreBusyError: another process is building the same output.
        BadRecordsError: more bad records than allowed; a file lists them.
        BuildError: an input is damaged, the disk is full, or a worker died. Calling it again resumes.
        TypeError, ValueError: an option is unknown; or a record is no dict, or holds a value without a form in JSON.

    Example:
        >>> tokenstore.build("data/*.jsonl", "stores/web", tokenizer="tokenizer.json", workers=8)
        >>> tokenstore.build(({"text": text} for text in texts), "stores/mine", tokenizer="bytes")
    """
    check_names("build", options, {each.name for each in fields(BuildOptions)})
    paths = [inputs] if isinstance(inputs, (str, Path)) else inputs
    is_paths = isinstance(paths, (list, tuple)) and all(isinstance(each, (str, Path)) for each in paths)
    named = tuple(map(str, cast(Sequence[str], paths))) if is_paths else (STANDARD_INPUT,)
    chosen = BuildOptions(
        inputs=named, output=output if is_url(output) else Path(output), tokenizer=str(tokenizer), **options
    )
    return build_store(chosen, progress, note, records=None if is_paths else cast(Iterable[Mapping[str, Any]], paths))
