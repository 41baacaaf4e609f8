"""A store in one screen: what `tokenstore inspect STORE` prints."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import bar, facts, heading, origin_text, table
from tokenstore.views.lengths import Lengths, percentile_name
from tokenstore.views.numbers import size
from tokenstore.views.store_summary import StoreSummary
from tokenstore.views.text import clip, safe

# options that say nothing of the content, or are seen elsewhere
_DULL = (
    "shard_bytes",
    "max_record_bytes",
    "text_field",
    "tokens_field",
    "eos",
    "eos_token",
    "origins",
    "chat_token_names",
)
_USUAL = {
    "special_text": "plain",
    "document_start": "none",
    "records": "text",
    "dedup": "none",
    "train_on": "assistant",
}


def show_store(console: Console, summary: StoreSummary) -> None:
    """Print what a store is: figures, inputs, lengths as bars, its largest documents."""
    console.print(Text(safe(summary.path), "bold"))
    facts(console, _facts(summary))
    if summary.num_inputs > 1 and summary.inputs[0].documents > 1:
        heading(console, f"Inputs with most documents, of {summary.num_inputs:,}")
        table(
            console,
            ((f"{row.documents:,}", clip(row.file, 300)) for row in summary.inputs),
            "documents",
            "file",
            right=(0,),
            folds=1,
        )
    if summary.lengths is None:
        heading(console, "Lengths")
        console.print(f"not known without a length index; run `tokenstore index {safe(summary.path)}`", soft_wrap=True)
        return
    _show_lengths(console, summary.lengths)
    heading(console, "Largest documents")
    rows = (
        (f"{row.number}", f"{row.num_tokens:,}", origin_text(row.origin), clip(row.id or "", 200))
        for row in summary.largest
    )
    table(console, rows, "document", "tokens", "origin", "id", right=(0, 1), folds=2)


def _facts(summary: StoreSummary) -> Iterator[tuple[str, str]]:
    tokenizer, versions = summary.tokenizer, summary.versions
    yield "tokens", f"{summary.num_tokens:,}"
    yield "documents", f"{summary.num_documents:,}"
    shards = "1 shard" if summary.num_shards == 1 else f"{summary.num_shards:,} shards"
    yield "on disk", f"{size(summary.num_bytes)} in {shards} of {summary.dtype}"
    yield "version", f"{summary.version}" + (f" of {', '.join(map(str, versions))}" if len(versions) > 1 else "")
    sha = f", sha256 {clip(tokenizer.sha256, 12).split('...')[0]}" if tokenizer.sha256 else ""
    engine = f"{tokenizer.engine} {tokenizer.engine_version}"
    yield "tokenizer", f"{clip(tokenizer.kind, 60)}, {summary.vocab_size:,} ids{sha} ({clip(engine, 60)})"
    name = summary.options.get("eos_token")
    named = f"{clip(repr(name), 60)} ({tokenizer.eos_id})" if isinstance(name, str) else f"{tokenizer.eos_id}"
    yield (
        "end of text",
        f"{named}, the last token of every document" if summary.ends_with_eos else "none at documents' ends",
    )
    if summary.in_loss is not None:
        about = "" if summary.in_loss.exact else "about "
        yield "loss masks", f"{about}{100 * summary.in_loss.share:.2f} % of the tokens are trained on"
    has = {"length index": summary.has_length_index, "origins": summary.has_origins, "ids": summary.has_ids}
    yield (
        "has",
        ", ".join([name for name, there in has.items() if there] + ["masks"] * summary.has_masks) or "tokens only",
    )
    if summary.num_inputs:
        yield "inputs", f"{summary.num_inputs:,}" if summary.num_inputs > 1 else clip(summary.inputs[0].file, 300)
    if told := _options(summary):
        yield "built with", told
    if counts := {name: count for name, count in summary.counts.items() if count and name != "documents"}:
        yield "counted", ", ".join(f"{clip(name, 60)} {count:,}" for name, count in sorted(counts.items()))
    yield "digest", clip(summary.digest, 64)
    yield "checked", "the manifest, sizes of all files, the ends of the index; the rest: tokenstore verify"


def _options(summary: StoreSummary) -> str:
    """The options that say something of the content, and are not as they mostly are."""
    told = {
        name: value
        for name, value in sorted(summary.options.items())
        if value not in (None, False, [], {}, 0, "") and name not in _DULL and _USUAL.get(name) != value
    }
    return ", ".join(f"{clip(name, 60)} {clip(str(value), 80)}" for name, value in told.items())


def _show_lengths(console: Console, lengths: Lengths) -> None:
    heading(console, "Lengths of documents, in tokens")
    most = max(row.documents for row in lengths.bins)
    total = sum(row.documents for row in lengths.bins)
    tokens = sum(row.tokens for row in lengths.bins)
    width = max(8, min(console.width - 48, 50))
    rows: Iterable[tuple[str | Text, ...]] = (
        (
            f"{row.low:,} - {row.high:,}" if row.low < row.high else f"{row.low}",
            f"{row.documents:,}",
            f"{100 * row.documents / total:.1f} %",
            f"{100 * row.tokens / tokens:.1f} %",
            Text(bar(row.documents / most, width, console.options.ascii_only), "cyan"),
        )
        for row in lengths.bins
    )
    if console.width < 60:
        rows = (row[:1] + row[2:3] + row[4:] for row in rows)
        table(console, rows, "tokens", "share", "", right=(0, 1))
    else:
        table(console, rows, "tokens", "documents", "share", "of tokens", "", right=(0, 1, 2, 3))
    told = ", ".join(f"{percentile_name(p)} {value:,}" for p, value in lengths.percentiles.items())
    facts(
        console,
        [
            ("shortest, mean, longest", f"{lengths.shortest:,}, {lengths.mean:,.1f}, {lengths.longest:,}"),
            ("percentiles", told),
            ("half of all tokens", f"in documents of at most {lengths.half_of_tokens:,}"),
        ],
    )
