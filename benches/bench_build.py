"""Claims: a build is as fast as its tokenizer, two workers are twice as fast, and memory does not grow with the input.

Resources: CPU: one core for the engine. Disk: 2-4 bytes per token, written twice. Memory: one batch. The text is the modules of
the Python standard library, as JSON lines. The bare engine only encodes the same texts, in batches of the same size.
"""

import base64
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median

from benches.scenes import Row, ratio, rounds
from tokenstore.builder import BuildOptions, build_store
from tokenstore.examples.sources import standard_library_files
from tokenstore.store.files import set_environment
from tokenstore.store.writing import remove_tree
from tokenstore.tokenizer import load_tokenizer

_MESSAGE = 1000  # characters
_TIMES = 4  # repetitions of the texts in a large input
_MORE_TIMES = 25  # and of one of 150 MB


def train_tokenizer(texts: list[str], path: Path, size: int = 30_000) -> Path:
    """A byte-level BPE tokenizer.json, trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return path


def rank_file(tokenizer: Path, path: Path) -> Path:
    """The same merges as a tiktoken rank file: the 256 bytes, then the token that each merge makes."""
    from tokenizers import pre_tokenizers

    kept = [byte for byte in range(256) if chr(byte) in pre_tokenizers.ByteLevel.alphabet()]
    moved = [byte for byte in range(256) if byte not in kept]
    byte_of = {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}
    merges = json.loads(tokenizer.read_text("utf-8"))["model"]["merges"]
    tokens = [bytes([byte]) for byte in range(256)] + [bytes(byte_of[c] for c in "".join(pair)) for pair in merges]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(dict.fromkeys(tokens))]
    path.write_bytes(b"".join(lines))
    return path


def run(folder: Path, smoke: bool) -> list[Row]:
    """End to end (JSON lines to synced files) relative to the bare engine on one core; workers; memory."""
    set_environment("TOKENIZERS_PARALLELISM", "false")
    texts = [path.read_text("utf-8") for path in standard_library_files()][: 20 if smoke else None]
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    huggingface = {"tokenizer": str(train_tokenizer(texts[:100], folder / "tokenizer.json"))}
    ranks = {"tokenizer": str(rank_file(folder / "tokenizer.json", folder / "ranks.tiktoken")), "pattern": "gpt2"}
    ranks["special_tokens"] = ("<|endoftext|>",)
    large = source.with_name("large.jsonl")  # for fast engines, which would finish the small input before the disk
    large.write_bytes(source.read_bytes() * (1 if smoke else _TIMES))
    many = texts * (1 if smoke else _TIMES)
    larger = source.with_name("larger.jsonl")
    larger.write_bytes(source.read_bytes() * (1 if smoke else _MORE_TIMES))
    rows = [
        _end_to_end("Hugging Face tokenizers", {**huggingface, "engine": "reference"}, "0.95", source, texts, smoke),
        _tiktoken(ranks, larger, smoke),
        _end_to_end("gigatoken, cold", {**huggingface, "engine": "fast"}, "0.5", source, texts, smoke),
        _end_to_end("bytes", {"tokenizer": "bytes"}, "-", large, many, smoke),
        _two_workers({**huggingface, "engine": "reference"}, source, large, smoke),
        _conversations(huggingface, folder / "chats.jsonl", texts, smoke),
    ]
    rows += _at_the_margin(folder / "margin", smoke)
    rows.append(_small_files(folder, {**huggingface, "engine": "fast"}, texts, smoke))
    return [*rows, *_memory(folder, texts, smoke)]


def _options(output: Path, source: Path, tokenizer: dict, workers: int = 1) -> BuildOptions:
    return BuildOptions(inputs=(str(source),), output=output, workers=workers, **tokenizer)


def _building(options: BuildOptions) -> Callable[[], None]:
    def build() -> None:
        remove_tree(options.output)
        build_store(options)

    return build


def _end_to_end(name: str, tokenizer: dict, reach: str, source: Path, texts: list[str], smoke: bool) -> Row:
    def load() -> object:
        settings = {key: value for key, value in tokenizer.items() if key != "tokenizer"}
        return load_tokenizer(tokenizer["tokenizer"], **settings)

    loaded = load()

    def bare() -> None:
        # An engine that caches words starts a build with an empty cache, so load it again; skip its checks, if any
        is_fast = hasattr(loaded, "reference")
        engine = load() if is_fast else loaded
        for first in range(0, len(texts), 32):
            some = texts[first : first + 32]
            if is_fast:
                engine._run([text.encode() for text in some])
            else:
                engine.encode_batch(some)

    times = rounds(
        {"bare": bare, "build": _building(_options(source.parent / "built", source, tokenizer))}, 1 if smoke else 5
    )
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    speed = f"{megabytes / min(times['build']):.1f} MB/s of text, bare engine {megabytes / min(times['bare']):.1f}"
    return Row(
        f"build end to end, share of the bare engine, {name}", ratio(times["bare"], times["build"]), reach, speed
    )


_BARE_TIKTOKEN = """
import json, sys, time
from tokenstore.tokenizer import load_tokenizer
tokenizer = load_tokenizer(**json.loads(sys.argv[1]))
texts = [json.loads(line)["text"] for line in open(sys.argv[2])]
start = time.perf_counter()
for first in range(0, len(texts), 32):
    tokenizer.encode_batch(texts[first : first + 32])
