"""Serves one loader in a separate process: `python benches/contenders.py TREE KIND FOLDER TOKENS`.

TREE is a checkout, whose `tokenstore` and `benches` are imported, so that loaders of two commits run in the same rounds. Therefore
this module uses only names that both commits have, and each commit makes its own stores, as their formats may differ.

Requests, one per line:
    take N           make N batches; answers the processor time of all threads, in seconds
    wait N SECONDS   N times: sleep, then make a batch; answers how long each took
    faults N         make N batches, with a major page fault after half of them, which is not timed; answers seconds and faults
    quit
"""

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TREE = sys.argv[1] if __name__ == "__main__" else str(Path(__file__).parents[1])
sys.path[:] = [TREE, *(path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

BATCH, LENGTH, WEIGHTS, IGNORE = 8, 2048, {"a": "0.6", "b": "0.3", "c": "0.1"}, -100
ALL = ("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "source_ids")
OURS: dict[str, tuple[str, dict]] = {
    "concat": ("concat", {}),
    "best_fit": ("best_fit", {}),
    "hf": ("best_fit", {"format": "hf"}),
    "all fields": ("best_fit", {"fields": ALL}),
    "masked": ("best_fit", {}),
    "concat, prefetch=2": ("concat", {"prefetch": 2}),
    "best_fit, prefetch=2": ("best_fit", {"prefetch": 2}),
}
Batches = Iterator[dict]


def stores(folder: Path, num_tokens: int, masked: bool) -> dict[str, Path]:
    """Three stores of random tokens, optionally with random loss masks; made if they do not exist."""
    from benches import scenes

    name = "FileWriter" if hasattr(scenes, "FileWriter") else "StoreWriter"  # its name in older commits
    plain = getattr(scenes, name)

    class WithMasks(plain):
        def __init__(self, *arguments: object):
            super().__init__(*arguments, masks=True)
            self.rng = np.random.default_rng(0)

        def append(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
            super().append(tokens, lengths, self.rng.random(len(tokens)) < 0.7)

    setattr(scenes, name, WithMasks if masked else plain)
    paths = {name: folder / f"{name}{'-masked' if masked else ''}" for name in WEIGHTS}
    for seed, path in enumerate(paths.values()):
        if not path.exists():
            scenes.token_store(path, seed, num_tokens)
    return paths


def ours(kind: str, folder: Path, num_tokens: int) -> Batches:
    """TokenLoader. The tokens of its first batch are compared with those of `plan.batch`."""
    import tokenstore

    packing, options = OURS[kind]
    paths = stores(folder, num_tokens, kind == "masked")
    fields = {"sequence_length": LENGTH, "global_batch_size": BATCH, "weights": WEIGHTS, "packing": packing}
    plan = tokenstore.Plan.of(paths, **fields)
    first = next(iter(tokenstore.TokenLoader(plan, **options)))
    assert (first["input_ids"].numpy() == plan.batch(0)["input_ids"]).all(), "the loader and plan.batch differ"
    return iter(tokenstore.TokenLoader(plan, **options))


def by_hand(kind: str, folder: Path, num_tokens: int) -> Batches:
    """A typical hand-written loader: a memmap per source, weighted random rows, a whole batch at once, the same fields."""
    paths = stores(folder, num_tokens, False)
    maps = [np.memmap(path / "tokens-00000.bin", np.uint16, "r") for path in paths.values()]
    bounds = [np.fromfile(path / "boundaries.bin", np.int64) for path in paths.values()]
    documents = [bound[: int(np.argmax(bound == tokens.size)) + 1] for bound, tokens in zip(bounds, maps, strict=True)]
    rng = np.random.default_rng(0)
    while True:
        sources = rng.choice(3, BATCH, p=[0.6, 0.3, 0.1])
        starts = [int(rng.integers(0, maps[s].size // LENGTH - 1)) * LENGTH for s in sources]
        block = np.stack([maps[s][at : at + LENGTH + 1] for s, at in zip(sources, starts, strict=True)])
        ids = torch.from_numpy(block.astype(np.int64))
        batch = {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
        if kind in ("hf", "all fields"):
            batch |= fields_by_hand(kind, [(documents[s], at) for s, at in zip(sources, starts, strict=True)], batch)
        if kind == "all fields":
            batch["source_ids"] = torch.from_numpy(sources)
        yield batch


def fields_by_hand(kind: str, places: list[tuple[np.ndarray, int]], batch: dict) -> dict:
    """Labels; or positions, document numbers and borders. They are computed from the starts of documents."""
    begins = np.zeros((BATCH, LENGTH), np.bool_)
    for row, (documents, at) in enumerate(places):
        first, stop = np.searchsorted(documents, [at, at + LENGTH])
        begins[row, documents[first:stop] - at] = True
    if kind == "hf":
        return {"labels": batch["input_ids"].masked_fill(torch.from_numpy(begins), IGNORE)}
    begins[:, 0] = True
    places_in_row = np.arange(LENGTH)
    positions = places_in_row - np.maximum.accumulate(np.where(begins, places_in_row, 0), axis=1)
    borders = np.append(np.flatnonzero(begins), BATCH * LENGTH).astype(np.int32)
    return {
        "position_ids": torch.from_numpy(positions),
        "document_ids": torch.from_numpy(begins.cumsum(axis=1) - 1),
        "cu_seqlens": torch.from_numpy(borders),
        "max_seqlen": int(np.diff(borders).max()),
    }


def fixed() -> Batches:
    """The same batch every time, which takes no work."""
    batch = {name: torch.zeros((BATCH, LENGTH), dtype=torch.int64) for name in ("input_ids", "targets")}
    while True:
        yield batch


class Fault:
    """Causes a major page fault, for a page that was in memory before."""

    def __init__(self, folder: Path):
        path = folder / f"page-{os.getpid()}"
        path.write_bytes(bytes(range(256)) * 1024)
        self._file = open(path, "rb")  # noqa: SIM115
        os.fsync(self._file.fileno())

    def make(self) -> None:
        view = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        view.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert view[5000] == 5000 % 256


def main() -> None:
    """Serve requests from standard input."""
    _, _, kind, folder, num_tokens = sys.argv
    way, _, name = kind.partition(": ")
    made: dict[str, Callable[[], Batches]] = {
        "ours": lambda: ours(name, Path(folder), int(num_tokens)),
        "by hand": lambda: by_hand(name, Path(folder), int(num_tokens)),
        "fixed": fixed,
    }
    batches, fault = made[way](), Fault(Path(folder))
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["take", count]:
                answer: object = take(batches, int(count))
            case ["wait", count, seconds]:
                answer = [wait(batches, float(seconds)) for _ in range(int(count))]
            case ["faults", count]:
                before, first = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt, take(batches, int(count) // 2)
                fault.make()
                answer = [
                    first + take(batches, int(count) // 2),
                    resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before,
                ]
            case _:
                break
        print(json.dumps(answer), flush=True)
    os._exit(0)


def take(batches: Batches, count: int) -> float:
    """Seconds of processor time for `count` batches. Other processes do not count."""
    start = time.process_time()
    for _ in range(count):
        next(batches)
    return time.process_time() - start


def wait(batches: Batches, seconds: float) -> float:
    """How long the next batch takes after a step that leaves the processor idle, in seconds."""
    time.sleep(seconds)
    start = time.perf_counter()
    next(batches)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
