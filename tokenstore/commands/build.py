"""`tokenstore build`, in a clone `python -m tools.build_store`."""

import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from tokenstore.build import BuildOptions, BuildPreview, BuildProgress, BuildResult, build_store, preview_build
from tokenstore.commands.progress import meter


def build(
    inputs: Annotated[list[str], Parameter(name="INPUTS", negative=())],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    tokenizer: str,
    text_endings: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = [],  # noqa: B006  # cyclopts copies
    text_field: str = "text",
    eos: bool = True,
    eos_token: str | None = None,
    document_start: Literal["none", "eos", "bos"] = "none",
    special_text: Literal["plain", "special", "error"] = "plain",
    keep_empty: Annotated[bool, Parameter(negative=())] = False,
    shard_size: int = 1024,
    workers: int | None = None,
    max_bad: int = 0,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Tokenize files into a token store.

    Inputs are .txt files (a file is a document), .jsonl, .csv and .tsv (a line or row is one), each also as .gz or .zst;
    .parquet and .arrow (also folders of Hugging Face save_to_disk); folders (all such files below them) and globs.
    Documents come in the order of the arguments, inside a folder or glob sorted by path. Neither sequence length nor shuffle is baked in.

    Killed at any moment, a build leaves no store, and the same command resumes it. A finished store is left alone.

    **Examples:**

    ```text
    tokenstore build data/*.jsonl.zst --output stores/web --tokenizer tokenizer.json --workers 8
    tokenstore build src/ --output stores/code --tokenizer bytes --text-endings .py .md
    ```

    Parameters
    ----------
    inputs
        Files, folders and globs (quote a glob to have it expanded here, in sorted order).
    output
        The store's directory, which the build creates.
    tokenizer
        `bytes` (no file needed), or the path of a Hugging Face tokenizer.json.
    text_endings
        Endings of other files that are read like .txt.
    text_field
        Field of a record, or column, that holds the text; `a.b` is field b of a.
    eos
        Append the end-of-text token to every document.
    eos_token
        The end-of-text token, if the tokenizer does not tell which it is.
    document_start
        Token put before every document.
    special_text
        Special-token strings inside a text: stay text, become special tokens, or make the record bad.
    keep_empty
        Keep documents without text, instead of dropping and counting them.
    shard_size
        Target size of a shard file in MiB.
    workers
        Processes that tokenize; left out: one a core. The store's bytes are the same for any number.
    max_bad
        Bad records allowed before the build fails with exit code 3. They are listed in OUTPUT.rejects.jsonl.
    overwrite
        Replace a store or an unfinished build that was made with other options.
    dry_run
        Show the inputs, the tokens to expect from a sample of them, and the disk needed; write nothing.
    as_json
        Print the result as one JSON object.
    """
    options = BuildOptions(
        inputs=tuple(inputs),
        output=output,
        tokenizer=tokenizer,
        text_endings=tuple(text_endings),
        text_field=text_field,
        eos=eos,
        eos_token=eos_token,
        document_start=document_start,
        special_text=special_text,
        keep_empty=keep_empty,
        shard_bytes=shard_size << 20,
        workers=multiprocessing.cpu_count() if workers is None else workers,
        max_bad=max_bad,
        overwrite=overwrite,
    )
    if dry_run:
        _print_preview(preview_build(options), as_json)
        return 0
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    start = time.monotonic()
    with meter("building", quiet=as_json) as shown:

        def progress(at: BuildProgress) -> None:
            shown.show(at.num_bytes, at.total_bytes, (at.num_tokens, " tokens"), (at.num_bytes, "B of input"))

        result = build_store(options, progress, lambda text: errors.print(f"note: {text}"))
    seconds = time.monotonic() - start
    if as_json:
        row = {**asdict(result), "path": str(result.path), "rejects": str(result.rejects) if result.rejects else None}
        sys.stdout.write(json.dumps({**row, "seconds": round(seconds, 3)}) + "\n")
    else:
        _print(result, seconds)
    return 0


def _print_preview(preview: BuildPreview, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(preview)) + "\n")
        return
    over = ", ".join(f"{number} {ending}" for ending, number in sorted(preview.passed_over.items()))
    rows = [(ending, f"{number:,} files, {_size(size)}") for ending, number, size in preview.files]
    rows += [("passed over", over)] if over else []
    rows += [
        ("work", f"{preview.num_units:,} units; each, once done, is kept when a build is killed"),
        ("tokenizer", preview.tokenizer),
        ("ids", f"{preview.dtype}, as the vocabulary has {preview.vocab_size:,} ids (uint16 holds 65,536)"),
        ("expected", f"about {preview.num_tokens:,} tokens in {preview.num_documents:,} documents"),
        ("store", f"about {_size(preview.store_bytes)}"),
        ("disk", f"about {_size(preview.disk_bytes)} while building, {_size(preview.free_bytes)} free"),
    ]
    if preview.num_bad:
        rows.append(("bad records", f"{preview.num_bad:,} in the sample that was read"))
    if preview.disk_bytes > preview.free_bytes:
        rows.append(("warning", "there is not enough room; the build would stop, and resume once there is"))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name, value in [*rows, ("nothing", "was written; leave --dry-run out to build")]:
        console.print(f"{name:<13}{value}")


def _size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def _print(result: BuildResult, seconds: float) -> None:
    counts = result.counts
    rows = [
        ("store", str(result.path) + (" (was there already; nothing done)" if result.was_there else "")),
        (
            "documents",
            f"{result.num_documents:,} from {counts['input files']:,} files; {counts['empty']:,} without text left out",
        ),
        (
            "tokens",
            f"{result.num_tokens:,} as {result.dtype} (vocabulary of {result.vocab_size:,}), {result.num_shards:,} shards",
        ),
        ("bad records", f"{counts['bad']:,}" + (f", listed in {result.rejects}" if result.rejects else "")),
        ("digest", result.digest),
    ]
    if not result.was_there:
        rows.append(("time", f"{seconds:.1f} s, {result.num_tokens / max(seconds, 1e-9):,.0f} tokens/s"))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name, value in rows:  # no table: it would cut a long path to the width of the terminal
        console.print(f"{name:<13}{value}")
