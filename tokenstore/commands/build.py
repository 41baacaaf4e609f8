"""`tokenstore build`, in a clone `python -m tools.build_store`."""

import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console

from tokenstore.builder import BuildOptions, BuildPreview, BuildProgress, BuildResult, build_store, preview_build
from tokenstore.builder.documents.loss_spans import TrainOn
from tokenstore.builder.options import Dedup, DocumentStart, Engine, Records, SpecialText
from tokenstore.builder.reading.records import MAX_RECORD_BYTES
from tokenstore.commands.progress_bar import meter
from tokenstore.errors import counted
from tokenstore.views.text import safe

CONTENT = Group("What a record holds", sort_key=1)
TOKENS = Group("Tokens", sort_key=2)
CHOICE = Group("Which documents", sort_key=3)
FLAG = Parameter(negative=())
LIST = Parameter(consume_multiple=True, negative=())


def build(
    inputs: Annotated[list[str], Parameter(name="INPUTS", negative=())],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    tokenizer: str,
    records: Annotated[Records, Parameter(group=CONTENT)] = "text",
    text_field: Annotated[str, Parameter(group=CONTENT)] = "text",
    text_endings: Annotated[list[str], LIST, Parameter(group=CONTENT)] = [],  # noqa: B006  # cyclopts copies
    tokens_field: Annotated[str, Parameter(group=CONTENT)] = "input_ids",
    mask_field: Annotated[str | None, Parameter(group=CONTENT)] = None,
    id_field: Annotated[str | None, Parameter(group=CONTENT)] = None,
    origins: Annotated[bool, Parameter(group=CONTENT)] = True,
    chat_template: Annotated[str | None, Parameter(group=CONTENT)] = None,
    chat_date: Annotated[str | None, Parameter(group=CONTENT)] = None,
    train_on: Annotated[TrainOn, Parameter(group=CONTENT)] = "assistant",
    engine: Annotated[Engine, Parameter(group=TOKENS)] = "auto",
    eos: Annotated[str | None, Parameter(group=TOKENS)] = None,
    no_eos: Annotated[bool, FLAG, Parameter(group=TOKENS)] = False,
    document_start: Annotated[DocumentStart, Parameter(group=TOKENS)] = "none",
    special_text: Annotated[SpecialText, Parameter(group=TOKENS)] = "plain",
    add_special_tokens: Annotated[bool, FLAG, Parameter(group=TOKENS)] = False,
    pattern: Annotated[str | None, Parameter(group=TOKENS)] = None,
    special_tokens: Annotated[list[str], LIST, Parameter(group=TOKENS)] = [],  # noqa: B006
    keep_empty: Annotated[bool, FLAG, Parameter(group=CHOICE)] = False,
    min_tokens: Annotated[int, Parameter(group=CHOICE)] = 0,
    max_tokens: Annotated[int | None, Parameter(group=CHOICE)] = None,
    filter: Annotated[str | None, Parameter(group=CHOICE)] = None,
    map: Annotated[str | None, Parameter(group=CHOICE)] = None,
    dedup: Annotated[Dedup, Parameter(group=CHOICE)] = "none",
    split: Annotated[str | None, Parameter(group=CHOICE)] = None,
    max_bad: Annotated[int, Parameter(group=CHOICE)] = 0,
    max_record_size: Annotated[int, Parameter(group=CHOICE)] = MAX_RECORD_BYTES >> 20,
    shard_size: int = 1024,
    workers: int | None = None,
    overwrite: Annotated[bool, FLAG] = False,
    dry_run: Annotated[bool, FLAG] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Tokenize files into a token store.

    Inputs are .txt files (a file is a document), .jsonl, .csv and .tsv (a line or row is one), each also as .gz or .zst;
    .parquet and .arrow (also folders of Hugging Face save_to_disk); folders (all such files below them) and globs.
    Documents come in the order of the arguments, inside a folder or glob sorted by path.
    Neither sequence length nor shuffle is baked in.

    Killed at any moment, a build leaves no store, and the same command resumes it. A finished store is left alone: its
    inputs are compared by name, size and bytes. Of inputs of more than 1 GiB together OUTPUT.tokenstore/inputs.json keeps size,
    inode and times, and only those are read again of which one of these changed. Work in
    progress and lists of bad records are in the folder OUTPUT.tokenstore; one that tokenstore did not make is refused.

    **Examples:**

    ```text
    tokenstore build data/*.jsonl.zst --output stores/web --tokenizer tokenizer.json --workers 8
    tokenstore build src/ --output stores/code --tokenizer bytes --text-endings .py .md
    tokenstore build web.parquet -o stores/web --tokenizer gpt2.tiktoken --pattern gpt2 --dedup exact --split train=0.99,validation=0.01
    tokenstore build web.jsonl -o stores/web --tokenizer Qwen3-8B/tokenizer.json --eos '<|endoftext|>'
    tokenstore build chats.jsonl -o stores/sft --tokenizer Qwen3-8B/tokenizer.json --records chat
    tokenstore build chats.jsonl -o stores/sft --tokenizer tokenizer.json --records chat --chat-template llama3 --train-on last
    ```

    Parameters
    ----------
    inputs
        Files, folders and globs (quote a glob to have it expanded here, in sorted order).
    output
        The store's directory, which the build creates. With --split a folder of stores, one a split.
    tokenizer
        `bytes` (no file needed), or the path of a Hugging Face tokenizer.json, a tiktoken rank file or a sentencepiece model.
    records
        What a record holds: a text; `tokens` made elsewhere, a list of ids; or a conversation: messages, ShareGPT
        conversations, instruction and output, prompt and completion.
    text_field
        Field of a record, or column, that holds the text; `a.b` is field b of a.
    text_endings
        Endings of other files that are read like .txt.
    tokens_field
        Field that holds tokens.
    mask_field
        Field that says which tokens are in the loss: labels (-100: not) or a mask of 0 and 1.
        Left out: loss_mask or labels, if the first record has it.
    id_field
        Field that holds the document's own id, to be kept in the store.
    origins
        Keep every document's record number, 8 bytes each, so that it can be traced to its input.
    chat_template
        A Jinja file, or a built-in template: chatml, plain, alpaca, qwen2.5, qwen3, qwen3-2507, llama3, llama3.1, llama3.2,
        gemma, gemma3, mistral-v1, mistral-v3, mistral-v3-tekken, mistral-v7-tekken, deepseek-v3, deepseek-r1,
        deepseek-v3.1, phi3, phi3.5, phi4, phi4-mini. Default: the template beside the tokenizer.json; if it does not
        mark what the assistant says, the marks of the built-in one that writes the same text are used.
    chat_date
        What a chat template that prints today's date gets to print, as 2025-01-31: a build must not depend on the day.
    train_on
        What is trained on in a conversation: the assistant's turns, its last turn (also where the user speaks after it), or all.
    engine
        Fast tokenizes by gigatoken, checked against the reference; auto if it can. The tokens are the same.
    eos
        The end-of-text token, such as '<|endoftext|>', which is appended to every document. Default: the one named in the
        tokenizer_config.json beside the tokenizer, else the only usual one in the vocabulary. The summary shows it.
        A chat model's may end a turn, as <|im_end|> does: for plain text name the base model's.
    no_eos
        Append no end-of-text token.
    document_start
        Token put before every document.
    special_text
        Special-token strings inside a text: stay text, become special tokens, or make the record bad.
    add_special_tokens
        Let the tokenizer.json's own post-processing add its special tokens to every text.
    pattern
        Of a tiktoken rank file, which does not say it: the name of its split pattern (gpt2, cl100k_base, o200k_base, llama3,
        qwen2, ...), or the pattern.
    special_tokens
        Of a tiktoken rank file: name=id, or a name, which is given the next free id.
    keep_empty
        Keep documents without text, instead of dropping and counting them.
    min_tokens
        Leave out documents with fewer tokens, those put before and after not counted.
    max_tokens
        Leave out documents with more tokens.
    filter
        module:function of your own; given a record, a dict, it says whether to keep it.
    map
        module:function of your own; given a record, a dict, it returns the one to take, or None to leave it out.
    dedup
        Exact: of equal documents only the first is kept.
    split
        Names and shares, such as train=0.99,validation=0.01. Equal documents fall in the same split.
    max_bad
        Bad records allowed before the build fails with exit code 3. They are listed in OUTPUT.tokenstore/rejects.jsonl.
    max_record_size
        Records longer than this many MiB are bad.
    shard_size
        Target size of a shard file in MiB.
    workers
        Processes that tokenize; default: one per core. The store's bytes are the same for any number.
    overwrite
        Replace a store or an unfinished build that was made with other options. A folder that holds anything else than a
        store is refused.
    dry_run
        Show the inputs, the tokens to expect from a sample spread over them, with its uncertainty, and the disk needed;
        write nothing. Fails with exit code 3 where all records of the sample are bad.
    as_json
        Print the result as one JSON object.
    """
    options = _options(**locals())
    if dry_run:
        _print_preview(preview_build(options), as_json)
        return 0
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    start = time.monotonic()
    with meter("building", quiet=as_json) as shown:

        def progress(at: BuildProgress) -> None:
            shown.show(at.num_bytes, at.total_bytes, (at.num_tokens, " tokens"), (at.num_bytes, "B of input"))

        result = build_store(options, progress, lambda text: errors.print(f"note: {safe(text)}"))
    seconds = time.monotonic() - start
    if as_json:
        sys.stdout.write(json.dumps({**asdict(result), "seconds": round(seconds, 3)}, default=str) + "\n")
    else:
        print_result(result, seconds)
    return 0


def _options(
    dry_run: bool,
    as_json: bool,
    workers: int | None,
    max_record_size: int,
    shard_size: int,
    eos: str | None,
    no_eos: bool,
    **same: Any,
) -> BuildOptions:
    """The command's arguments as options: those of other units, and the others as they are."""
    others: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in same.items()}
    return BuildOptions(
        workers=multiprocessing.cpu_count() if workers is None else workers,
        max_record_bytes=max_record_size << 20,
        shard_bytes=shard_size << 20,
        eos_token=eos,
        eos=not no_eos,
        **others,
    )


