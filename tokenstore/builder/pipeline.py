"""A whole build (P8): lock, make or find the parts, put them together in order, commit.

<output>.tokenstore/      the work folder, locked while building (store/work.py); it goes when nothing is left in it
    building/             recipe.json, parts/ (durable, resumed from), store/ (made again each run)
    rejects.jsonl         the bad records, if any
<output>                  appears in one rename, whole (FMT-7)
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenstore.builder.assemble import Tally, assemble, finish, new_writer, splits_of, store_folders
from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.documents.encode import special_ids
from tokenstore.builder.documents.templates import foreign_template_note
from tokenstore.builder.executors.processes import run_units
from tokenstore.builder.options import BuildOptions, BuildProgress, BuildResult
from tokenstore.builder.part import load_part, part_key
from tokenstore.builder.reading.checksums import KnownChecksums, changed
from tokenstore.builder.reading.inputs import InputFile, Inputs, find_inputs
from tokenstore.builder.reading.units import cut_units
from tokenstore.builder.recipe import (
    differences,
    manifest_fields,
    open_tokenizer,
    recipe_of,
    side_files,
    with_mask_field,
)
from tokenstore.builder.replacing import NO_STORE, check_replaceable, commit, is_free
from tokenstore.builder.resume import (
    REJECTS_PART,
    check_recipe,
    publish_rejects,
    tidy,
    time_of_work,
    write_recipe,
)
from tokenstore.errors import BadRecordsError, BuildError, ConfigError, FormatError, counted
from tokenstore.format.layout import INPUTS_NAME
from tokenstore.format.manifest import Manifest, TokenizerEntry
from tokenstore.paths import is_file, is_there, mode_of
from tokenstore.store.files import free_bytes
from tokenstore.store.input_list import checked_rows
from tokenstore.store.length_index import write_order
from tokenstore.store.reader import open_store
from tokenstore.store.work import Work, exclusive_work
from tokenstore.store.writer import StoreWriter
from tokenstore.store.writing import create_again, make_folders, new_folder, remove_tree, sync
from tokenstore.tokenizer import Tokenizer

Progress = Callable[[BuildProgress], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A build made ready: its options settled, its inputs found, its tokenizer loaded."""

    options: BuildOptions
    output: Path
    files: Sequence[InputFile]
    passed_over: dict[str, int]
    tokenizer: Tokenizer
    entry: TokenizerEntry | None
    recipe: dict[str, Any]
    version: int = 1  # of the store that will be there

    @property
    def work(self) -> Work:
        return Work(self.output)

    @property
    def rejects(self) -> Path:
        """Where the bad records will be listed, if any."""
        return self.work.rejects(self.version)


def build_store(
    options: BuildOptions,
    progress: Progress = lambda progress: None,
    note: Note = lambda text: None,
) -> BuildResult:
    """Tokenize the inputs into a store, or find it already made by the same command.

    Args:
        options: what to build.
        progress: called a few times a second while tokenizing.
        note: called with one line of text on what a person should know.
    Returns: the store that is there now; with splits, their totals and each of them.

    Raises:
        ConfigError: options that cannot be met, or others than those of the store or unfinished build that is there.
        StoreBusyError: another process is building the same output.
        BadRecordsError: more bad records than allowed; they stand in the rejects file.
        BuildError: an input is damaged, the disk is full, a worker died. The same command resumes.
    """
    output = output_path(options)
    if is_file(output):
        raise ConfigError(NO_STORE.format(output))
    # Links to it and to its folder are the user's choice, and followed once; the work is done beside the store itself
    output = output.resolve() if output.is_symlink() else output.parent.resolve() / output.name
    job = prepare(options, output, None, note)
    with resumable(output):
        make_folders(output.parent)
        with exclusive_work(output) as work:
            if options.overwrite:
                check_replaceable(output)
                remove_tree(work.building)
            elif found := _finished(job):
                tidy([work.building], note)
                return found
            return _build(job, progress, note)


def output_path(options: BuildOptions) -> Path:
    """The output, absolute; ConfigError where it cannot be known what is there."""
    output = Path(options.output).absolute()
    try:
        mode_of(output)
    except OSError as error:
        raise ConfigError(
            f"output: expected a path that may be used, found {error.strerror} ({output}); check the path and its permissions"
        ) from error
    return output


