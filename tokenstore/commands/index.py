"""`tokenstore index`, in a clone `python -m tools.index_store`."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tokenstore.commands.progress_bar import Meter, meter
from tokenstore.store import open_store
from tokenstore.store.length_index import add_length_index
from tokenstore.store.work import is_work_folder
from tokenstore.text import safe


def index(
    stores: list[Path],
    /,
    *,
    version: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Add the length index to stores that lack one. Plans with packing best_fit or none need it; new stores have it.

    The index takes 4 bytes per document and a few seconds. No token is read, and the store's digest does not change.

    **Examples:**

    ```text
    tokenstore index stores/web
    tokenstore index stores/*
    ```

    Parameters
    ----------
    stores
        The stores' directories. They and their parent directories must be writable (for the lock, STORE.tokenstore).
    version
        Add it to this version of stores that documents were appended to. Default: the newest.
    as_json
        Print one JSON object per store, on one line: path, written, documents, lengths.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for path in [path for path in stores if not is_work_folder(path)]:  # `stores/*` matches those too
        start = time.monotonic()
        with meter(f"indexing {path}", quiet=as_json) as shown:
            written = add_length_index(path, partial(_show, shown), version)
        with open_store(path, version=version) as store:
            row = {"path": str(path), "written": written, "documents": len(store), "lengths": len(store.runs())}
        if as_json:
            sys.stdout.write(json.dumps(row) + "\n")
            continue
        done = f"written in {time.monotonic() - start:.1f} s" if written else "already exists"
        console.print(
            f"{safe(str(path))}: {row['documents']:,} documents of {row['lengths']:,} lengths; length index {done}"
        )
    return 0


def _show(shown: Meter, done: int, total: int) -> None:
    shown.show(done, total, (done // 2, " documents"))
