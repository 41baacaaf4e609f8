"""Adds documents from new inputs to a finished store, as its next version (FMT-13), with the options it was built with.

Existing shards and older versions do not change. A killed append is resumed from <store>.tokenstore/building.

With splits, the stores are committed one after the other. An append killed between two of them has added the inputs to some
stores only. The same command then finds which stores have them (`_Target.is_done`) and commits the others.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenstore.builder.assemble import Tally, columns_of
from tokenstore.builder.disk import resumable
from tokenstore.builder.documents.encode import has_masks
from tokenstore.builder.job import Job, prepare
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.pipeline import fill, keep_checksums, open_work
from tokenstore.builder.reading.checksums import KnownChecksums
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.recipe import check_same_options, options_of
from tokenstore.builder.result import BuildResult, Note, Progress, result_of
from tokenstore.builder.resume import publish_rejects, read_recipe, tidy
from tokenstore.builder.split import parse_split
from tokenstore.builder.spool import spool_folder, spooled_input
from tokenstore.builder.stores import Place, Writers
from tokenstore.errors import BuildError, ConfigError, counted
from tokenstore.format.layout import CONTENT_HASHES_NAME, INPUTS_NAME, MANIFEST_NAME
from tokenstore.format.manifest import Manifest
from tokenstore.paths import is_folder, is_there, resolved
from tokenstore.store.document_files import Columns
from tokenstore.store.find_manifest import versions
from tokenstore.store.input_list import checked_rows
from tokenstore.store.length_index import write_length_index
from tokenstore.store.next_version import commit_append
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.location import refuse_url
from tokenstore.store.work import exclusive_work
from tokenstore.store.writer import FileWriter
from tokenstore.store.writing import make_folders, remove_tree

_PARTITIONED = (
    "append: {} was built with --partition-by, whose stores are made in one pass; build the new inputs with the same options into"
    " another folder, and join each partition with `tokenstore merge`"
)


@dataclass(frozen=True)
class _Target:
    """A store to add to: the version before these inputs, and whether a later version has them already."""

    base: Store
    is_done: bool

    @property
    def folder(self) -> Path:
        """The store's folder."""
        return self.base.path


def append_store(
    path: str | Path,
    inputs: Sequence[str],
    workers: int = 1,
    max_bad: int = 0,
    progress: Progress = lambda progress: None,
    note: Note = lambda text: None,
    filter: str | None = None,
    map: str | None = None,
    stdin_format: str = ".jsonl",
) -> BuildResult:
    """Add the documents of `inputs` to a store, or to all stores of a folder of splits.

    For a store built with `dedup`, documents that equal one of the store are dropped too. `sample` and `max_total_tokens` of the
    build apply to the new documents alone.

    Args:
        path: the store's folder, or the folder with one store per split.
        inputs: files, folders and glob patterns, as in a build.
        workers: processes that tokenize.
        max_bad: bad records allowed.
        progress: as in `build_store`.
        note: as in `build_store`.
        filter: the filter the store was built with, if any. A function that only the store names does not run.
        map: the map the store was built with, if any.
        stdin_format: of the input `-`, as in a build.

    Returns:
        The store as it is now. `was_there` says that it had these inputs already, and nothing was done.

    Raises:
        FormatError: there is no store.
        ConfigError: `path` is neither a store nor a folder of splits, or is one split of several; the store was built with
            other functions or with `partition_by`, was merged from stores with different options, or was adopted; or some, but
            not all, of the inputs are in it already.
        StoreBusyError, BadRecordsError, BuildError: as in `build_store`; calling it again resumes.

    Example:
        >>> append_store("stores/web", ["data/2024-06/*.jsonl.zst"], workers=8).new_documents
    """
    refuse_url(path, "append")
    path = resolved(path)
    folders = _folders(path)
    with resumable(path), contextlib.ExitStack() as stack:
        work = stack.enter_context(exclusive_work(path))
        newest = [stack.enter_context(open_store(folder)) for folder in folders]
        options = options_of(
            newest[0], tuple(str(each) for each in inputs), filter=filter, map=map, workers=workers, max_bad=max_bad
        )
        _check_dedup(options, newest)
        _check_fits(options, newest)
        options = replace(options, output=path, stdin_format=stdin_format)
        job = prepare(options, path, newest[0].manifest.tokenizer, note, spooled_input(work, options, None))
        for store in newest:
            check_same_options(store, job.recipe["options"])
        targets = [_target(job, store, stack) for store in newest]
        version = max(target.base.version for target in targets) + 1
        job = replace(job, version=version)
        is_done = all(target.is_done for target in targets) or not _append(job, targets, progress, note)
        tidy([work.building, spool_folder(work)], note)
        rejects = None if is_done or not is_there(job.rejects) else job.rejects
        stores = [(target.folder, target.base.manifest) for target in targets]
        return result_of(path, stores, rejects, was_there=is_done)