def prepare(options: BuildOptions, output: Path, entry: TokenizerEntry | None, note: Note) -> Job:
    """Find the inputs and load the tokenizer; `entry` is the tokenizer's in a store that is there already."""
    named = Path(options.output).absolute()
    written = [path for each in (output, named) for path in (each, Work(each).folder)]  # never read as an input
    inputs = find_inputs(options.inputs, options.text_endings, written)
    _note_passed_over(inputs, note)
    if entry is None:  # else it was settled when the store was built
        options = with_mask_field(options, inputs.files)
    tokenizer = open_tokenizer(options, entry)
    if tokenizer.engine_note:
        note(tokenizer.engine_note)
    special_ids(tokenizer, options)
    if entry is None:
        if options.eos and options.records != "chat":  # a template ends its own turns
            doubts = tokenizer.eos_note
        else:
            doubts = foreign_template_note(options.chat_template, tokenizer.special_tokens)
        if doubts:
            note(doubts)
    recipe = recipe_of(options, tokenizer, inputs.files)
    return Job(options, output, inputs.files, inputs.passed_over, tokenizer, entry, recipe)


def _note_passed_over(inputs: Inputs, note: Note) -> None:
    if inputs.passed_over:
        most = sorted(inputs.passed_over.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{number} {ending}" for ending, number in most[:5]) + (", ..." if len(most) > 5 else "")
        note(f"skipped {counted(sum(inputs.passed_over.values()), 'file')} with other endings ({shown})")
    if inputs.num_hidden:
        note(
            f"skipped {counted(inputs.num_hidden, 'hidden file or folder', 'hidden files or folders')}, whose names begin"
            " with a dot; to read one, name it as an input"
        )
    if inputs.num_repeated:
        note(f"skipped {counted(inputs.num_repeated, 'repeated input')}: each input is read once")


def _build(job: Job, progress: Progress, note: Note) -> BuildResult:
    working = job.work.building / "store"
    open_work(job, job.recipe, note)
    remove_tree(working)
    new_folder(working)
    names = _names(job.options)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(new_writer(folder, job.tokenizer.vocab_size, job.options))
            for folder in store_folders(working / "made", job.options)
        ]
        tally = fill(job, writers, progress, note)
        for store, (name, writer) in enumerate(zip(names, writers, strict=True)):
            for file, data in side_files(job.options, job.tokenizer).items():
                writer.add_file(file, data)
            finish(writer, tally, store, name, manifest_fields(job.recipe, name))
            write_order(writer.folder)
    rejects = publish_rejects(job.work, job.rejects)  # before the store: a store that is there is left alone
    commit(working / "made", job.output, note)
    keep_checksums(job, tally)
    tidy([job.work.building], note)
    return _result(job, rejects, was_there=False)


def keep_checksums(job: Job, tally: Tally) -> None:
    """Keep what the inputs were, so that the same command need not read them all to see that they are the same."""
    known = KnownChecksums(job.work)
    known.add(job.files, tally.checksums)
    known.keep()


def open_work(
    job: Job,
    recipe: dict[str, Any],
    note: Note,
    advice: str = "use the same options, or --overwrite to begin again",
) -> None:
    """Begin the work, or take up an unfinished one made by the same recipe.

    Recipes are compared, and with them the hashes of the user's functions, before a function is imported.
    """
    check_recipe(job.work, recipe, note, advice)
    DocumentReader(job.options, job.tokenizer)  # functions or a template that do not load are reported before any work
    write_recipe(job.work, recipe)


def fill(job: Job, writers: Sequence[StoreWriter], progress: Progress, note: Note) -> Tally:
    """Make the parts that are not there yet, and append all documents to `writers`.

    Raises: BadRecordsError: more bad records than allowed; they stand in the rejects file then.
    """
    units = cut_units(job.files)
    began = time_of_work(job.work)
    keys = [part_key(unit, job.files, job.recipe, began) for unit in units]
    # Named by key: a build of other inputs, killed, has not touched the files of these parts.
    stems = [job.work.building / "parts" / key[:32] for key in keys]
    done = [load_part(stem, key, unit, job.files) for stem, key, unit in zip(stems, keys, units, strict=True)]
    if any(done):
        note(f"resuming: {sum(part is not None for part in done)} of {len(units)} parts are done")
    with create_again(job.work.building / REJECTS_PART) as rejects:
        tally = Tally(job.files, len(writers), rejects)
        made = run_units(job.options, job.entry, job.files, units, keys, stems, done, job.tokenizer, progress, note)
        try:
            with contextlib.closing(made) as parts:  # no worker goes on behind a build that has failed
                assemble(parts, units, tally, job.options, writers, job.work.building / "dedup")
            sync(rejects)
        except BadRecordsError:
            sync(rejects)
            _fail_bad(job, tally)
    return tally