print(time.perf_counter() - start)
"""
_BUILD_TIKTOKEN = """
import json, sys, time
from tokenstore.builder import BuildOptions, build_store
options = json.loads(sys.argv[1])
options["tokenizer"] = options.pop("spec")
start = time.perf_counter()
build_store(BuildOptions((sys.argv[2],), sys.argv[3], engine="reference", **options))
print(time.perf_counter() - start)
"""


def _tiktoken(ranks: dict, source: Path, smoke: bool) -> Row:
    """As `_end_to_end`, in separate processes, as tiktoken is slower if it is loaded in a process that did other work.

    The text repeats, which does not help it: it keeps no words.
    """
    output = source.parent / "built"
    options = json.dumps({"spec": ranks["tokenizer"], **{name: ranks[name] for name in ranks if name != "tokenizer"}})

    def run(code: str) -> float:
        remove_tree(output)
        command = [sys.executable, "-c", code, options, str(source), str(output)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    pairs = [(run(_BARE_TIKTOKEN), run(_BUILD_TIKTOKEN)) for _ in range(1 if smoke else 5)]
    bare, build = ([*times] for times in zip(*pairs, strict=True))
    megabytes = source.stat().st_size / 1e6
    speed = f"{megabytes / min(build):.1f} MB/s of text, bare engine {megabytes / min(bare):.1f}"
    return Row(f"build of {megabytes:.0f} MB, share of the bare engine, tiktoken", ratio(bare, build), "0.95", speed)


_BARE = """
import json, sys, time
import awkward  # without it gigatoken returns lists, which takes longer
from tokenstore.tokenizer import load_tokenizer
engine = load_tokenizer(sys.argv[1], engine="fast")._file.load()  # no word in its cache
batches, texts, chars = [], [], 0
for line in open(sys.argv[2]):
    texts.append(json.loads(line)["text"])
    chars += len(texts[-1])
    if chars >= 1 << 20 or len(texts) == 1024:
        batches.append(texts)
        texts, chars = [], 0
start = time.perf_counter()
for batch in [*batches, texts]:
    engine.encode_batch(batch, parallel=False)
