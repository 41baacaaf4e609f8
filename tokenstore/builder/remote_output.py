"""A build whose output is a URL: everything is made in a scratch folder on this machine, then uploaded (store/remote/upload.py).

The scratch folder is named by the URL, so the same command resumes there: the build if it was killed, or the upload. It is
removed when the store is complete at the URL.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenstore.builder.options import BuildOptions
from tokenstore.builder.result import BuildProgress, BuildResult, Note, Progress, result_of
from tokenstore.errors import ConfigError, FormatError
from tokenstore.format.layout import MANIFEST_NAME
from tokenstore.paths import is_folder
from tokenstore.store.remote.client import Client
from tokenstore.store.remote.location import Location, is_url
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.remote.upload import end_upload, upload_store
from tokenstore.store.writing import remove_tree


def location_of(options: BuildOptions) -> Location | None:
    """The place of the output, if it is a URL; ConfigError for a URL that is no place."""
    try:
        return Location.of(str(options.output)) if is_url(options.output) else None
    except FormatError as error:
        raise ConfigError(str(error).replace("store:", "output:", 1)) from None


def with_scratch(options: BuildOptions, place: Location) -> BuildOptions:
    """The options of the build in the scratch folder, where there is never a store to overwrite."""
    folder = RemoteOptions().resolved().cache / "builds" if options.scratch is None else options.scratch
    name = hashlib.sha256(place.url.encode()).hexdigest()[:16]
    return replace(options, output=folder / f"{place.name}-{name}" / place.name, overwrite=False)


def is_there(place: Location, names: Sequence[str | None]) -> bool:
    """Whether all stores of a build, one per split, are at a URL."""
    clients = [Client(Location.of(each), RemoteOptions().resolved().deadline) for each in urls_of(place, names)]
    return all(client.has(MANIFEST_NAME) for client in clients)


def send(
    result: BuildResult,
    options: BuildOptions,
    place: Location,
    names: Sequence[str | None],
    progress: Progress,
    note: Note,
) -> BuildResult:
    """Upload the stores that a build in the scratch folder made, and remove them here.

    Raises the errors of `upload_store`; calling the build again continues the upload.
    """
    note(f"uploading to {place.url}")
    for name, url in zip(names, urls_of(place, names), strict=True):
        client = Client(Location.of(url), RemoteOptions().resolved().deadline)
        upload_store(
            Path(result.path) / (name or ""),
            client,
            options.overwrite,
            lambda done, total: progress(BuildProgress(done, total, result.num_documents, result.num_tokens)),
        )
    remove_tree(Path(result.path).parent)
    return result_at(place, names, was_there=False)


def tidy_scratch(output: Path, place: Location, names: Sequence[str | None]) -> None:
    """Remove what a run left that was killed after the commit at the URL: its store in the scratch folder, and its claims."""
    if is_folder(output):
        for url in urls_of(place, names):
            end_upload(Client(Location.of(url), RemoteOptions().resolved().deadline))
        remove_tree(output.parent)


def result_at(place: Location, names: Sequence[str | None], was_there: bool) -> BuildResult:
    """The result of a build whose stores are at a URL."""
    return result_of(place.url, [(url, None) for url in urls_of(place, names)], None, was_there)


def urls_of(place: Location, names: Sequence[str | None]) -> list[str]:
    """The URL of each store of a build, one per split."""
    return [place.url if name is None else place.object_url(name) for name in names]
