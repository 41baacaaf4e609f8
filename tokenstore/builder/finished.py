"""Recognizes the stores of a build that is finished already: the same command then changes nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenstore.builder.job import Job
from tokenstore.builder.reading.checksums import KnownChecksums, changed
from tokenstore.builder.recipe import manifest_fields
from tokenstore.builder.replacing import NO_STORE, is_free
from tokenstore.builder.result import BuildResult, result_of
from tokenstore.builder.split import is_partition_name
from tokenstore.builder.stores import Place, places_of
from tokenstore.errors import ConfigError, FormatError, counted
from tokenstore.format.differences import describe, differences
from tokenstore.format.layout import INPUTS_NAME, MANIFEST_NAME
from tokenstore.paths import is_folder, is_there
from tokenstore.store.input_list import checked_rows
from tokenstore.store.length_index import write_length_index
from tokenstore.store.reader import open_store


def finished(job: Job) -> BuildResult | None:
    """The store at the output if the same command made it, None if there is nothing, ConfigError for anything else."""
    if is_free(job.output):
        return None
    partitions = None if job.options.partition_by is None else _partitions_at(job.output)
    places = places_of(job.options, partitions)
    check_same(job, places, [place.below(job.output) for place in places], partitions)
    for place in places:
        write_length_index(place.below(job.output))  # stores of older versions have no length index
    return result_at_output(job, partitions, job.rejects if is_there(job.rejects) else None, was_there=True)


def check_same(
    job: Job, stores: Sequence[Place], folders: Sequence[Path | str], partitions: Sequence[str] | None = None
) -> None:
    """ConfigError unless the stores in these folders or at these URLs are those that `job` makes."""
    for place, folder in zip(stores, folders, strict=True):
        try:
            with open_store(folder) as store:
                manifest = store.manifest
                store.inputs()  # fetches them from a URL
                rows = [row for _, row in checked_rows(store.file(INPUTS_NAME), store.entry(INPUTS_NAME), len(store))]
        except FormatError as error:
            raise ConfigError(NO_STORE.format(job.output)) from error
        old: dict[str, Any] = {
            "options": manifest.options,
            "tokenizer": vars(manifest.tokenizer),
            "package_versions": manifest.package_versions,
        }
        old["inputs"] = [[row.file, row.num_bytes] for row in rows]
        recorded = {row.file: row.checksum for row in rows}
        fields = manifest_fields(job.recipe, place, partitions)
        new = {
            "options": fields["options"],
            "tokenizer": job.recipe["tokenizer"],
            "package_versions": job.recipe["package_versions"],
        }
        new["inputs"] = [[file.name, file.num_bytes] for file in job.files]
        if different := describe(differences(old, new)):
            raise ConfigError(
                f"output: {folder} holds a store that was built from other inputs or with other options: {different};"
                " use --overwrite or another output, or `tokenstore append` to add inputs"
            )
    known = KnownChecksums(job.work)
    if others := changed(known, job.files, recorded):  # the same for all splits
        raise ConfigError(
            f"input: {others[0].path} changed since the store was built: same size, other bytes"
            f" ({len(others)} of {counted(len(job.files), 'input')} changed; {job.output}); use --overwrite to build"
            " again, or another output"
        )
    known.keep()


def _partitions_at(output: Path) -> list[str]:
    """The names of the partitions of a build at `output`. ConfigError if it holds something else."""
    for folder in (each for first in sorted(output.iterdir()) for each in (first, *_below(first))):
        if is_there(folder / MANIFEST_NAME):
            with open_store(folder) as store:
                names = store.manifest.options.get("partitions")
            if (
                isinstance(names, list)
                and names
                and all(isinstance(each, str) and is_partition_name(each) for each in names)
            ):
                return sorted(names)
    raise ConfigError(
        f"output: {output} holds something other than the stores of this build; use another output, or --overwrite if they are"
        " stores"
    )


def _below(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if is_folder(folder) and not folder.is_symlink() else []


def result_at_output(job: Job, partitions: Sequence[str] | None, rejects: Path | None, was_there: bool) -> BuildResult:
    """The result of a build whose stores are at its output."""
    stores = [(place.below(job.output), None) for place in places_of(job.options, partitions)]
    return result_of(job.output, stores, rejects, was_there)
