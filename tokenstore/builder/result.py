"""What a build or append reports: progress and notes while it runs, and a result at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenstore.format.manifest import Manifest
from tokenstore.store.reader import open_store

Note = Callable[[str], None]


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is.

    Attributes:
        num_bytes: bytes of input files read so far, as they are on disk.
        total_bytes: bytes of all input files.
        num_documents, num_tokens: made so far.
    """

    num_bytes: int
    total_bytes: int
    num_documents: int
    num_tokens: int


Progress = Callable[[BuildProgress], None]


@dataclass(frozen=True)
class BuildResult:
    """A finished store. For a build with splits: their totals, and a result for each in `splits`.

    Attributes:
        path: the store's folder or URL, or that of the splits.
        num_documents, num_tokens, num_shards: in the store, or in all splits.
        dtype: of the tokens on disk, `uint16` or `uint32`.
        vocab_size: token ids are below it.
        digest: of the store's content; "" for the totals of splits.
        eos_id: the token appended to every document; None if there is none.
        eos_token: its text, if the build recorded it.
        counts: input files, documents, and records that gave no document, by reason.
        rejects: the list of bad records; None if there are none.
        was_there: the store existed already, and nothing was done.
        new_documents, new_tokens: added by this build or append.
        splits: empty for a single store.
    """

    path: Path | str
    num_documents: int
    num_tokens: int
    dtype: str
    vocab_size: int
    digest: str
    num_shards: int
    eos_id: int | None
    eos_token: str | None
    counts: dict[str, int]
    rejects: Path | None
    was_there: bool
    new_documents: int
    new_tokens: int
    splits: "tuple[BuildResult, ...]" = ()


def result_of(
    output: Path | str, stores: Sequence[tuple[Path | str, Manifest | None]], rejects: Path | None, was_there: bool
) -> BuildResult:
    """The result of a build or append.

    Args:
        output: the store, or the folder of its splits.
        stores: the folder of each finished store, and its manifest before an append, None after a build.
        rejects: the list of bad records, if any.
        was_there: whether nothing had to be done.
    """
    results = [_of_store(folder, base, rejects, was_there) for folder, base in stores]
    return results[0] if results[0].path == output else _totals(output, results)


def _of_store(path: Path | str, base: Manifest | None, rejects: Path | None, was_there: bool) -> BuildResult:
    with open_store(path) as store:
        manifest = store.manifest
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


def _totals(output: Path | str, results: Sequence[BuildResult]) -> BuildResult:
    summed = ("num_documents", "num_tokens", "num_shards", "new_documents", "new_tokens")
    sums = {name: sum(getattr(result, name) for result in results) for name in summed}
    counts = {**results[0].counts, "documents": sums["num_documents"]}
    return replace(results[0], path=output, digest="", counts=counts, splits=tuple(results), **sums)
