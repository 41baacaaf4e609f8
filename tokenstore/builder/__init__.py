"""Layer 3: inputs -> a store. `build_store(BuildOptions(...))` is `tokenstore build` as a function.

hub                 data sets and tokenizers of the Hugging Face hub
remote_output       a build whose output is a URL
options, recipe     the options of a build; those that decide the bytes of the store
job                 a build that is ready to run: inputs found, tokenizer loaded
pipeline            a whole build: lock, resume, make the parts, assemble, commit
python_build, spool   a build from Python; records that can be read only once
finished            whether a store is what the same command makes
resume, replacing   what a build keeps on disk for the next run; how it replaces a store
reading/            input files -> rows
documents/          rows -> documents -> tokens
schedule, tasks     the units of a build, who makes which, and the command of one task of a job array
part, making        one unit of work -> one durable part
executors/          processes that make parts
assemble            parts in order -> stores
group_build, groups   the same for large builds: parts -> groups with final token files -> stores
stores, placed      the stores of a build; documents on their way to them
shuffle             the documents in a random order
split, dedup        which store a document goes to; which documents are equal
disk                the space that a build needs
result              progress, notes and the result of a build
store_writer        the public writer: a store from Python, document by document
append              adds documents to a store, as its next version
merging             joins stores into one
drop                removes documents from a store, as its next version
preview, estimate   what a build would do, from a sample of its inputs
retokenize          compares a store with its inputs
"""

from tokenstore.builder.append import append_store
from tokenstore.builder.drop import DropResult, drop
from tokenstore.builder.merging import merge
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.pipeline import build_store
from tokenstore.builder.preview import BuildPreview, preview_build
from tokenstore.builder.python_build import build
from tokenstore.builder.result import BuildProgress, BuildResult
from tokenstore.builder.retokenize import retokenize
from tokenstore.builder.store_writer import StoreWriter
from tokenstore.builder.tasks import TaskResult, build_task

__all__ = [
    "BuildOptions",
    "BuildPreview",
    "BuildProgress",
    "BuildResult",
    "DropResult",
    "StoreWriter",
    "TaskResult",
    "append_store",
    "build",
    "build_store",
    "build_task",
    "drop",
    "merge",
    "preview_build",
    "retokenize",
]
