"""`tokenstore merge`, in a clone `python -m tools.merge_stores`."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenstore.builder.merging import merge as merge_stores
from tokenstore.commands.build import print_outcome
from tokenstore.commands.screen import print_note


def merge(
    stores: Annotated[list[Path], Parameter(name="STORES", negative=())],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    overwrite: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Join stores of one tokenizer into a new store, without copying tokens.

    The new store has the documents of all stores, in the order of the arguments. Its shards are hard links to theirs, so it takes
    only some bytes per document, and the stores may be removed afterwards. On another file system the shards are copied. Stores
    that were built in parallel, or written by several processes with `tokenstore.StoreWriter`, become one in this way.

    The stores must have the same tokenizer and the same ends of documents. Where only some have loss masks, all tokens of the
    others are in the loss. Where only some have ids or metadata, those of the others are empty. Origins are kept if all stores
    have them. If the stores were built with different options, the new store cannot be appended to.

    A killed merge leaves no store; run it again.

    **Examples:**

    ```text
    tokenstore merge stores/web-2023 stores/web-2024 --output stores/web
    tokenstore merge stores/part-* -o stores/all
    ```

    Parameters
    ----------
    stores
        Folders of two or more stores.
    output
        Folder of the new store.
    overwrite
        Replace a store at the output. Anything other than a store is refused.
    as_json
        Print the result as one JSON object.
    """
    start = time.monotonic()
    result = merge_stores(stores, output, overwrite, print_note)
    print_outcome(result, time.monotonic() - start, as_json)
    return 0