print(time.perf_counter() - start)
"""
_BUILD = """
import sys, time
start = time.perf_counter()
from tokenstore.builder import BuildOptions, build_store
build_store(BuildOptions((sys.argv[2],), sys.argv[3], sys.argv[1], engine="fast"))
print(time.perf_counter() - start)
"""


def _at_the_margin(folder: Path, smoke: bool) -> list[Row]:
    """Fixed cost and cost per MB of a build with gigatoken and 128,000 tokens, relative to the bare engine.

    One worker. Each run is a separate process, and the start of the interpreter is not counted. Text: source code, each file
    once, as much as there is up to 500 MB. In text that repeats, gigatoken finds all words in its cache, which flatters the bare
    engine.
    """
    folder.mkdir()
    small, large = (1, 3) if smoke else (25, 500)
    texts = list(code_files(large * 1_000_000))
    large = min(large, sum(map(len, texts)) // 1_000_000)
    inputs = {size: folder / f"{size}.jsonl" for size in (small, large)}
    for size, path in inputs.items():
        write_lines(path, texts, size * 1_000_000)
    tokenizer = train_tokenizer(texts[: len(texts) // 8 or None], folder / "tokenizer.json", 2000 if smoke else 128_000)

    def run(code: str, size: int) -> float:
        remove_tree(folder / "built")
        command = [sys.executable, "-c", code, str(tokenizer), str(inputs[size]), str(folder / "built")]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    times: dict[tuple[str, int], list[float]] = {(code, size): [] for code in (_BARE, _BUILD) for size in inputs}
    for _ in range(1 if smoke else 5):
        for case, found in times.items():
            found.append(run(*case))
    bare, build = ([median(times[code, size]) for size in (small, large)] for code in (_BARE, _BUILD))
    share = (bare[1] - bare[0]) / (build[1] - build[0])
    beside = f"{large - small} MB: build {build[1] - build[0]:.1f} s, bare engine {bare[1] - bare[0]:.1f} s"
    fixed = f"build {build[0]:.2f} s, bare engine {bare[0]:.2f} s"
    name = f"gigatoken, {2000 if smoke else 128_000:,} tokens, one worker"
    return [
        Row(f"build, share of the bare engine at the margin, {name}", f"{share:.2f}", "0.5, then 0.7", beside),
        Row(f"build of {small} MB, time above the bare engine, {name}", f"{build[0] - bare[0]:.2f} s", "1.2 s", fixed),
    ]


def code_files(num_bytes: int) -> Iterator[str]:
    """Files of the standard library, of installed packages and of system headers, each once, up to `num_bytes` characters."""
    packages = sorted(Path(sysconfig.get_path("purelib")).rglob("*.py"))
    library = sorted(
        path for path in Path(sysconfig.get_path("stdlib")).rglob("*.py") if "site-packages" not in path.parts
    )
    headers = sorted(path for path in Path("/usr/include").rglob("*.h") if path.is_file())
    seen = set()
    for path in [*standard_library_files(), *packages, *library, *headers]:
        text = path.read_text("utf-8", "replace")
        if (digest := hash(text)) in seen:
            continue
        seen.add(digest)
        yield text
        num_bytes -= len(text)
        if num_bytes <= 0:
            return


def write_lines(path: Path, texts: Sequence[str], num_bytes: int) -> None:
    """Write texts as JSON lines, up to `num_bytes` characters; they repeat if there are too few."""
    with path.open("w") as out:
        for text in cycle(texts):
            out.write(json.dumps({"text": text}) + "\n")
            num_bytes -= len(text)
            if num_bytes <= 0:
                return


def _two_workers(tokenizer: dict, source: Path, large: Path, smoke: bool) -> Row:
    """Two workers relative to one, and two independent processes relative to one: virtual cores may share a physical core.

    All of them are separate processes, because a single worker runs in the calling process, where the engine is slower.
    """
    code = (
        "import json, sys; from tokenstore.tokenizer import load_tokenizer; t = load_tokenizer(sys.argv[1]);"
        "x = [json.loads(line)['text'] for line in open(sys.argv[2])];"
        "[t.encode_batch(x[i : i + 32]) for _ in range(int(sys.argv[3])) for i in range(0, len(x), 32)]"
    )
    command = [sys.executable, "-c", code, tokenizer["tokenizer"], str(source), "1" if smoke else str(_TIMES)]

    def alone(count: int) -> Callable[[], None]:
        return lambda: [process.wait() for process in [subprocess.Popen(command) for _ in range(count)]] and None

    def building(workers: int) -> Callable[[], None]:
        output = source.parent / "built"
        options = ["--output", output, "--tokenizer", tokenizer["tokenizer"], "--engine", tokenizer["engine"]]
        build = [sys.executable, "-m", "tools.build_store", large, *options, "--workers", workers, "--overwrite"]
        return lambda: subprocess.run(list(map(str, build)), check=True, capture_output=True) and None

    actions = {f"{n} workers": building(n) for n in (1, 2)}
    times = rounds({**actions, "1 alone": alone(1), "2 alone": alone(2)}, 1 if smoke else 3)
    twice = [2 * seconds for seconds in times["1 alone"]]
    beside = f"two processes that only tokenize: {ratio(twice, times['2 alone'])}"
    return Row("build with two workers, times one", ratio(times["1 workers"], times["2 workers"]), "1.8", beside)


def _small_files(folder: Path, tokenizer: dict, texts: list[str], smoke: bool) -> Row:
    """CPU time of texts in one file each, relative to the same texts as lines of one .jsonl file."""
    size, most = 700, 200 if smoke else 50_000
    pieces = [text[at : at + size] for text in texts for at in range(0, len(text), size)][:most]
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces))
    for number, piece in enumerate(pieces):
        path = folder / "small" / f"{number // 1000:03d}" / f"{number:06d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(piece, "utf-8")
    seconds: dict[str, list[float]] = {"lines.jsonl": [], "small": []}
    for _ in range(1 if smoke else 3):
        for name, times in seconds.items():
            build = _building(_options(folder / "built", folder / name, tokenizer))
            start = time.process_time()
            build()
            times.append(time.process_time() - start)
    ours = " and ".join(f"{min(times) / len(pieces) * 1e3:.3f}" for times in seconds.values())
    value = ratio(seconds["small"], seconds["lines.jsonl"])
    return Row(
        f"{len(pieces):,} small .txt files, CPU time of the same texts as .jsonl",
        value,
        "2",
        f"{ours} ms per text (.jsonl and .txt)",
    )


def _conversations(tokenizer: dict, source: Path, texts: list[str], smoke: bool) -> Row:
    """Conversations of four messages as ChatML, with loss masks: gigatoken relative to the reference engine."""
    with source.open("w") as file:
        for text in texts:
            for first in range(0, len(text), 4 * _MESSAGE):
                parts = [text[at : at + _MESSAGE] or "?" for at in range(first, first + 4 * _MESSAGE, _MESSAGE)]
                messages = [{"role": ("user", "assistant")[i % 2], "content": part} for i, part in enumerate(parts)]
                file.write(json.dumps({"messages": messages}) + "\n")
    chats = {**tokenizer, "records": "chat", "chat_template": "chatml"}
    output = source.parent / "built"
    builds = {
        engine: _building(_options(output, source, {**chats, "engine": engine})) for engine in ("reference", "fast")
    }
    times = rounds(builds, 1 if smoke else 3)
    megabytes = source.stat().st_size / 1e6
    speeds = ", ".join(f"{engine} {megabytes / min(seconds):.2f} MB/s" for engine, seconds in times.items())
    return Row(
        "build of conversations by gigatoken, times the reference",
        ratio(times["reference"], times["fast"]),
        "3",
        speeds,
    )


def _memory(folder: Path, texts: list[str], smoke: bool) -> list[Row]:
    """Peak memory of a building process, for inputs of two sizes."""
    peaks = []
    for megabytes in (1, 4) if smoke else (100, 2000):
        source = folder / f"{megabytes}.jsonl"
        lines = [json.dumps({"text": text}).encode() + b"\n" for text in texts]
        with open(source, "wb") as out:
            while out.tell() < megabytes * 1_000_000:
                out.writelines(lines)
        peaks.append((megabytes, _peak(source)))
        source.unlink()
    value = " / ".join(f"{peak:.0f}" for _, peak in peaks) + " MB"
    sizes = " / ".join(f"{size:,}" for size, _ in peaks)
    return [Row(f"peak memory of a build, one worker, {sizes} MB of input", value, "flat", "bytes tokenizer")]


def _peak(source: Path) -> float:
    """Peak memory in MB. That of `getrusage` begins with the memory of the parent, which holds the texts."""
    code = (
        "import sys; from pathlib import Path; from tokenstore.builder import BuildOptions, build_store;"
        "build_store(BuildOptions((sys.argv[1],), sys.argv[2], 'bytes', dedup='exact'));"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    output = source.with_suffix(".store")
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(output)], capture_output=True, text=True, check=True
    )
    remove_tree(output)
    return int(done.stdout.split()[-1]) / 1024
