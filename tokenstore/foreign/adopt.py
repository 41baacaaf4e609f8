"""Makes a store over token files of another tool: links to the files, and the store's own index files beside them (FMT-14)."""

from dataclasses import dataclass
from pathlib import Path

from tokenstore.builder.replacing import check_replaceable, commit, is_free, resolved_output
from tokenstore.builder.resume import tidy
from tokenstore.errors import BuildError, ConfigError
from tokenstore.foreign.adoption import Adopting, Adoption, Note, Progress, check_space
from tokenstore.foreign.notes import copies, findings
from tokenstore.foreign.options import AdoptOptions
from tokenstore.foreign.prepare import Job, prepare
from tokenstore.paths import is_there
from tokenstore.store.work import exclusive_work
from tokenstore.store.writing import make_folders, remove_tree


@dataclass(frozen=True)
class AdoptResult:
    """A store that was made over token files.

    Attributes:
        path: its folder.
        format: of the files.
        cut: what divided the tokens into documents.
        num_documents, num_tokens: in the store.
        dtype: of the tokens, `uint16` or `uint32`.
        vocab_size: token ids are below it.
        low, high: smallest and largest token id that occurs.
        eos_id: the end-of-text token; None if it is not known.
        eos_at: where it is in most documents: `end`, `start` or `none`.
        ends_with_eos: whether every document ends with it.
        num_linked, num_copied: token files of which no token was copied, and others.
        counts: documents by what they begin and end with, and others, by name.
        digest: of the store.
    """

    path: Path
    format: str
    cut: str
    num_documents: int
    num_tokens: int
    dtype: str
    vocab_size: int
    low: int
    high: int
    eos_id: int | None
    eos_at: str
    ends_with_eos: bool
    num_linked: int
    num_copied: int
    counts: dict[str, int]
    digest: str


def adopt_store(
    options: AdoptOptions,
    progress: Progress = lambda done, total: None,
    note: Note = lambda text: None,
) -> AdoptResult:
    """Make a store over existing token files. No token is copied where the files can be mapped as they are.

    Args:
        options: what to adopt.
        progress: called with the bytes read so far and in all; all tokens are read once.
        note: called with one line of text for each thing a user should know.

    Raises:
        ConfigError: the options do not fit the files, or the output exists.
        StoreBusyError: another process is writing the same output.
        BuildError: a file is damaged, an index does not fit its tokens, or an id is outside the vocabulary.

    Example:
        >>> options = AdoptOptions(("corpus_text_document",), Path("stores/web"), vocab_size=50_257)
        >>> adopt_store(options).num_documents
    """
    output = resolved_output(options.output)
    if options.overwrite:
        check_replaceable(output)
    elif not is_free(output):
        raise ConfigError(f"output: {output} exists; choose another, or add --overwrite to replace a store")
    job = prepare(options, note)
    try:
        return _adopt(job, output, progress, note)
    except OSError as error:
        raise BuildError(
            f"adopt: cannot write {error.filename or output}: {error.strerror or error}; fix the cause and run the command again"
        ) from error


def _adopt(job: Job, output: Path, progress: Progress, note: Note) -> AdoptResult:
    make_folders(output.parent)
    job = job.linked_on(output.parent.stat().st_dev)
    for text in copies(job):
        note(text)
    check_space(
        sum(source.file.num_tokens * job.dtype.itemsize for source in job.sources if source.reason), output.parent
    )
    with exclusive_work(output) as work:
        if is_there(work.building / "recipe.json"):
            raise ConfigError(f"output: {work.building} holds an unfinished build; finish it, or remove the folder")
        remove_tree(work.building)
        folder = work.building / "store"
        make_folders(folder)
        try:
            made = Adoption(job, folder, progress, note).run()
            commit(folder, output, note)
        finally:
            tidy([work.building], note)
    for text in findings(job, made):
        note(text)
    return _result(job, made, output)


def _result(job: Job, made: Adopting, output: Path) -> AdoptResult:
    manifest = made.manifest
    return AdoptResult(
        path=output,
        format=job.format.name,
        cut=job.cut,
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        low=made.tally.low,
        high=made.tally.high,
        eos_id=job.eos_id,
        eos_at=made.eos_at,
        ends_with_eos=manifest.ends_with_eos,
        num_linked=len(job.sources) - made.num_copied,
        num_copied=made.num_copied,
        counts=manifest.counts,
        digest=manifest.digest,
    )
