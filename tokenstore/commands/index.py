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
from tokenstore.store.block_checksums import add_block_checksums
from tokenstore.store.length_index import add_length_index
from tokenstore.store.work import is_work_folder
from tokenstore.text import safe


def index(
    stores: list[Path],
    /,
    *,
    version: int | None = None,
    block_checksums: bool = True,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Add the length index and the block checksums to stores that lack them. New stores have both.

    Plans with packing best_fit or none need the length index. It takes 4 bytes per document and a few seconds. Block checksums
    let `verify` name the damaged place of a file, and verify blocks that are read from object storage. They take 8 bytes per 64
    KiB, and all tokens are read and verified. The store's digest does not change.

    **Examples:**

    ```text
    tokenstore index stores/web
    tokenstore index stores/*
    tokenstore index stores/web --no-block-checksums
    ```

    Parameters
    ----------
    stores
        The stores' directories. They and their parent directories must be writable (for the lock, STORE.tokenstore).
    version
        Add it to this version of stores that documents were appended to. Default: the newest.
    block_checksums
        Add block checksums. Without them no token is read.
    as_json
        Print one JSON object per store, on one line: path, written, block_checksums_written, documents, lengths.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for path in [path for path in stores if not is_work_folder(path)]:  # `stores/*` matches those too
        start = time.monotonic()
        with meter(f"indexing {path}", quiet=as_json) as shown:
            written = add_length_index(path, partial(_show, shown), version)
        index_done = time.monotonic()
        with meter(f"checksums of {path}", quiet=as_json) as shown:
            summed = block_checksums and add_block_checksums(path, partial(_show_bytes, shown), version)
        with open_store(path, version=version) as store:
            row: dict[str, object] = {"path": str(path), "written": written, "block_checksums_written": summed}
            row |= {"documents": len(store), "lengths": len(store.runs())}
        if as_json:
            sys.stdout.write(json.dumps(row) + "\n")
            continue
        parts = [f"{row['documents']:,} documents of {row['lengths']:,} lengths"]
        parts.append(f"length index {_outcome(written, index_done - start)}")
        if block_checksums:
            parts.append(f"block checksums {_outcome(summed, time.monotonic() - index_done)}")
        console.print(f"{safe(str(path))}: {'; '.join(parts)}")
    return 0


def _outcome(written: bool, seconds: float) -> str:
    return f"written in {seconds:.1f} s" if written else "there already"


def _show(shown: Meter, done: int, total: int) -> None:
    shown.show(done, total, (done // 2, " documents"))


def _show_bytes(shown: Meter, done: int, total: int) -> None:
    shown.show(done, total, (done, "B"))