def _fail_bad(job: Job, tally: Tally) -> None:
    path, first = publish_rejects(job.work, job.rejects), tally.first_bad
    raise BadRecordsError(
        f"bad records: {tally.num_bad} so far, and {job.options.max_bad} are allowed; the first is record {first['record']}"
        f" of {first['file']}: {first['reason']} (those read so far are listed in {path}); fix them, or allow more with --max-bad. No store was written; what is"
        " tokenized is kept, and the same command resumes"
    ) from None


def _finished(job: Job) -> BuildResult | None:
    """The store at the output, if the same command made it; None if nothing is there; ConfigError for anything else."""
    if is_free(job.output):
        return None
    names = _names(job.options)
    for name, folder in zip(names, store_folders(job.output, job.options), strict=True):
        try:
            with open_store(folder) as store:
                manifest = store.manifest
                rows = [row for _, row in checked_rows(store.file(INPUTS_NAME), store.entry(INPUTS_NAME), len(store))]
        except FormatError as error:
            raise ConfigError(NO_STORE.format(job.output)) from error
        old: dict[str, Any] = {
            "options": manifest.options,
            "tokenizer": vars(manifest.tokenizer),
            "library_versions": manifest.library_versions,
        }
        old["inputs"] = [[row.file, row.num_bytes] for row in rows]
        recorded = {row.file: row.checksum for row in rows}
        fields = manifest_fields(job.recipe, name)
        new = {
            "options": fields["options"],
            "tokenizer": job.recipe["tokenizer"],
            "library_versions": job.recipe["library_versions"],
        }
        new["inputs"] = [[file.name, file.num_bytes] for file in job.files]
        if different := differences(old, new):
            raise ConfigError(
                f"output: {folder} holds a store that was built from other inputs or with other options: {different};"
                " use --overwrite or another output, or `tokenstore append` to add inputs"
            )
        write_order(folder)  # one that an older version made has none
    known = KnownChecksums(job.work)
    if others := changed(known, job.files, recorded):  # the same for all splits
        raise ConfigError(
            f"input: {others[0].path} is not what the store was made of: its size is the same, but its bytes are not"
            f" ({len(others)} of {counted(len(job.files), 'input')}; {job.output}); use --overwrite to build again, or another output"
        )
    known.keep()
    return _result(job, job.rejects if is_there(job.rejects) else None, was_there=True)


def _names(options: BuildOptions) -> list[str | None]:
    """Names of the splits; one store without a name where there are none."""
    return [split.name for split in splits_of(options)] or [None]


def _result(job: Job, rejects: Path | None, was_there: bool) -> BuildResult:
    results = []
    for folder in store_folders(job.output, job.options):
        with open_store(folder) as store:
            results.append(result_of(folder, store.manifest, rejects, was_there))
    return whole_result(job.output, results) if splits_of(job.options) else results[0]


def whole_result(output: Path, results: Sequence[BuildResult]) -> BuildResult:
    """The totals of the stores of a build's splits."""
    first = results[0]
    counts = {**first.counts, "documents": sum(result.num_documents for result in results)}
    return replace(
        first,
        path=output,
        num_documents=counts["documents"],
        num_tokens=sum(result.num_tokens for result in results),
        digest="",
        num_shards=sum(result.num_shards for result in results),
        new_documents=sum(result.new_documents for result in results),
        new_tokens=sum(result.new_tokens for result in results),
        counts=counts,
        splits=tuple(results),
    )


def result_of(
    path: Path, manifest: Manifest, rejects: Path | None, was_there: bool, base: Manifest | None = None
) -> BuildResult:
    """What is said of a store that is there now, and was `base` before, if it has grown."""
    before = manifest if was_there else base
    return BuildResult(
        path=path,
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        digest=manifest.digest,
        num_shards=len(manifest.shards),
        eos_id=manifest.tokenizer.eos_id if manifest.ends_with_eos else None,
        eos_token=manifest.options.get("eos_token") if manifest.ends_with_eos else None,
        counts=manifest.counts,
        rejects=rejects,
        was_there=was_there,
        new_documents=manifest.num_documents - (before.num_documents if before else 0),
        new_tokens=manifest.num_tokens - (before.num_tokens if before else 0),
    )


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Say what a failing disk or an interruption means for the build."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note("the same command resumes")
        raise
    except OSError as error:
        try:
            free = f"{free_bytes(output.parent) >> 20} MB free there"
        except OSError:
            free = "its free space unknown"
        place = error.filename or output
        raise BuildError(
            f"disk: expected to write {place}, found {error.strerror or error} ({free}); what is done is kept: mend it and run the same command again, it resumes"
        ) from error
