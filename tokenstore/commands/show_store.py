"""A store on one screen: what `tokenstore inspect STORE` prints."""

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from tokenstore.commands.screen import bar, facts, heading, origin_text, table
from tokenstore.text import clip, safe, size
from tokenstore.views.lengths import Lengths, percentile_name
from tokenstore.views.store_summary import StoreSummary

# options that do not affect the content, or that are shown elsewhere
_HIDDEN = (
    "shard_bytes",
    "max_record_bytes",
    "text_field",
    "tokens_field",
    "eos",
    "eos_token",
    "origins",
    "chat_token_names",
)
_DEFAULTS = {
    "special_text": "plain",
    "document_start": "none",
    "records": "text",
    "dedup": "none",
    "train_on": "assistant",
}


def show_store(console: Console, summary: StoreSummary) -> None:
    """Print a store: figures, inputs, a histogram of document lengths, and the largest documents."""
    console.print(Text(safe(summary.path), "bold"))
    facts(console, _facts(summary))
    if summary.num_inputs > 1 and summary.inputs[0].documents > 1:
        heading(console, f"Inputs with the most documents, of {summary.num_inputs:,}")
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
        console.print(f"unknown without a length index; run `tokenstore index {safe(summary.path)}`", soft_wrap=True)
        return
    _show_lengths(console, summary.lengths)
    heading(console, "Largest documents")
    rows = (
        (f"{row.number}", f"{row.num_tokens:,}", origin_text(row.origin), clip(row.id or "", 200))
        for row in summary.largest
    )
    table(console, rows, "document", "tokens", "origin", "id", right=(0, 1), folds=2)


def _facts(summary: StoreSummary) -> Iterator[tuple[str, str]]:
    manifest, versions = summary.manifest, summary.versions
    tokenizer = manifest.tokenizer
    yield "tokens", f"{manifest.num_tokens:,}"
    yield "documents", f"{manifest.num_documents:,}"
    shards = "1 shard" if len(manifest.shards) == 1 else f"{len(manifest.shards):,} shards"
    yield "on disk", f"{size(summary.num_bytes)} in {shards} of {manifest.dtype}"
    yield "version", f"{summary.version}" + (f" of {', '.join(map(str, versions))}" if len(versions) > 1 else "")
    sha = f", sha256 {clip(tokenizer.sha256, 12).split('...')[0]}" if tokenizer.sha256 else ""
    engine = f"{tokenizer.engine} {tokenizer.engine_version}".rstrip()
    yield "tokenizer", f"{clip(tokenizer.kind, 60)}, {manifest.vocab_size:,} ids{sha} ({clip(engine, 60)})"
    name = manifest.options.get("eos_token")
    named = f"{clip(repr(name), 60)} ({tokenizer.eos_id})" if isinstance(name, str) else f"{tokenizer.eos_id}"
    yield (
        "end of text",
        f"{named}, the last token of every document" if manifest.ends_with_eos else "not at the end of documents",
    )
    if summary.in_loss is not None:
        about = "" if summary.in_loss.exact else "about "
        yield "loss masks", f"{about}{100 * summary.in_loss.share:.2f} % of the tokens are in the loss"
    has = {"length index": summary.has_length_index, "origins": manifest.has_origins, "ids": manifest.has_ids}
    has |= {"masks": manifest.has_masks, "metadata": manifest.has_metadata}
    yield (
        "has",
        ", ".join(name for name, there in has.items() if there) or "tokens only",
    )
    if summary.num_inputs:
        yield "inputs", f"{summary.num_inputs:,}" if summary.num_inputs > 1 else clip(summary.inputs[0].file, 300)
    if options := _options(manifest.options):
        yield "built with", options
    if counts := {
        name: count for name, count in manifest.counts.items() if count and name not in ("documents", "input files")
    }:
        yield "counts", ", ".join(f"{clip(name, 60)} {count:,}" for name, count in sorted(counts.items()))
    yield "digest", clip(summary.digest, 64)
    yield "checked", "the manifest and the file sizes; to check everything: tokenstore verify"


def _options(options: dict[str, Any]) -> str:
    """The options that affect the content and differ from their defaults."""
    shown = {
        name: value
        for name, value in sorted(options.items())
        if value not in (None, False, [], {}, 0, "") and name not in _HIDDEN and _DEFAULTS.get(name) != value
    }
    return ", ".join(f"{clip(name, 60)} {clip(str(value), 80)}" for name, value in shown.items())


def _show_lengths(console: Console, lengths: Lengths) -> None:
    heading(console, "Document lengths in tokens")
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
        table(console, rows, "tokens", "documents", "share", "token share", "", right=(0, 1, 2, 3))
    percentiles = ", ".join(f"{percentile_name(p)} {value:,}" for p, value in lengths.percentiles.items())
    facts(
        console,
        [
            ("shortest, mean, longest", f"{lengths.shortest:,}, {lengths.mean:,.1f}, {lengths.longest:,}"),
            ("percentiles", percentiles),
            ("half of all tokens", f"in documents of at most {lengths.half_of_tokens:,} tokens"),
        ],
    )
