"""Measures builds from awkward inputs: 1,000,000 small files, and one file of 20 GB.

Time, memory of all processes of the build, and the most files it keeps at once beside its inputs. The engine is gigatoken, so that
the time is not the tokenizer's. Needs 45 GB of free space.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from shutil import disk_usage

from benches.bench_build import code_files, train_tokenizer, write_lines
from benches.scenes import CannotRun, Row, show
from tokenstore import open_store
from tokenstore.store.writing import remove_tree

_WORKERS = 2
_NEEDED = 45 * 10**9  # bytes of free space
_BUILD = """
import json, os, sys, threading, time
from pathlib import Path
from tokenstore.builder import BuildOptions, build_store

source, output, tokenizer, workers, group = sys.argv[1:]
done, most = threading.Event(), {"mega": 0.0, "one": 0.0, "files": 0}

def own(pid):
    try:
        rows = open(f"/proc/{pid}/status").read().splitlines()
        return next((int(row.split()[1]) for row in rows if row.startswith("RssAnon:")), 0) / 1024
    except OSError:  # it has ended
        return 0.0

def processes(pid):
    try:
        children = [int(child) for task in os.listdir(f"/proc/{pid}/task")
                    for child in open(f"/proc/{pid}/task/{task}/children").read().split()]
    except OSError:
        children = []
    return [pid, *(each for child in children for each in processes(child))]

def watch():
    while not done.wait(0.25):
        each = [own(pid) for pid in processes(os.getpid())]
        kept = sum(len(files) for root, _, files in os.walk(Path(output).parent))
        most.update(mega=max(most["mega"], sum(each)), one=max(most["one"], *each), files=max(most["files"], kept))

watcher = threading.Thread(target=watch)
watcher.start()
start = time.monotonic()
options = {} if group == "none" else {"group_size": int(group)}
build_store(BuildOptions((source,), Path(output), tokenizer, workers=int(workers), engine="fast", **options))
seconds = time.monotonic() - start
done.set()
watcher.join()
print(json.dumps([seconds, most["mega"], most["one"], most["files"]]))
"""


def _build(source: Path, folder: Path, tokenizer: Path, group: int | None = None) -> tuple[list[float], int, int]:
    """(seconds, MB of all processes, MB of the largest one, files), documents and tokens of the store."""
    folder.mkdir()
    output = folder / "store"
    command = [
        sys.executable,
        "-c",
        _BUILD,
        str(source),
        str(output),
        str(tokenizer),
        str(_WORKERS),
        str(group or "none"),
    ]
    found: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with open_store(output) as store:
        counts = len(store), store.manifest.num_tokens
    remove_tree(folder)
    return found, *counts


def _small_files(folder: Path, texts: list[str], tokenizer: Path, count: int) -> Row:
    source = folder / "files"
    for number, text in enumerate(islice(_paragraphs(texts), count)):
        place = source / f"{number // 1000:04d}"
        if not number % 1000:
            place.mkdir(parents=True)
        (place / f"{number:07d}.txt").write_text(text)
    (seconds, mega, one, files), documents, _ = _build(source, folder / "of_files", tokenizer)
    remove_tree(source)
    return Row(
        f"{count:,} files of .4 KB, {_WORKERS} workers",
        show(seconds, "s"),
        "measured",
        f"{count / seconds:,.0f} files/s; {mega:.0f} MB in all processes, {one:.0f} MB in the largest; at most {files:.0f} files"
        f" of its own; {documents:,} documents",
    )


def _paragraphs(texts: list[str]) -> Iterator[str]:
    for text in cycle(texts):
        for first in range(0, len(text), 400):
            yield text[first : first + 400] or "x"


def _large_file(folder: Path, texts: list[str], tokenizer: Path, num_bytes: int, group: int | None) -> Row:
    source = folder / "large.jsonl"
    block = folder / "block.jsonl"
    write_lines(block, texts, min(num_bytes, 60_000_000))
    data = block.read_bytes()
    with source.open("wb") as out:
        while out.tell() < num_bytes:
            out.write(data)
    size = source.stat().st_size
    (seconds, mega, one, files), documents, tokens = _build(source, folder / "of_large", tokenizer, group)
    source.unlink()
    return Row(
        f"one file of {size / 1e9:.3g} GB, {_WORKERS} workers{'' if group is None else f', groups of {group / 1e9:.3g} GB'}",
        show(seconds, "s"),
        "measured",
        f"{size / seconds / 1e6:.0f} MB/s; {mega:.0f} MB in all processes, {one:.0f} MB in the largest; at most {files:.0f} files"
        f" of its own; {documents:,} documents, {tokens / 1e9:.2f} billion tokens",
    )


def run(folder: Path, smoke: bool) -> list[Row]:
    """Small files and a large one."""
    if not smoke and disk_usage(folder).free < _NEEDED:
        raise CannotRun(f"needs {_NEEDED // 10**9} GB of free space in {folder}")
    texts = list(code_files(500_000 if smoke else 60_000_000))
    tokenizer = train_tokenizer(texts[: len(texts) // 8 or None], folder / "tokenizer.json", 2000 if smoke else 30_000)
    return [
        _small_files(folder, texts, tokenizer, 2_000 if smoke else 1_000_000),
        _large_file(folder, texts, tokenizer, 2 * 10**6 if smoke else 20 * 10**9, None),
    ]
