"""A whole build (P8): lock the output, make or reuse the parts, assemble them in order, commit.

    <output>.tokenstore/      the work folder, locked during a build (store/work.py); removed at the end if nothing is left in it
        building/             recipe.json, parts/ (durable, reused), store/ (made again in each run)
        rejects.jsonl         the bad records, if any
    <output>                  the store; appears complete, by one rename (FMT-7)

What a run killed at each point leaves, and what the same command does next:

    while tokenizing           finished parts; they are reused, the others made again (part.py)
    while assembling           all parts and half a store in building/; the parts are assembled again
    after the bad records      rejects.jsonl, but no store; it is written again
    while replacing a store    see `replacing.commit`
    after the commit           the store, and building/; the store is recognised as finished and building/ removed

The one invariant: nothing has the output's name before all its files are synced.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore.builder.assemble import Tally, assemble, finish, new_writer
from tokenstore.builder.disk import resumable
from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.documents.encode import special_ids
from tokenstore.builder.executors.processes import run_units
from tokenstore.builder.finished import check_same, finished, result_at_output
from tokenstore.builder.group_build import GroupBuild
from tokenstore.builder.groups import owners_of
from tokenstore.builder.hub import with_local_files
from tokenstore.builder.job import Job, prepare
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import part_key
from tokenstore.builder.reading.checksums import KnownChecksums
from tokenstore.builder.reading.inputs import STANDARD_INPUT
from tokenstore.builder.reading.units import cut_units, group_unit_bytes
from tokenstore.builder.recipe import (
    manifest_fields,
    open_tokenizer,
    side_files,
)
from tokenstore.builder.remote_output import is_there as is_complete
from tokenstore.builder.remote_output import location_of, result_at, send, tidy_scratch, urls_of, with_scratch
from tokenstore.builder.replacing import check_replaceable, commit, resolved_output
from tokenstore.builder.result import BuildResult, Note, Progress
from tokenstore.builder.resume import (
    REJECTS_PART,
    check_recipe,
    is_replacement,
    last_number_of_tasks,
    publish_rejects,
    tidy,
    time_of_work,
    write_recipe,
)
from tokenstore.builder.schedule import Schedule, Task, load_schedule, missing_message
from tokenstore.builder.spool import spool_folder, spooled_input
from tokenstore.builder.stores import Place, Writers, places_of
from tokenstore.errors import BadRecordsError, BuildError, ConfigError, counted
from tokenstore.format.layout import token_dtype
from tokenstore.paths import is_there
from tokenstore.store.length_index import write_length_index
from tokenstore.store.private import remove_abandoned
from tokenstore.store.remote.location import Location
from tokenstore.store.work import exclusive_work
from tokenstore.store.writer import FileWriter
from tokenstore.store.writing import create_again, make_folders, new_folder, remove_tree, sync


def build_store(
    options: BuildOptions,
    progress: Progress = lambda progress: None,
    note: Note = lambda text: None,
    complete: bool = False,
    records: Iterable[Mapping[str, Any]] | None = None,
) -> BuildResult:
    """Tokenize inputs into a store. If the output is already the store that these options make, do nothing.

    Args:
        options: what to build.
        progress: called several times per second while tokenizing.
        note: called with one line of text for each thing a user should know.
        complete: all parts were made by tasks (`build_task`); assemble them, and make none.
        records: what the input `-` stands for, instead of standard input.

    Returns:
        The finished store; with splits, their totals and each of them.

    Raises:
        ConfigError: the options are invalid or impossible, or the output holds something else: another store, an unfinished
            build with other options, or files that are no store.
        StoreBusyError: another process is building the same output.
        BadRecordsError: more bad records than allowed; the rejects file lists them.
        BuildError: an input is damaged, the disk is full, or a worker died. Calling it again resumes. Or parts are missing
            although `complete`; the message names the tasks that make them.

    Example:
        >>> options = BuildOptions(inputs=("data/*.jsonl",), output=Path("stores/web"), tokenizer="bytes")
        >>> result = build_store(options)
        >>> result.num_tokens, result.digest
    """
    if place := location_of(options):
        return _build_at(place, options, progress, note, complete, records)
    return _build_here(options, progress, note, complete, records)


_Records = Iterable[Mapping[str, Any]] | None


def _build_at(
    place: Location, options: BuildOptions, progress: Progress, note: Note, complete: bool, records: _Records
) -> BuildResult:
    """Build in a scratch folder and upload, unless the same command has done so."""
    if options.partition_by is not None:
        raise ConfigError(
            f"partition_by: not with an output at a URL ({place.url}); build into a folder, and copy the stores"
        )
    scratch, stores = with_scratch(options, place), places_of(options, None)
    names = [each.split for each in stores]
    if not options.overwrite and STANDARD_INPUT not in options.inputs and is_complete(place, names):
        output = resolved_output(scratch.output)
        check_same(prepare(scratch, output, None, note), stores, urls_of(place, names))
        with resumable(output):
            tidy_scratch(output, place, names)
        return result_at(place, names, was_there=True)
    made = _build_here(scratch, progress, note, complete, records)
    with resumable(Path(made.path)):
        return send(made, options, place, names, progress, note)


def _build_here(
    options: BuildOptions, progress: Progress, note: Note, complete: bool, records: _Records
) -> BuildResult:
    output = resolved_output(options.output)
    is_spooled = STANDARD_INPUT in options.inputs
    if is_spooled:
        special_ids(
            open_tokenizer(with_local_files(options)), options
        )  # so that errors appear before the input is read
    else:
        job = prepare(options, output, None, note)
    with resumable(output):
        make_folders(output.parent)
        with exclusive_work(output, options.break_lock) as work:
            if is_spooled:
                job = prepare(options, output, None, note, spooled_input(work, options, records))
            if options.overwrite:
                check_replaceable(output)
                if not complete:
                    remove_tree(work.building)
            elif found := _finished_or_refused(job, note):
                tidy([work.building, spool_folder(work)], note)
                return found
            return _build(job, progress, note, complete)


def _finished_or_refused(job: Job, note: Note) -> BuildResult | None:
    """As `finished`. If another store is at the output, what was read from standard input is of no use any more.

    ConfigError also if tasks have made parts to replace the store: the caller would remove them.
    """
    try:
        found = finished(job)
    except ConfigError:
        tidy([spool_folder(job.work)], note)
        raise
    if found and is_replacement(job.work):
        raise ConfigError(
            f"output: {job.output} is complete, and tasks with --overwrite have made parts to replace it"
            f" ({job.work.building}); add --overwrite, or remove that folder to keep the store"
        )
    return found


def _build(job: Job, progress: Progress, note: Note, complete: bool) -> BuildResult:
    working = job.work.building / "store"
    open_work(job, job.recipe, note)
    remove_abandoned(job.work.building / "parts")
    remove_tree(working)
    new_folder(working)
    if job.options.group_bytes:
        places = places_of(job.options, None)
        tally = _join(job, [place.below(working / "made") for place in places], progress, note, complete)
        partitions = None
    else:
        tally, places, partitions = _assemble(job, working / "made", progress, note, complete)
    for place in places:
        write_length_index(place.below(working / "made"))
    # Before the commit: once there is a store, the same command changes nothing, so the list would never appear
    rejects = publish_rejects(job.work, job.rejects)
    commit(working / "made", job.output, note)
    keep_checksums(job, tally)
    tidy([job.work.building, spool_folder(job.work)], note)
    return result_at_output(job, partitions, rejects, was_there=False)


def note_empty_columns(writer: FileWriter, note: Note) -> None:
    """Tell the user of fields to keep that no document has, as their names may be wrong."""
    if empty := writer.empty_columns():
        note(f"no document has a value of {', '.join(map(repr, empty))}; check the names after --keep")


def _join(job: Job, folders: Sequence[Path], progress: Progress, note: Note, complete: bool) -> Tally:
    """Make what is missing of all groups, and write the stores from them."""
    build = group_build(job)
    if complete:
        _check_complete(job, build)
    build.make(Task(0, 1), progress, note)
    with create_again(job.work.building / REJECTS_PART) as rejects:
        try:
            tally = build.join(folders, rejects, note)
            sync(rejects)
        except BadRecordsError as error:
            sync(rejects)
            _fail_bad(job, error.args[0])
    return tally


def group_build(job: Job) -> GroupBuild:
    """The groups of a build in its work folder, and what of them is done."""
    return GroupBuild.of(job, schedule_of(job), places_of(job.options, None))


def _check_complete(job: Job, build: GroupBuild) -> None:
    """BuildError if tasks have to be run again. A group whose parts are all there is written here."""
    last = last_number_of_tasks(job.work)
    if build.schedule.missing:
        owners = owners_of([group.units for group in build.groups], last) if last else {}
        raise BuildError(missing_message(build.schedule, last, owners))
    if last and (what := build.remaining_ranges()):
        raise BuildError(f"{what}; run all {counted(last, 'task')} again, as a build with --dedup takes several runs")


def _assemble(
    job: Job, folder: Path, progress: Progress, note: Note, complete: bool
) -> tuple[Tally, list[Place], list[str] | None]:
    """Make the missing parts, and write the stores from all of them; returns the stores and the names of their partitions."""
    with contextlib.ExitStack() as stack:

        def new(place: Place) -> FileWriter:
            return stack.enter_context(new_writer(place.below(folder), job.tokenizer.vocab_size, job.options))

        writers = Writers(job.options, new)
        tally = fill(job, writers, progress, note, complete)
        for store, place, writer in writers.sorted():
            for file, data in side_files(job.options, job.tokenizer).items():
                writer.add_file(file, data)
            note_empty_columns(writer, note)
            fields = manifest_fields(job.recipe, place, writers.partitions)
            finish(writer, tally, store, place, fields, writers.full_note)
    if not writers.writers:
        raise BuildError(f"documents: expected at least one, found none{writers.full_note}; no store was written")
    if empty := writers.empty_partitions:
        why = "all their documents are duplicates, or come after max_total_tokens"
        note(f"no store for these values of {job.options.partition_by!r}: {', '.join(empty)}; {why}")
    return tally, [place for _, place, _ in writers.sorted()], writers.partitions


def keep_checksums(job: Job, tally: Tally) -> None:
    """Save sizes, times and checksums of the inputs, so that the same command can skip reading inputs that did not change."""
    known = KnownChecksums(job.work)
    known.add(job.files, tally.checksums)
    known.keep()


def open_work(
    job: Job,
    recipe: dict[str, Any],
    note: Note,
    advice: str = "use the same options, or --overwrite to start again",
    is_shared: bool = False,
) -> None:
    """Start a build in the work folder, or resume one with the same recipe. Several tasks do so at once if `is_shared`.

    Recipes hold hashes of the user's functions. They are compared before a function is imported.

    Raises:
        ConfigError: the work folder holds finished parts of another recipe, or a function or template does not load.
    """
    check_recipe(job.work, recipe, note, advice, is_shared)
    DocumentReader(job.options, job.tokenizer)  # loads functions and template, so that errors appear before any work
    if not (is_shared and is_there(job.work.building / "recipe.json")):
        write_recipe(job.work, recipe)
        check_recipe(job.work, recipe, note, advice, is_shared)  # another task may have written its own first


def schedule_of(job: Job, task: Task | None = None) -> Schedule:
    """The units of the build in the work folder, or of one task, and their finished parts."""
    units = (
        cut_units(job.files, unit_bytes=group_unit_bytes(size))
        if (size := job.options.group_bytes)
        else cut_units(job.files)
    )
    if task is not None:
        units = list(task.share(units))
    began = time_of_work(job.work)
    keys = [part_key(unit, job.files, job.recipe, began, job.options.input_identity) for unit in units]
    return load_schedule(units, keys, job.work.building / "parts", job.files)


def fill(
    job: Job,
    writers: Writers,
    progress: Progress,
    note: Note,
    complete: bool = False,
    before: Sequence[np.ndarray] = (),
) -> Tally:
    """Make the missing parts and write all documents to their stores, except duplicates of those with the hashes `before`.

    Raises:
        BadRecordsError: more bad records than allowed; the rejects file lists them.
        BuildError: parts are missing although `complete`.
    """
    schedule = schedule_of(job)
    if complete and schedule.missing:
        raise BuildError(missing_message(schedule, last_number_of_tasks(job.work)))
    if len(schedule.missing) < len(schedule.units) and not complete:
        note(f"resuming: {len(schedule.units) - len(schedule.missing)} of {len(schedule.units)} parts are done")
    scratch = job.work.building / "scratch"
    remove_tree(scratch)
    new_folder(scratch)
    with create_again(job.work.building / REJECTS_PART) as rejects:
        tally = Tally(job.files, rejects)
        made = run_units(job.options, job.entry, job.files, schedule, job.tokenizer, progress, note)
        try:
            with contextlib.closing(made) as parts:  # ends the workers if assembling fails
                assemble(
                    parts, schedule.units, tally, writers, token_dtype(job.tokenizer.vocab_size), scratch, None, before
                )
            sync(rejects)
        except BadRecordsError:
            sync(rejects)
            _fail_bad(job, tally)
    return tally


def _fail_bad(job: Job, tally: Tally) -> None:
    path, first = publish_rejects(job.work, job.rejects), tally.first_bad
    options = job.options
    lacks_text = options.records == "text" and first["reason"].startswith(f"no field {options.text_field!r};")
    advice = "name the field of the text with --text-field" if lacks_text else "fix them"
    raise BadRecordsError(
        f"bad records: {tally.num_bad} so far, and {options.max_bad} are allowed; the first is record {first['record']}"
        f" of {first['file']}: {first['reason']} (all found so far are listed in {path}); {advice}, or allow"
        " more with --max-bad. No store was written; finished work is kept, and the same command resumes"
    ) from None
