"""`tokenstore append`, in a clone `python -m tools.append_store`."""

import multiprocessing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenstore.builder import append_store
from tokenstore.commands.build import run_build, with_standard_input


def append(
    store: Path,
    inputs: Annotated[list[str], Parameter(name="INPUTS", negative=())],
    /,
    *,
    workers: int | None = None,
    max_bad: int = 0,
    filter: str | None = None,
    map: str | None = None,
    stdin_format: str = ".jsonl",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Add documents from new inputs to a store, as its next version, with the tokenizer and options it was built with.

    The existing shards do not change, and older versions stay usable: a plan that gives `version: 1` next to the path of a
    source continues as before; without a version it uses the newest. An append may be killed at any time. The store is then
    what it was, and the same command resumes. If the store already holds these inputs (same name, size and content), nothing
    changes.

    For a store built with --dedup exact, documents that equal one of the store are dropped too.

    **Examples:**

    ```text
    tokenstore append stores/web data/2024-06/*.jsonl.zst
    tokenstore append stores/clean data/2024-06/ --filter mine:keep
    zstdcat data/2024-06/*.zst | tokenstore append stores/web -
    ```

    Parameters
    ----------
    store
        Folder of the store, or the folder of stores that a build with --split made.
    inputs
        Files, folders and glob patterns, as for `tokenstore build`.
    workers
        Processes that tokenize. Default: one per core.
    max_bad
        Bad records allowed; one more fails the command with exit code 3. STORE.tokenstore/rejects-vN.jsonl lists them.
    filter
        The --filter the store was built with, if any. Code runs only if you name it here, never because a store names it.
    map
        The --map the store was built with, if any.
    stdin_format
        Ending that standard input, the input `-`, would have as a file.
    as_json
        Print the result as one JSON object.
    """
    cores = multiprocessing.cpu_count() if workers is None else workers
    return run_build(
        "appending",
        as_json,
        lambda progress, note: append_store(
            store, with_standard_input(inputs), cores, max_bad, progress, note, filter, map, stdin_format
        ),
    )
