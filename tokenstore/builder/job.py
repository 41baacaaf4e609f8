"""Prepares a build: finds its inputs, loads its tokenizer, makes its recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenstore.builder.documents.encode import special_ids
from tokenstore.builder.documents.templates import foreign_template_note
from tokenstore.builder.hub import with_local_files
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.reading.inputs import InputFile, Inputs, find_inputs
from tokenstore.builder.recipe import open_tokenizer, recipe_of, with_mask_field
from tokenstore.builder.result import Note
from tokenstore.errors import counted
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store.work import Work
from tokenstore.tokenizer import Tokenizer


@dataclass(frozen=True)
class Job:
    """A build that is ready to run: options completed, inputs found, tokenizer loaded.

    Attributes:
        options: with `mask_field` set where it was found in the first record.
        output: the store's path, absolute, links resolved.
        files: the inputs, in order.
        skipped: how many files with other endings were skipped, by ending.
        tokenizer: loaded.
        entry: the tokenizer recorded in the store that an append extends; None in a build.
        recipe: what decides the store's bytes; see `recipe.recipe_of`.
        version: the store's version after this run (FMT-13).
    """

    options: BuildOptions
    output: Path
    files: Sequence[InputFile]
    skipped: dict[str, int]
    tokenizer: Tokenizer
    entry: TokenizerEntry | None
    recipe: dict[str, Any]
    version: int = 1

    @property
    def work(self) -> Work:
        """The paths of the output's work folder."""
        return Work(self.output)

    @property
    def rejects(self) -> Path:
        """Where the bad records will be listed, if any."""
        return self.work.rejects(self.version)


def prepare(
    options: BuildOptions, output: Path, entry: TokenizerEntry | None, note: Note, spooled: Path | None = None
) -> Job:
    """Find the inputs and load the tokenizer.

    Args:
        options: what to build.
        output: the store's path, links resolved.
        entry: the tokenizer recorded in the store that an append extends; None in a build.
        note: see `build_store`.
        spooled: the file with what the input `-` stands for.

    Raises:
        ConfigError: an input or the tokenizer is missing or unusable.
    """
    options = with_local_files(options, note)
    named = Path(options.output).absolute()
    written = [path for each in (output, named) for path in (each, Work(each).folder)]  # never inputs
    inputs = find_inputs(options.inputs, options.text_endings, written, spooled)
    _note_skipped(inputs, note)
    if entry is None:  # an append uses what the build found
        options = with_mask_field(options, inputs.files)
    tokenizer = open_tokenizer(options, entry)
    if tokenizer.engine_note:
        note(tokenizer.engine_note)
    special_ids(tokenizer, options)
    if entry is None:
        if options.eos and options.records != "chat":  # a chat template ends its turns itself
            doubts = tokenizer.eos_note
        else:
            doubts = foreign_template_note(options.chat_template, tokenizer.special_tokens)
        if doubts:
            note(doubts)
    recipe = recipe_of(options, tokenizer, inputs.files)
    return Job(options, output, inputs.files, inputs.skipped, tokenizer, entry, recipe)


def _note_skipped(inputs: Inputs, note: Note) -> None:
    if inputs.skipped:
        most = sorted(inputs.skipped.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{number} {ending}" for ending, number in most[:5]) + (", ..." if len(most) > 5 else "")
        note(f"skipped {counted(sum(inputs.skipped.values()), 'file')} with other endings ({shown})")
    if inputs.num_hidden:
        note(
            f"skipped {counted(inputs.num_hidden, 'hidden file or folder', 'hidden files or folders')}, whose names begin"
            " with a dot; to read one, name it as an input"
        )
    if inputs.num_repeated:
        note(f"skipped {counted(inputs.num_repeated, 'repeated input')}: each input is read once")
