"""`tokenstore adopt`: a store over token files of another tool."""

import time
from typing import Annotated

from cyclopts import Parameter

from tokenstore.commands.progress_bar import meter
from tokenstore.commands.screen import fact_lines, print_note, write_json
from tokenstore.errors import counted
from tokenstore.foreign import AdoptOptions, AdoptResult, adopt_store
from tokenstore.foreign.options import CutName, DtypeName, From, Place
from tokenstore.text import size

_FLAG = Parameter(negative=(), show_default=False)


def adopt(
    inputs: Annotated[list[str], Parameter(name="INPUTS", negative=())],
    /,
    *,
    output: Annotated[str, Parameter(alias="-o")],
    from_format: Annotated[From, Parameter(name="--from")] = "auto",
    tokenizer: str | None = None,
    pattern: str | None = None,
    vocab_size: int | None = None,
    eos_id: int | None = None,
    eos_at: Place | None = None,
    cut: CutName | None = None,
    dtype: DtypeName | None = None,
    copy: Annotated[bool, _FLAG] = False,
    join: Annotated[bool, _FLAG] = False,
    overwrite: Annotated[bool, _FLAG] = False,
    as_json: Annotated[bool, _FLAG, Parameter(name="--json")] = False,
) -> int:
    """Make a store over token files that another tool wrote: Megatron, datatrove, Dolma, nanoGPT or llm.c.

    The token files become the shards of the store as hard links, so no token is copied. All tokens are read once, for checksums
    and counts. Where a file cannot be mapped as it is, or cannot be linked to, it is copied, and a note says why. The files
    themselves are never changed, and neither are their permissions. If their owner later writes to one, opening the store is an
    error.

    The files do not say which tokenizer made them: name it, or give the size of the vocabulary. Without a tokenizer, tokens
    cannot be shown as text; everything else works.

    **Examples:**

    ```text
    tokenstore adopt corpus_text_document -o stores/web --tokenizer tokenizer.json
    tokenstore adopt tokenized/ --from datatrove -o stores/web --vocab-size 50257 --eos-id 50256
    tokenstore adopt dolma/part-*.npy -o stores/web --tokenizer tokenizer.json
    tokenstore adopt train.bin --from nanogpt -o stores/web --tokenizer gpt2.tiktoken --pattern gpt2
    tokenstore adopt fineweb_train_*.bin --from llmc -o stores/web --vocab-size 50257 --eos-id 50256 --join
    ```

    Parameters
    ----------
    inputs
        Token files, their prefixes (x or x.idx for x.bin), folders and glob patterns. Their documents are stored in this order;
        files of a folder or pattern are sorted by path.
    output
        Folder of the new store.
    from_format
        The tool that wrote the files. auto looks at the files.
    tokenizer
        The tokenizer that made the tokens: bytes, or the path of its file.
    pattern
        For a tiktoken rank file only: its split pattern, or the name of one, as in tokenstore build.
    vocab_size
        Size of the vocabulary; every token id is smaller. Needed without --tokenizer.
    eos_id
        Id of the end-of-text token. Default: that of the tokenizer.
    eos_at
        Where that token is in a document. Default: what the tool does; for files with an index, what most documents show.
    cut
        What divides the tokens into documents. index: the tool's index. eos: the end-of-text token. both: for datatrove files that
        were shuffled in chunks. file: each file is one document. Default: the index, if there is one, else eos.
    dtype
        Type of the tokens, for files that do not say it. Default: uint16.
    copy
        Copy the token files instead of linking to them.
    join
        With --cut eos: join a document that continues in the next file, by copying. Without it, the end of a file ends a document.
    overwrite
        Replace a store at the output.
    as_json
        Print the result as one JSON object.
    """
    options = AdoptOptions(
        tuple(inputs),
        output,
        from_format,
        tokenizer,
        pattern,
        vocab_size,
        eos_id,
        eos_at,
        cut,
        dtype,
        copy,
        join,
        overwrite,
    )
    start = time.monotonic()
    with meter("adopting", quiet=as_json) as shown:
        result = adopt_store(options, lambda done, total: shown.show(done, total, (done, "B")), print_note)
    seconds = time.monotonic() - start
    if as_json:
        write_json({**vars(result), "seconds": round(seconds, 3)})
    else:
        _print(result, seconds)
    return 0


def _print(result: AdoptResult, seconds: float) -> None:
    num_bytes = result.num_tokens * (2 if result.dtype == "uint16" else 4)
    copied = f", {counted(result.num_copied, 'file')} copied" if result.num_copied else ""
    rows = [
        ("store", str(result.path)),
        ("from", f"{result.format}, documents by {result.cut}"),
        ("files", f"{counted(result.num_linked, 'file')} linked{copied}"),
        ("documents", f"{result.num_documents:,}"),
        (
            "tokens",
            f"{result.num_tokens:,} as {result.dtype}, ids {result.low:,} to {result.high:,} of {result.vocab_size:,}",
        ),
        ("end of text", _end_of_text(result)),
        ("digest", result.digest),
        ("time", f"{seconds:.1f} s, {size(round(num_bytes / max(seconds, 1e-9)))} of tokens per second"),
    ]
    fact_lines(rows)


def _end_of_text(result: AdoptResult) -> str:
    if result.eos_id is None:
        return "not known"
    at_end, at_start = (f"at the {side} of {result.counts[f'{side} with eos']:,}" for side in ("end", "start"))
    found = {"end": at_end, "start": at_start, "none": f"{at_end} and {at_start}"}[result.eos_at]
    return f"{result.eos_id}, {found} of {counted(result.num_documents, 'document')}"
