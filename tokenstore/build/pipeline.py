"""A whole build (P8): lock, make or find the parts, put them together in order, commit.

<output>.lock             held while building; the kernel frees it when the builder dies
<output>.building/        the work: recipe.json, parts/ (durable, resumed from), store/ (made anew each run)
<output>.rejects.jsonl    the bad records, if any
<output>                  appears in one rename, whole (FMT-7)
"""

import contextlib
import glob
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenstore.build.assemble import Tally, assemble, finish, new_writer, splits_of, store_folders
from tokenstore.build.documents import DocumentReader
from tokenstore.build.encode import special_ids
from tokenstore.build.inputs import InputFile, Inputs, find_inputs
from tokenstore.build.options import BuildOptions, BuildProgress, BuildResult
from tokenstore.build.part import load_part, part_key
from tokenstore.build.recipe import (
    beside,
    differences,
    manifest_fields,
    open_tokenizer,
    recipe_of,
    side_files,
    with_mask_field,
)
from tokenstore.build.units import cut_units
from tokenstore.build.workers import run_units
from tokenstore.errors import BadRecordsError, BuildError, ConfigError, CorruptionError, FormatError, TokenStoreError
from tokenstore.format.layout import INPUTS_NAME
from tokenstore.format.manifest import Manifest, TokenizerEntry, canonical_json
from tokenstore.outside import MAX_RECIPE_BYTES
from tokenstore.paths import is_file, is_folder, is_there, mode_of
from tokenstore.store.files import (
    commit_directory,
    exclusive_lock,
    free_bytes,
    read_bytes,
    remove,
    remove_tree,
    sync,
    sync_directory,
    write_atomically,
)
from tokenstore.store.inputs import checked_rows
from tokenstore.store.manifests import manifest_format
from tokenstore.store.order_file import LOCK_SUFFIX, write_order
from tokenstore.store.reader import BUILDING_SUFFIX, open_store
from tokenstore.store.writer import StoreWriter
from tokenstore.tokenizer import Tokenizer

