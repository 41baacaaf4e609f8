"""Layer 3: inputs -> a store. `build_store(BuildOptions(...))` is `tokenstore build` as a function.

reading/        input files -> rows                  documents/  rows -> documents -> tokens
executors/      how units of work are run            part        one unit -> one durable part
options, recipe what is asked for, and which of it decides the bytes of a store
pipeline        lock, resume, make the parts, assemble, commit; resume, replacing: what is left and replaced on disk
assemble        parts in order -> stores; split, dedup: which documents go where
append, preview, estimate, retokenize   extend a store; show a build without doing it; check a store against its inputs
"""

from tokenstore.builder.append import append_store
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.pipeline import build_store
from tokenstore.builder.preview import BuildPreview, preview_build
from tokenstore.builder.result import BuildProgress, BuildResult
from tokenstore.builder.retokenize import retokenize

__all__ = [
    "BuildOptions",
    "BuildPreview",
    "BuildProgress",
    "BuildResult",
    "append_store",
    "build_store",
    "preview_build",
    "retokenize",
]
