"""What an adoption found out about the files, as lines for the user."""

from collections.abc import Iterator
from pathlib import Path

from tokenstore.errors import counted
from tokenstore.foreign.adoption import Adopting
from tokenstore.foreign.prepare import Job


def copies(job: Job) -> Iterator[str]:
    """One line for each reason to copy files."""
    reasons: dict[str, list[Path]] = {}
    for source in job.sources:
        if source.reason:
            reasons.setdefault(source.reason, []).append(source.file.path)
    for reason, paths in reasons.items():
        others = f" and {counted(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        yield f"copied, not linked: {paths[0]}{others}: {reason}"


def findings(job: Job, made: Adopting) -> Iterator[str]:
    """One line for each thing a user should know before training on the store."""
    tally = made.tally
    if tally.empty:
        yield f"{counted(tally.empty, 'document')} without tokens in the index: dropped"
    if job.eos_id is None:
        yield "the end-of-text token is not known (no --eos-id): whether documents end with one was not checked"
    elif tally.eos == 0:
        yield f"the end-of-text token {job.eos_id} does not occur in the files; is --eos-id right?"
    else:
        yield from _ends(job, made)
    if job.dtype.itemsize == 2 and job.vocab_size > tally.high + 1 and tally.high >= (1 << 16) - 256:
        yield (
            f"the largest id is {tally.high:,}, at the limit of uint16: if the tokenizer has larger ids, they wrapped when the files"
            " were written, and nothing in them shows it"
        )


def _ends(job: Job, made: Adopting) -> Iterator[str]:
    tally, eos = made.tally, job.eos_id
    if made.eos_at == "end" and tally.ended < tally.documents:
        missing = tally.documents - tally.ended
        chunks = " (entries of an index may be ends of chunks)" if job.format.name == "datatrove" else ""
        yield f"{missing:,} of {counted(tally.documents, 'document')} do not end with {eos}{chunks}"
    if made.eos_at == "start" and tally.started < tally.documents:
        missing = tally.documents - tally.started
        yield f"{missing:,} of {counted(tally.documents, 'document')} do not begin with {eos}{_continued(job)}"
    if job.cut != "index":
        return
    inside = tally.eos - (tally.started if made.eos_at == "start" else tally.ended)
    if inside and job.options.eos_at != "none":
        yield (
            f"{counted(inside, 'end-of-text token is', 'end-of-text tokens are')} inside of documents: entries of the index may not be"
            " documents (datatrove files that were shuffled in chunks: add --cut both)"
        )
    if job.format.name == "dolma" and (tally.after_eos or tally.eos != tally.documents):
        yield (
            f"the rows hold {counted(tally.documents, 'document')}; a reader that only looks for {eos} finds {tally.eos:,} and loses"
            f" {counted(tally.after_eos, 'token')} after the last one of each file"
        )


def _continued(job: Job) -> str:
    if job.cut == "eos" and len(job.sources) > 1 and not job.options.join:
        return ": they continue a document of the file before, which was cut there; --join joins them, by copying"
    return ""
