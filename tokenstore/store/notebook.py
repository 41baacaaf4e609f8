"""A store as a notebook shows it. Only the manifest is used, so nothing is read from the disk."""

from collections.abc import Iterator

from tokenstore.format.layout import LENGTH_INDEX_NAME
from tokenstore.format.manifest import Manifest
from tokenstore.text import html_table, size


def store_html(place: str, manifest: Manifest) -> str:
    """An HTML table of what is in the store at a path or URL."""
    return html_table(f"Store {place}", _rows(manifest))


def _rows(manifest: Manifest) -> Iterator[tuple[str, object]]:
    documents, tokens, shards = manifest.num_documents, manifest.num_tokens, len(manifest.shards)
    tokenizer = manifest.tokenizer
    names = [tokenizer.kind, *([tokenizer.file] if tokenizer.file else [])]
    eos = "none" if tokenizer.eos_id is None else f"id {tokenizer.eos_id}"
    kept = {
        "length index": manifest.name_of(LENGTH_INDEX_NAME) in manifest.files,
        "loss masks": manifest.has_masks,
        "ids": manifest.has_ids,
        "origins": manifest.has_origins,
    }
    yield "documents", documents
    yield "tokens", f"{tokens:,} as {manifest.dtype}, {tokens / max(documents, 1):,.1f} per document"
    yield "tokenizer", f"{': '.join(names)}, vocabulary of {manifest.vocab_size:,}, end of text {eos}"
    yield "files", f"{size(manifest.num_bytes)}, {shards:,} shard{'s' if shards != 1 else ''}"
    yield "also has", ", ".join(name for name, there in kept.items() if there) or "nothing else"
    yield "version", manifest.version
    yield "digest", manifest.digest[:12]