def _print_preview(preview: BuildPreview, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(preview)) + "\n")
        return
    over = ", ".join(f"{number} {ending}" for ending, number in sorted(preview.passed_over.items()))
    rows = [(ending, f"{counted(number, 'file')}, {_size(size)}") for ending, number, size in preview.files]
    rows += [("skipped", f"other endings: {over}")] if over else []
    rows += [
        ("work", f"{counted(preview.num_units, 'unit')}; a killed build keeps those that are done"),
        ("tokenizer", preview.tokenizer),
        ("ids", f"{preview.dtype}, as the vocabulary has {preview.vocab_size:,} ids (uint16 holds 65,536)"),
        ("expected", _expected(preview)),
        ("store", f"about {_size(preview.store_bytes)}"),
        ("disk", f"about {_size(preview.disk_bytes)} while building, {_size(preview.free_bytes)} free"),
    ]
    if preview.read_in_part:
        what = (
            "inputs are large and were read only in part"
            if preview.read_in_part > 1
            else "input is large and was read only in part"
        )
        rows.append(("uncertain", f"{preview.read_in_part:,} {what}; the rest is assumed to be like its beginning"))
    if preview.num_bad:
        rows.append(("bad records", f"{preview.num_bad:,} in the sample"))
    if preview.disk_bytes > preview.free_bytes:
        rows.append(("warning", "there is not enough room; the build would stop, and resume once there is"))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name, value in [*rows, ("dry run", "nothing was written; run without --dry-run to build")]:
        console.print(safe(f"{name:<13}{value}"))


