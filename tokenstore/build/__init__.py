"""Floor 3: sources -> a store. `build_store(BuildOptions(...))` is `tokenstore build` as a function.

inputs, units             which files, in which order, cut into units of work
records, tables, decompress   a file -> rows
documents, hooks          a row -> a document: the user's functions, text, tokens made elsewhere
chat, templates, loss_spans   conversations and what is learned of them
encode, part, workers     documents -> tokens; one unit -> a durable part; many at once
split, dedup, assemble    parts -> stores
recipe, pipeline          what decides the bytes; lock, resume, commit
append, preview, retokenize   make a store longer; show a build without doing it; check one against its inputs
"""

from tokenstore.build.append import append_store
from tokenstore.build.options import BuildOptions, BuildProgress, BuildResult
from tokenstore.build.pipeline import build_store
from tokenstore.build.preview import BuildPreview, preview_build
from tokenstore.build.retokenize import retokenize

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
