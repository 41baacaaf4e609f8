"""`tokenstore append`, in a clone `python -m tools.append_store`."""

import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tokenstore.builder import BuildProgress, append_store
from tokenstore.commands.build import print_result
from tokenstore.commands.progress_bar import meter
from tokenstore.views.text import safe


def append(
    store: Path,
    inputs: Annotated[list[str], Parameter(name="INPUTS", negative=())],
    /,
    *,
    workers: int | None = None,
    max_bad: int = 0,
    filter: str | None = None,
    map: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Add new input files to a store, as its next version, with the tokenizer and options it was built with.

    The shards that are there are not touched. Older versions stay: a plan that says `version: 1` beside the path of a
    source continues as before; without a version the newest is taken. Killed at any moment, the store is what it was, and the
    same command resumes. Inputs that are in the store already, by name, size and bytes, are not added again.
    A store built with --dedup exact is refused: it does not keep what is needed to compare new documents with its own.
    Build it again from all inputs.

    **Examples:**

    ```text
    tokenstore append stores/web data/2024-06/*.jsonl.zst
    tokenstore append stores/clean data/2024-06/ --filter mine:keep
    ```

    Parameters
    ----------
    store
        The store's directory, or the folder of stores that a build with --split made.
    inputs
        Files, folders and globs, as in a build.
    workers
        Processes that tokenize; default: one per core.
    max_bad
        Bad records allowed before it fails with exit code 3. They are listed in STORE.tokenstore/rejects-vN.jsonl.
    filter
        The --filter the store was built with, if it was. Code runs only if you name it here, never because a store says so.
    map
        The --map the store was built with; likewise.
    as_json
        Print the result as one JSON object.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    start = time.monotonic()
    with meter("appending", quiet=as_json) as shown:

        def progress(at: BuildProgress) -> None:
            shown.show(at.num_bytes, at.total_bytes, (at.num_tokens, " tokens"), (at.num_bytes, "B of input"))

        cores = multiprocessing.cpu_count() if workers is None else workers
        note = lambda text: errors.print(f"note: {safe(text)}")  # noqa: E731
        result = append_store(store, inputs, cores, max_bad, progress, note, filter, map)
    seconds = time.monotonic() - start
    if as_json:
        sys.stdout.write(json.dumps({**asdict(result), "seconds": round(seconds, 3)}, default=str) + "\n")
    else:
        print_result(result, seconds)
    return 0