def _expected(preview: BuildPreview) -> str:
    what = f"{counted(preview.num_tokens, 'token')} in {counted(preview.num_documents, 'document')}"
    if preview.is_exact:
        return f"{what} (all inputs were tokenized)"
    return f"about {what} (tokens within {max(preview.error * 100, 0.1):.1f} %, estimated from a sample)"


def _size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


_WHY = {
    "empty": "without text",
    "filtered": "removed by --filter or --map",
    "short": "shorter than --min-tokens",
    "long": "longer than --max-tokens",
    "duplicates": "equal to an earlier one",
}


def print_result(result: BuildResult, seconds: float) -> None:
    """Print a table of what is there now."""
    counts = result.counts
    left_out = ", ".join(f"{counts[name]:,} {why}" for name, why in _WHY.items() if counts.get(name))
    rows = [
        ("store", str(result.path) + (" (was there already; nothing done)" if result.was_there else "")),
        ("documents", f"{result.num_documents:,} from {counted(counts.get('input files', 0), 'file')}"),
        *([("left out", left_out)] if left_out else []),
        (
            "tokens",
            f"{result.num_tokens:,} as {result.dtype} (vocabulary of {result.vocab_size:,}), {counted(result.num_shards, 'shard')}",
        ),
        ("end of text", f"{result.eos_token!r} ({result.eos_id})" if result.eos_id is not None else "none appended"),
        *[
            (
                f"  {part.path.name}",
                f"{counted(part.num_documents, 'document')}, {counted(part.num_tokens, 'token')}, digest {part.digest}",
            )
            for part in result.splits
        ],
        ("bad records", f"{counts.get('bad', 0):,}" + (f", listed in {result.rejects}" if result.rejects else "")),
        *([("digest", result.digest)] if result.digest else []),
    ]
    if not result.was_there:
        if result.new_documents < result.num_documents:
            rows.append(
                ("added", f"{counted(result.new_documents, 'document')}, {counted(result.new_tokens, 'token')}")
            )
        rows.append(("time", f"{seconds:.1f} s, {result.new_tokens / max(seconds, 1e-9):,.0f} tokens/s"))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name, value in rows:  # no table: it would cut a long path to the width of the terminal
        console.print(safe(f"{name:<13}{value}"))
