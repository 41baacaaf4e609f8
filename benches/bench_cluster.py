"""Claims: the finish of a build in groups takes time and memory for its documents, not for its tokens; two tasks are twice one.

The finish: groups are simulated, with sparse shards, because the finish reads no tokens. What is timed is all that it does with
them: it links shards, joins boundaries, origins and inputs, writes the length index, and syncs.
Tasks: two processes at once on two cores, beside one that makes half of the units, and beside bare engines, one and two at once.
What two processes lose by sharing memory and caches is the engine's loss too.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import xxhash

from benches.bench_build import code_files, train_tokenizer, write_lines
from benches.scenes import TOKENIZER, VOCABULARY, Row, show
from tokenstore.builder.group_build import Joiner
from tokenstore.format.layout import INPUTS_NAME, MANIFEST_NAME, shard_name
from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.store.document_files import Columns, DocumentFiles, Documents
from tokenstore.store.length_index import write_length_index
from tokenstore.store.reader import open_store
from tokenstore.store.writing import make_folders, remove_tree

_BLOCK = 1 << 20  # documents
_GROUPS, _TOKENS = 16, 512  # groups of a build, and tokens of a document on average
_FINISH = """
import json, sys, threading, time
from pathlib import Path
from benches.bench_cluster import finish

def resident(kind):
    rows = open("/proc/self/status").read().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(kind)) / 1024

most, done = [0.0], threading.Event()

def watch():
    while not done.wait(0.02):
        most[0] = max(most[0], resident("RssAnon:"))

watcher = threading.Thread(target=watch)
watcher.start()
start = time.monotonic()
finish(Path(sys.argv[1]))
seconds = time.monotonic() - start
done.set()
watcher.join()
print(json.dumps([seconds, most[0], resident("VmHWM:")]))
"""
_TASK = """
import sys, time
from pathlib import Path
from tokenstore.builder import BuildOptions, build_task
from tokenstore.builder.schedule import Task
tokenizer, source, output, number, of = sys.argv[1:]
options = BuildOptions((source,), Path(output), tokenizer, engine="reference")
start = time.monotonic()
build_task(options, Task(int(number), int(of)))
print(time.monotonic() - start)
"""
_BARE = """
import json, sys, time
from tokenstore.store.files import set_environment
from tokenstore.tokenizer import load_tokenizer
tokenizer, source, _, number, of = sys.argv[1:]
set_environment("TOKENIZERS_PARALLELISM", "false")
start = time.monotonic()
engine = load_tokenizer(tokenizer, engine="reference")
lines = open(source).readlines()
share = len(lines) // int(of)
for first in range(int(number) * share, (int(number) + 1) * share, 32):
    engine.encode_batch([json.loads(line)["text"] for line in lines[first : first + 32]])
print(time.monotonic() - start)
"""


def simulate(folder: Path, num_documents: int, number: int) -> None:
    """Write a group of `num_documents` documents whose shard is sparse."""
    folder.mkdir(parents=True)
    lengths = np.maximum(1, np.random.default_rng(number).exponential(_TOKENS, _BLOCK).astype(np.int64))
    with DocumentFiles(folder, Columns(origins=True)) as files:
        for first in range(0, num_documents, _BLOCK):
            some = lengths[: num_documents - first]
            files.append(Documents(some, origins=np.arange(first + 1, first + 1 + some.size)))
        num_tokens, entries = files.num_tokens, files.close()
    with open(folder / shard_name(0), "wb") as shard:
        shard.truncate(2 * num_tokens)
    line = json.dumps({"file": f"{number}.jsonl", "documents": num_documents}).encode() + b"\n"
    (folder / INPUTS_NAME).write_bytes(line)
    entries[INPUTS_NAME] = FileEntry(len(line), xxhash.xxh3_128_hexdigest(line))
    shard_entry = ShardEntry(shard_name(0), 2 * num_tokens, num_tokens, 0, num_documents, 0, f"{number:032x}")
    _write_manifest(folder, [shard_entry], entries)


def _write_manifest(folder: Path, shards: list[ShardEntry], files: dict[str, FileEntry]) -> None:
    manifest = Manifest(
        dtype="uint16",
        vocab_size=VOCABULARY,
        num_tokens=shards[-1].first_token + shards[-1].num_tokens,
        num_documents=shards[-1].first_document + shards[-1].num_documents,
        ends_with_eos=False,
        tokenizer=TOKENIZER,
        shards=tuple(shards),
        files=dict(sorted(files.items())),
        options={},
        counts={},
        package_versions={},
    )
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def finish(folder: Path) -> None:
    """Join the groups in `folder`, as the finish of a build does."""
    made = folder / "made"
    make_folders(made)
    with Joiner(made, Columns(origins=True), False, False, print) as joiner:
        for path in sorted((folder / "groups").iterdir()):
            with open_store(path) as store:
                joiner.add_group(store, 0, 0)
        joiner.close()
        _write_manifest(made, joiner.shards, joiner.files)
    write_length_index(made)


def _finish(folder: Path, num_documents: int) -> Row:
    for number in range(_GROUPS):
        simulate(folder / "groups" / f"{number:02d}", num_documents // _GROUPS, number)
    seconds, megabytes, resident = _run(_FINISH, str(folder))
    remove_tree(folder)
    return Row(
        f"finish of {num_documents:.0e} documents in {_GROUPS} groups",
        show(seconds, "s"),
        "300 s and 1,000 MB at 1e+09",
        f"{megabytes:.0f} MB of its own, {resident:.0f} MB with pages of mapped files, which the system can take back;"
        f" {num_documents / seconds / 1e6:.1f} million documents/s",
    )


def _run(code: str, *arguments: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
    found: list[float] = json.loads(done.stdout)
    return found


def _tasks(folder: Path, smoke: bool) -> Row:
    folder.mkdir()
    source = folder / "in.jsonl"
    megabytes = 1 if smoke else 60
    texts = list(code_files(megabytes * 1_000_000))
    write_lines(source, texts, megabytes * 1_000_000)
    tokenizer = str(
        train_tokenizer(texts[: len(texts) // 8 or None], folder / "tokenizer.json", 2000 if smoke else 30_000)
    )
    times: dict[tuple[str, int], list[float]] = {(code, count): [] for code in (_BARE, _TASK) for count in (1, 2)}
    for _ in range(1 if smoke else 5):
        for (code, count), found in times.items():
            remove_tree(folder / "out.tokenstore")
            command = [sys.executable, "-c", code, tokenizer, str(source), str(folder / "out")]
            running = [
                subprocess.Popen([*command, str(number), "2"], stdout=subprocess.PIPE, text=True)
                for number in range(count)
            ]
            found.append(max(float(process.communicate()[0]) for process in running))
    bare, task = (median(times[code, 2]) / median(times[code, 1]) for code in (_BARE, _TASK))
    return Row(
        "two tasks at once, time relative to one with half of the units; bare engines the same",
        f"{task:.2f}",
        "1.05 of the bare engines",
        f"bare engines {bare:.2f}; tasks {task / bare:.2f} of them",
    )


def run(folder: Path, smoke: bool) -> list[Row]:
    """The finish of many documents, and two tasks beside one."""
    sizes = (10**5,) if smoke else (10**7, 10**8, 10**9)
    return [*(_finish(folder / f"finish{size}", size) for size in sizes), _tasks(folder / "tasks", smoke)]