_REPLACED_SUFFIX, _REJECTS_SUFFIX, _REJECTS_OF_APPEND = ".replaced", ".rejects.jsonl", ".rejects-v"
_NO_STORE = "output: expected a new path or a store, found something else ({}); choose another"

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
    rejects: Path  # where the bad records will be listed, if any

    @property
    def building(self) -> Path:
        return beside(self.output, BUILDING_SUFFIX)


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
        raise ConfigError(_NO_STORE.format(output))
    if output.is_symlink():  # the work is done beside the store, on the same disk
        output = output.resolve()
    job = prepare(options, output, None, note)
    with resumable(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(beside(output, LOCK_SUFFIX)):
            if options.overwrite:
                _check_replaceable(output)
                remove_tree(job.building)
            elif found := _finished(job):
                remove_tree(job.building)
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
    inputs = find_inputs(options.inputs, options.text_endings, written_by(output))
    _note_passed_over(inputs, note)
    if entry is None:  # else it was settled when the store was built
        options = with_mask_field(options, inputs.files)
    tokenizer = open_tokenizer(options, entry)
    if tokenizer.engine_note:
        note(tokenizer.engine_note)
    special_ids(tokenizer, options)
    recipe = recipe_of(options, tokenizer, inputs.files)
    rejects = beside(output, _REJECTS_SUFFIX)
    return Job(options, output, inputs.files, inputs.passed_over, tokenizer, entry, recipe, rejects)


def _note_passed_over(inputs: Inputs, note: Note) -> None:
    if inputs.passed_over:
        most = sorted(inputs.passed_over.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{number} {ending}" for ending, number in most[:5]) + (", ..." if len(most) > 5 else "")
        note(f"passed over {sum(inputs.passed_over.values())} files with other endings ({shown})")


def _build(job: Job, progress: Progress, note: Note) -> BuildResult:
    working = job.building / "store"
    open_work(job, job.recipe, note)
    remove_tree(working)
    working.mkdir()
    names = [split.name for split in splits_of(job.options)] or [None]
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
    rejects = publish_rejects(job)  # before the store: a store that is there is left alone
    _commit(working / "made", job.output)
    remove_tree(job.building)
    return _result(job, rejects, was_there=False)


def fill(job: Job, writers: Sequence[StoreWriter], progress: Progress, note: Note) -> Tally:
    """Make the parts that are not there yet, and append all documents to `writers`.

    Raises: BadRecordsError: more bad records than allowed; they stand in the rejects file then.
    """
    units = cut_units(job.files)
    keys = [part_key(unit, job.files, job.recipe) for unit in units]
    # Named by key: a build of other inputs, killed, has not touched the files of these parts.
    stems = [job.building / "parts" / key[:32] for key in keys]
    done = [load_part(stem, key) for stem, key in zip(stems, keys, strict=True)]
    if any(done):
        note(f"resuming: {sum(part is not None for part in done)} of {len(units)} parts are done")
    with open(_rejects_part(job), "wb") as rejects:
        tally = Tally(job.files, len(writers), rejects)
        made = run_units(job.options, job.entry, job.files, units, keys, stems, done, job.tokenizer, progress, note)
        try:
            with contextlib.closing(made) as parts:  # no worker goes on behind a build that has failed
                assemble(parts, units, tally, job.options, writers, job.building / "dedup")
            sync(rejects)
        except BadRecordsError:
            sync(rejects)
            _fail_bad(job, tally)
    return tally


def _rejects_part(job: Job) -> Path:
    return job.building / "rejects.jsonl"


def publish_rejects(job: Job) -> Path | None:
    """Move the list of bad records to its place; without any, remove an older list."""
    made = _rejects_part(job)
    if made.stat().st_size == 0:
        remove(job.rejects)
        return None
    made.replace(job.rejects)
    sync_directory(job.rejects.parent)
    return job.rejects


def _fail_bad(job: Job, tally: Tally) -> None:
    path, first = publish_rejects(job), tally.first_bad
    raise BadRecordsError(
        f"bad records: expected at most {job.options.max_bad}, found {tally.num_bad} so far; the first is record {first['record']}"
        f" of {first['file']}: {first['reason']} (those read so far are listed in {path}); fix them, or allow more with --max-bad. No store was written; what is"
        " tokenized is kept, and the same command resumes"
    ) from None


def _finished(job: Job) -> BuildResult | None:
    """The store at the output, if the same command made it; None if nothing is there; ConfigError for anything else."""
    if _is_free(job.output):
        return None
    names = [split.name for split in splits_of(job.options)] or [None]
    for name, folder in zip(names, store_folders(job.output, job.options), strict=True):
        try:
            with open_store(folder) as store:
                manifest = store.manifest
                rows = [row for _, row in checked_rows(store.file(INPUTS_NAME), store.entry(INPUTS_NAME), len(store))]
        except FormatError as error:
            raise ConfigError(_NO_STORE.format(job.output)) from error
        old = {"options": manifest.options, "tokenizer": vars(manifest.tokenizer), "versions": manifest.versions}
        old["inputs"] = [[row.file, row.num_bytes] for row in rows]
        fields = manifest_fields(job.recipe, name)
        new = {"options": fields["options"], "tokenizer": job.recipe["tokenizer"], "versions": job.recipe["versions"]}
        new["inputs"] = [[file.name, file.num_bytes] for file in job.files]
        if different := differences(old, new):
            raise ConfigError(
                f"output: expected the store of this command, found one made otherwise ({folder}): {different};"
                " use --overwrite or another output, or `tokenstore append` to add inputs"
            )
        write_order(folder)  # one that an older version made has none
    return _result(job, job.rejects if is_there(job.rejects) else None, was_there=True)


def _is_free(output: Path) -> bool:
    return not is_there(output) or (is_folder(output) and not any(output.iterdir()))


def _check_replaceable(output: Path) -> None:
    """ConfigError unless `output` is free, a store or a folder of splits, be they damaged or of another version."""
    if not _is_free(output) and not _is_ours(output) and not all(map(_is_ours, output.iterdir())):
        raise ConfigError(_NO_STORE.format(output))


def _is_ours(folder: Path) -> bool:
    try:
        return manifest_format(folder) == "tokenstore"
    except TokenStoreError:
        return False


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file of ours, a line each."""
    try:
        rows = [json.loads(line) for line in read_bytes(path, MAX_RECIPE_BYTES).splitlines()]
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"{path.name}: expected lines of JSON, found {error} ({path}); use --overwrite to build anew"
        ) from error
    if not all(isinstance(row, dict) for row in rows):
        raise CorruptionError(
            f"{path.name}: expected a JSON object a line, found something else ({path}); use --overwrite to build anew"
        )
    return rows


def open_work(
    job: Job,
    recipe: dict[str, Any],
    note: Note,
    advice: str = "use the same options, or --overwrite to begin again",
) -> None:
    """Make the work folder, or take up an unfinished one made by the same recipe. One without a finished part is no loss.

    Recipes are compared, and with them the hashes of the user's functions, before a function is imported.
    """
    building, parts = job.building, job.building / "parts"
    if different := differences(read_recipe(building) or recipe, recipe):
        if any(parts.glob("*.json")):
            raise ConfigError(
                f"output: expected to resume this command, found an unfinished build of another ({building}): {different}; {advice}"
            )
        note(f"an unfinished build of another command had not finished anything and is replaced ({different})")
        remove_tree(building)
    DocumentReader(job.options, job.tokenizer)  # functions or a template that do not load are reported before any work
    parts.mkdir(parents=True, exist_ok=True)
    write_atomically(building / "recipe.json", canonical_json(recipe).encode())


def read_recipe(building: Path) -> dict[str, Any]:
    """The recipe of an unfinished build; {} where there is none."""
    recipe_file = building / "recipe.json"
    return next(iter(_read_json_lines(recipe_file)), {}) if is_there(recipe_file) else {}


def _commit(made: Path, output: Path) -> None:
    replaced = beside(output, _REPLACED_SUFFIX)
    remove_tree(replaced)
    if not _is_free(output):
        output.rename(replaced)
    commit_directory(made, output)
    remove_tree(replaced)


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
        counts=manifest.counts,
        rejects=rejects,
        was_there=was_there,
        new_documents=manifest.num_documents - (before.num_documents if before else 0),
        new_tokens=manifest.num_tokens - (before.num_tokens if before else 0),
    )


def written_by(output: Path) -> list[Path]:
    """What builds of and appends to the store `output` write, and never read as an input."""
    lists = output.parent.glob(glob.escape(output.name + _REJECTS_OF_APPEND) + "*")
    suffixes = (BUILDING_SUFFIX, _REPLACED_SUFFIX, _REJECTS_SUFFIX)
    return [output, *(beside(output, suffix) for suffix in suffixes), *lists]


def rejects_of_append(output: Path, version: int) -> Path:
    """Where an append that makes `version` of a store lists its bad records."""
    return beside(output, f"{_REJECTS_OF_APPEND}{version}.jsonl")


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
