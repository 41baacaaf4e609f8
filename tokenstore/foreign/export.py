"""Writes a store as token files of another tool. Tokens are shared by hard links where the format allows it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenstore.builder.replacing import commit, is_free, resolved_output
from tokenstore.builder.resume import tidy
from tokenstore.errors import BuildError, ConfigError, counted
from tokenstore.foreign import datatrove, dolma, llmc, megatron
from tokenstore.foreign.export_checks import check_export, starts_with_eos
from tokenstore.foreign.formats import FORMATS
from tokenstore.foreign.options import ExportOptions
from tokenstore.foreign.parts import Part, parts_of
from tokenstore.paths import entries_of, resolved
from tokenstore.store.reader import Store, open_store
from tokenstore.store.work import exclusive_work
from tokenstore.store.writing import create, link_file, make_folders, remove_tree, sync

Note = Callable[[str], None]
Progress = Callable[[int, int], None]  # tokens written, tokens in all


@dataclass(frozen=True)
class ExportResult:
    """Token files that were made from a store.

    Attributes:
        path: their folder.
        format: of the files.
        files: the token files, in the order of the store.
        side_files: the files beside them that the tool reads too, sorted by name: indexes, metadata, loss masks.
        num_documents, num_tokens: in all files.
        num_linked, num_copied: token files that share their bytes with the store, and others.
    """

    path: Path
    format: str
    files: tuple[Path, ...]
    side_files: tuple[Path, ...]
    num_documents: int
    num_tokens: int
    num_linked: int
    num_copied: int


def export_store(
    options: ExportOptions,
    progress: Progress = lambda done, total: None,
    note: Note = lambda text: None,
) -> ExportResult:
    """Write a store as token files of another tool.

    Args:
        options: the store, the format and the folder.
        progress: called with the tokens written so far and in all.
        note: called with one line of text for each thing a user should know.

    Raises:
        ConfigError: the format cannot hold the store, or the output exists.
        TokenStoreError: the store cannot be opened, or is damaged.
        BuildError: a file cannot be written.

    Example:
        >>> export_store(ExportOptions(Path("stores/web"), "megatron", Path("export"))).files
    """
    output = resolved_output(options.output)
    if not is_free(output):
        raise ConfigError(f"output: {output} exists and is not empty; choose another folder")
    with open_store(options.store, version=options.version, allow_links=options.allow_links) as store:
        check_export(store, options)
        parts = parts_of(store, options.name or store.path.name, options.one_file or options.to == "nanogpt")
        try:
            make_folders(output.parent)
            with exclusive_work(output) as work:
                remove_tree(work.building)
                make_folders(folder := work.building / "export")
                try:
                    linked = _Export(store, options, folder, progress).write(parts)
                    names = [name for name, *_ in entries_of(folder)]
                    commit(folder, output, note)
                finally:
                    tidy([work.building], note)
        except OSError as error:
            raise BuildError(
                f"export: cannot write {error.filename or output}: {error.strerror or error}; fix the cause and run the command again"
            ) from error
        _notes(store, options, linked, note)
        files = tuple(output / f"{part.name}{FORMATS[options.to].ending}" for part in parts)
        side_files = tuple(path for name in names if (path := output / name) not in files)
        counts = (len(store), store.num_tokens, linked, len(parts) - linked)
        return ExportResult(output, options.to, files, side_files, *counts)


def _notes(store: Store, options: ExportOptions, linked: int, note: Note) -> None:
    if linked:
        note(
            "the token files are hard links to the shards of the store: a write to one would damage the store; --copy copies them"
        )
    if store.has_ids and options.to != "dolma":
        note(f"{options.to} files have no place for the ids of documents: they are not exported")
    if store.manifest.has_masks and options.to != "datatrove":
        note("the loss masks are not exported: every token counts in the loss")
    if options.to == "llmc" and store.manifest.ends_with_eos:
        note("the end-of-text token is before each document, as llm.c has it, not after it")
    if options.to == "megatron" and len(store.shards()) > 1 and not options.one_file:
        weights = "--data-path takes each prefix after its weight"
        note(
            f"{counted(len(store.shards()), 'prefix', 'prefixes')}, one per shard: {weights}; --one-file writes one, by copying"
        )


class _Export:
    """Writes the files of all parts into a folder."""

    def __init__(self, store: Store, options: ExportOptions, folder: Path, progress: Progress):
        self._store, self._options, self._folder, self._progress = store, options, folder, progress
        self._begins = options.to == "llmc" and starts_with_eos(
            store
        )  # reads a token of every document: once for all parts
        self._done = 0

    def write(self, parts: list[Part]) -> int:
        """Write all files; return how many token files are links."""
        return sum(self._write_part(part) for part in parts)

    def _write_part(self, part: Part) -> bool:
        to = self._options.to
        tokens = self._folder / f"{part.name}{FORMATS[to].ending}"
        is_linked = not self._options.copy and self._can_link(part) and link_file(self._source(part), tokens)
        if not is_linked:
            self._write(tokens, self._tokens(part))
        if to == "megatron":
            self._write(tokens.with_suffix(".idx"), megatron.index_of(part))
        elif to == "datatrove":
            self._write(tokens.with_name(tokens.name + ".index"), datatrove.index_of(part))
            self._write(tokens.with_name(tokens.name + ".metadata"), datatrove.metadata_of(part))
            if self._store.manifest.has_masks:
                self._write(tokens.with_name(tokens.name + ".loss"), part.loss())
        elif to == "dolma":
            with create(tokens.with_suffix(".csv.gz")) as file:
                dolma.write_rows(file, part)
                sync(file)
        self._progress(self._done, self._store.num_tokens)
        return is_linked

    def _can_link(self, part: Part) -> bool:
        """Whether the file of a shard is a token file of the format as it is."""
        if len(part.shards) != 1:
            return False
        shard = part.entries[0]
        if self._options.to != "llmc":
            return shard.first_byte == 0
        if shard.first_byte != llmc.HEADER_BYTES or not self._begins:
            return False
        try:
            return llmc.describe(self._source(part), None).num_tokens == shard.num_tokens
        except BuildError:
            return False

    def _source(self, part: Part) -> Path:
        return resolved(part.path(part.shards.start))

    def _tokens(self, part: Part) -> Iterable[np.ndarray]:
        if self._options.to != "llmc":
            yield from part.tokens()
            return
        yield llmc.header_of(part)
        eos_id = self._store.manifest.tokenizer.eos_id
        if eos_id is not None and self._store.manifest.ends_with_eos and not self._begins:
            yield from llmc.rotated(part, eos_id)
        else:
            yield from part.tokens()

    def _write(self, path: Path, blocks: Iterable[np.ndarray]) -> None:
        with create(path, buffering=1 << 20) as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block).data.cast("B"))
                if path.name.endswith(FORMATS[self._options.to].ending):
                    self._done += block.size
                    self._progress(min(self._done, self._store.num_tokens), self._store.num_tokens)
            sync(file)
