"""Floor 3: sources -> a store. `build_store(BuildOptions(...))` is `tokenstore build` as a function.

inputs.py    which files, in which order          units.py    cut into units of work
records.py   a file's documents                   part.py     one unit -> a durable part
pipeline.py  parts -> store, lock, resume, commit
"""

from tokenstore.build.options import BuildOptions, BuildProgress, BuildResult
from tokenstore.build.pipeline import build_store
from tokenstore.build.preview import BuildPreview, preview_build

__all__ = ["BuildOptions", "BuildPreview", "BuildProgress", "BuildResult", "build_store", "preview_build"]
