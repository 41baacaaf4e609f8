"""What `tokenstore build` and `append` print: a preview, and the store that was built."""

from tokenstore.builder import BuildPreview, BuildResult, TaskResult
from tokenstore.commands.screen import fact_lines, write_json
from tokenstore.errors import counted


def print_preview(preview: BuildPreview, as_json: bool) -> None:
    """Print what a build would do: as one JSON object, or as a line per fact."""
    if as_json:
        write_json(preview)
        return
    over = ", ".join(f"{number} {ending}" for ending, number in sorted(preview.skipped.items()))
    rows = [(ending, f"{counted(number, 'file')}, {_size(size)}") for ending, number, size in preview.files]
    rows += [("skipped", f"other endings: {over}")] if over else []
    rows += [
        ("work", f"{counted(preview.num_units, 'unit')}; a killed build keeps the finished ones"),
        ("tokenizer", preview.tokenizer),
        ("token ids", f"{preview.dtype}, for a vocabulary of {preview.vocab_size:,} (uint16 holds 65,536)"),
        ("expected", _expected(preview)),
        ("store", f"about {_size(preview.store_bytes)}"),
        ("disk", f"about {_size(preview.disk_bytes)} while building, {_size(preview.free_bytes)} free"),
    ]
    if preview.read_in_part:
        inputs = counted(preview.read_in_part, "large input")
        rows.append(("uncertain", f"only the beginning of {inputs} was read; the rest is assumed to be similar"))
    if preview.num_bad:
        rows.append(("bad records", f"{preview.num_bad:,} in the sample"))
    if preview.disk_bytes > preview.free_bytes:
        rows.append(("warning", "not enough disk space: the build would stop, and resume once there is more"))
    fact_lines([*rows, ("dry run", "nothing was written; run without --dry-run to build")])


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
    "not sampled": "not in the sample",
    "short": "shorter than --min-tokens",
    "long": "longer than --max-tokens",
    "duplicates": "equal to an earlier one",
}


def print_result(result: BuildResult, seconds: float) -> None:
    """Print the finished store and what this run added, a line per fact."""
    counts = result.counts
    dropped = ", ".join(f"{counts[name]:,} {why}" for name, why in _WHY.items() if counts.get(name))
    rows = [
        ("store", str(result.path) + (" (already complete; nothing done)" if result.was_there else "")),
        ("documents", f"{result.num_documents:,} from {counted(counts.get('input files', 0), 'file')}"),
        *([("dropped", dropped)] if dropped else []),
        (
            "tokens",
            f"{result.num_tokens:,} as {result.dtype} (vocabulary of {result.vocab_size:,}), {counted(result.num_shards, 'shard')}",
        ),
        ("end of text", f"{result.eos_token!r} ({result.eos_id})" if result.eos_id is not None else "none appended"),
        *[
            (
                f"  {str(part.path).removeprefix(str(result.path)).strip('/')}",
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
    fact_lines(rows)


def print_task(result: TaskResult, seconds: float) -> None:
    """Print what a task did, and what the build still lacks."""
    if result.was_there:
        fact_lines([("store", f"{result.path} (already complete; nothing done)")])
        return
    units = counted(result.num_units, "unit")
    rows = [
        (
            "task",
            f"{result.task}: {units}, {result.num_made:,} made now, {result.num_units - result.num_made:,} before",
        ),
        ("documents", f"{result.num_documents:,}"),
        ("tokens", f"{result.num_tokens:,}"),
        (
            "build",
            f"{counted(result.num_missing, 'unit')} missing, made by other tasks"
            if result.num_missing
            else "all units are done: run the same command with --finish",
        ),
        ("time", f"{seconds:.1f} s"),
    ]
    fact_lines(rows)
