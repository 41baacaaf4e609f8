"""`tokenstore export`: a store as token files of another tool."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenstore.commands.progress_bar import meter
from tokenstore.commands.screen import fact_lines, listed, print_note, write_json
from tokenstore.foreign import ExportOptions, export_store
from tokenstore.foreign.options import To

_FLAG = Parameter(negative=(), show_default=False)


def export(
    store: str,
    /,
    *,
    to: To,
    output: Annotated[str, Parameter(alias="-o")],
    name: str | None = None,
    version: int | None = None,
    one_file: Annotated[bool, _FLAG] = False,
    drop_masks: Annotated[bool, _FLAG] = False,
    copy: Annotated[bool, _FLAG] = False,
    allow_links: Path | None = None,
    as_json: Annotated[bool, _FLAG, Parameter(name="--json")] = False,
) -> int:
    """Write a store as token files of another tool: Megatron, datatrove, Dolma, nanoGPT or llm.c.

    Each shard becomes a token file: a hard link where the format allows it, otherwise a copy. The tool's index is written beside
    it. If the format cannot hold the store (its token ids, lengths, loss masks or documents), nothing is written, and the message
    gives every reason.

    **Examples:**

    ```text
    tokenstore export stores/web --to megatron -o export/web
    tokenstore export stores/web --to nanogpt -o export/nano --name train
    tokenstore export stores/sft --to megatron -o export/sft --drop-masks --one-file
    ```

    Parameters
    ----------
    store
        Folder of the store.
    to
        Format of the files.
    output
        Folder of the files. It must not exist, or be empty.
    name
        Name of the files, without an ending. Default: that of the store's folder.
    version
        Export this version of a store that documents were appended to. Default: the newest.
    one_file
        Write all tokens to one file. Default: a file per shard; nanogpt always has one file.
    drop_masks
        Export a store with loss masks to a format that has none. Every token then counts in the loss.
    copy
        Copy the tokens instead of linking to the shards.
    allow_links
        A folder that symbolic links inside the store may lead to. Without it, links must stay inside the store.
    as_json
        Print the result as one JSON object.
    """
    options = ExportOptions(store, to, output, name, version, one_file, drop_masks, copy, allow_links)
    start = time.monotonic()
    with meter("exporting", quiet=as_json) as shown:
        result = export_store(options, lambda done, total: shown.show(done, total, (done, " tokens")), print_note)
    seconds = time.monotonic() - start
    if as_json:
        write_json({**vars(result), "seconds": round(seconds, 3)})
        return 0
    beside = listed([file.name for file in result.side_files], 4)
    rows = [
        ("files", f"{result.num_linked:,} linked, {result.num_copied:,} copied, in {result.path}"),
        ("", listed([file.name for file in result.files], 4)),
        *([("beside them", beside)] if beside else []),
        ("documents", f"{result.num_documents:,}"),
        ("tokens", f"{result.num_tokens:,}"),
        ("time", f"{seconds:.1f} s"),
    ]
    fact_lines(rows)
    return 0