def _folders(path: Path) -> list[Path]:
    try:
        return _stores(path)
    except OSError as error:
        raise ConfigError(
            f"append: {path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


def _stores(path: Path) -> list[Path]:
    """The folder of the store at `path`, or those of its splits in the order of the build's options."""
    if is_there(path / MANIFEST_NAME) or not is_folder(path):
        with open_store(path) as store:
            recorded = store.manifest.options
            if store.manifest.is_adopted:
                raise ConfigError(
                    f"append: {path} was adopted from {recorded.get('adopted_from')} files, so there are no options to continue with;"
                    " adopt or build the new files as a store of their own, and name both in the plan"
                )
        if recorded.get("partition_by"):
            raise ConfigError(_PARTITIONED.format(path))
        if recorded.get("split_name") or recorded.get("split"):  # documents of the other splits would be lost
            name = recorded.get("split_name")
            raise ConfigError(f"append: {path} is split {name!r} of a build; append to the folder of its splits")
        return [path]
    for folder in sorted(path.iterdir()):
        if is_there(folder / MANIFEST_NAME):
            with open_store(folder) as store:
                options = store.manifest.options
            if options.get("partition_by"):
                raise ConfigError(_PARTITIONED.format(path))
            if options.get("split_name"):
                return [_split(path, split.name) for split in parse_split(str(options["split"]))]
        elif is_folder(folder) and any(is_there(each / MANIFEST_NAME) for each in folder.iterdir()):
            raise ConfigError(_PARTITIONED.format(path))  # of splits too
    raise ConfigError(f"append: {path} is neither a store nor a folder of splits; check the path")


def _split(path: Path, name: str) -> Path:
    """The folder of a split. Links are refused: the append would write outside of the folder that the user named."""
    if (path / name).is_symlink():
        raise ConfigError(f"append: {path / name} is a link; move the split itself into {path}")
    return path / name


def _check_dedup(options: BuildOptions, stores: Sequence[Store]) -> None:
    for store in stores:
        if options.dedup != "none" and not store.manifest.has_content_hashes:
            raise ConfigError(
                f"append: {store.path} was built with --dedup exact, but has no {CONTENT_HASHES_NAME}, with which new documents"
                " are compared; build it again from all inputs"
            )


def _check_fits(options: BuildOptions, stores: Sequence[Store]) -> None:
    """Refuse stores whose content or tokenizer does not match what they record, as they may come from a stranger."""
    said = (options.eos, has_masks(options), columns_of(options))
    first = stores[0].manifest
    for store in stores:
        mine = store.manifest
        if said != (mine.ends_with_eos, mine.has_masks, Columns.of(store)):
            raise ConfigError(
                f"options: {store.path} does not have the eos tokens, origins, ids, masks, metadata or hashes that its options record;"
                " build the store again"
            )
        if (mine.tokenizer, mine.vocab_size) != (first.tokenizer, first.vocab_size):
            raise ConfigError(
                f"append: {store.path} has another tokenizer than {stores[0].path}; append to splits that were built"
                " together"
            )
        store.check_tokenizer()


def _target(job: Job, store: Store, stack: contextlib.ExitStack) -> _Target:
    rows = checked_rows(store.file(INPUTS_NAME), store.entry(INPUTS_NAME), len(store))
    there: dict[tuple[str, int | None], set[str | None]] = {}
    for _, row in rows:
        there.setdefault((row.file, row.num_bytes), set()).add(row.checksum)
    known = KnownChecksums(job.work)
    again = [file.name for file in job.files if _is_in(there.get((file.name, file.num_bytes), set()), file, known)]
    if not again:
        return _Target(store, False)
    if len(again) < len(job.files):
        raise ConfigError(
            f"append: {len(again)} of {len(job.files)} inputs are in the store already, such as {again[0]} ({store.path});"
            " omit them"
        )
    is_first = store.version - 1 not in versions(store.path)  # or the versions before were removed
    base = store if is_first else stack.enter_context(open_store(store.path, version=store.version - 1))
    return _Target(base, True)


def _is_in(checksums: set[str | None], file: InputFile, known: KnownChecksums) -> bool:
    """Whether `file` is in a store that has inputs of its name and size with these checksums, None if not recorded."""
    return None in checksums or (bool(checksums) and known.checksum(file) in checksums)


def _open_work(job: Job, targets: Sequence[_Target], note: Note) -> None:
    """Start or resume the append. What is left of an append that was committed, but killed before it tidied up, is removed."""
    before = [target.base.digest for target in targets]
    if not {*_strings(read_recipe(job.work).get("append", before))}.intersection(before):
        remove_tree(job.work.building)
    advice = "finish that one first by running it again, or remove the folder"
    open_work(job, {**job.recipe, "append": before}, note, advice)


def _strings(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _append(job: Job, targets: Sequence[_Target], progress: Progress, note: Note) -> bool:
    """Write the new shards in the work folder and commit store by store; False if every store was complete already."""
    working = job.work.building / "store"
    _open_work(job, targets, note)
    remove_tree(working)
    with contextlib.ExitStack() as stack:
        made: list[FileWriter] = []

        def new(place: Place) -> FileWriter:
            number = len(made)
            make_folders(folder := working / str(number))
            writer = FileWriter.extending(targets[number].base, folder, job.options.shard_bytes)
            made.append(stack.enter_context(writer))
            return writer

        first_inputs = [
            len(target.base.inputs()) if target.base.manifest.has_document_inputs else 0 for target in targets
        ]
        before = [target.base.content_hashes() for target in targets] if job.options.dedup != "none" else []
        writers = Writers(job.options, new, first_inputs)
        tally = fill(job, writers, progress, note, before=before)
        grown = [i for i, target in enumerate(targets) if made[i].num_documents > len(target.base)]
        if not grown:
            raise BuildError(
                f"documents: expected at least one, found none ({counted(len(job.files), 'input file')}){writers.full_note};"
                " nothing changed"
            )
        missing = [i for i in grown if not targets[i].is_done]  # not all, if a run was killed between two commits
        for i in missing:
            _finish(job, made[i], targets[i].base.manifest, tally, i)
    if missing:
        publish_rejects(job.work, job.rejects)
    for i in missing:
        commit_append(targets[i].folder, working / str(i))
    keep_checksums(job, tally)
    return bool(missing)


def _finish(job: Job, writer: FileWriter, old: Manifest, tally: Tally, store: int) -> None:
    counts = {name: old.counts.get(name, 0) + number for name, number in tally.counts(store).items()}
    writer.finish(
        b"".join(tally.inputs_file(store)),
        counts=counts,
        package_versions={**old.package_versions, **job.recipe["package_versions"]},
    )
    write_length_index(writer.folder)
