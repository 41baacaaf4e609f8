"""Other loaders for the same work: shuffled batches of 8 x 2048 tokens and targets of one store, as each one's docs recommend.

Each loader runs in a separate process, which `bench_loading` starts: `python -m benches.peers NAME STORE FOLDER WORKERS STEP
ACTIONS`. Before it is measured, it makes batches of a small store, and every token of them is checked.
"""

import json
import os
import pickle
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import tokenstore

BATCH, LENGTH = 8, 2048
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Work:
    """What to load: a store, the folder for the loader's own copy of it, the number of workers, and the first step."""

    store: Path
    folder: Path
    workers: int = 0
    step: int = 0

    def tokens(self) -> np.ndarray:
        """uint16[n], mapped."""
        return np.memmap(self.store / "tokens-00000.bin", np.uint16, "r")


@dataclass(frozen=True)
class Peer:
    """How to import, prepare and open a loader. `prepare` converts the store and makes the state to resume from."""

    modules: tuple[str, ...]
    open: Callable[[Work], Iterable[Pair]]
    prepare: Callable[[Work], None] = lambda work: None
    workers: tuple[int, ...] = (0,)


def split(block: torch.Tensor) -> Pair:
    """int64[B, L + 1] -> tokens and targets, as views."""
    return block[:, :-1], block[:, 1:]


def blocks_of(tokens: np.ndarray) -> np.ndarray:
    """uint16[n, L + 1], a view: each block shares its last token with the next one."""
    return np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]


class MemmapBlocks(Dataset):
    """A typical hand-written dataset."""

    def __init__(self, tokens: np.ndarray):
        self.blocks = blocks_of(tokens)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.blocks[i].astype(np.int64))


# ---- tokenstore


def _ours(packing: str, prefetch: int = 0) -> Callable[[Work], Iterable[Pair]]:
    def open_it(work: Work) -> Iterable[Pair]:
        plan = tokenstore.Plan.of(work.store, LENGTH, BATCH, packing=packing)
        loader = tokenstore.TokenLoader(plan, step=work.step, prefetch=prefetch)
        return ((batch["input_ids"], batch["targets"]) for batch in loader)

    return open_it


# ---- by hand


def _by_hand(work: Work) -> Iterable[Pair]:
    """It has no state: to resume, it makes all earlier batches again."""
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(MemmapBlocks(work.tokens()), BATCH, shuffle=True, num_workers=work.workers, generator=generator)
    return map(split, islice(loader, work.step, None))


def _stateful_loader(work: Work) -> Iterable[torch.Tensor]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(MemmapBlocks(work.tokens()), BATCH, shuffle=True, num_workers=work.workers)


def _save_state(loader: Callable[[Work], Iterable[torch.Tensor]]) -> Callable[[Work], None]:
    def save(work: Work) -> None:
        one = loader(work)
        for _ in islice(iter(one), work.step):
            pass
        (work.folder / "state").write_bytes(pickle.dumps(one.state_dict()))

    return save


def _from_state(loader: Callable[[Work], Iterable[torch.Tensor]]) -> Callable[[Work], Iterable[Pair]]:
    def open_it(work: Work) -> Iterable[Pair]:
        one = loader(work)
        if work.step:
            one.load_state_dict(pickle.loads((work.folder / "state").read_bytes()))
        return (split(block.to(torch.int64)) for block in one)

    return open_it


# ---- libraries


def _grain(work: Work) -> Iterable[Pair]:
    import grain

    blocks = MemmapBlocks(work.tokens())
    batches = grain.MapDataset.source(blocks).map(lambda block: block.numpy()).shuffle(seed=1).repeat().batch(BATCH)
    iterator = iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
    iterator.set_state({"next_index": work.step})
    return (split(torch.from_numpy(block)) for block in iterator)


def _prepare_arrow(work: Work) -> None:
    import datasets
    import pyarrow

    values = pyarrow.array(blocks_of(work.tokens()).reshape(-1))
    table = pyarrow.table({"tokens": pyarrow.FixedSizeListArray.from_arrays(values, LENGTH + 1)})
    datasets.Dataset(table).save_to_disk(work.folder / "arrow")


def _arrow(work: Work) -> Iterable[Pair]:
    import datasets

    rows = datasets.load_from_disk(work.folder / "arrow").with_format("torch").shuffle(seed=1)
    loader = DataLoader(rows.select(range(BATCH * work.step, len(rows))), BATCH, num_workers=work.workers)
    return (split(batch["tokens"]) for batch in loader)


def _prepare_mosaic(work: Work) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(work.folder / "mds"), columns={"tokens": f"ndarray:uint16:{LENGTH + 1}"}) as writer:
        for block in blocks_of(work.tokens()):
            writer.write({"tokens": block})
    if work.step:
        _save_state(_mosaic)(work)


def _mosaic(work: Work) -> Iterable[torch.Tensor]:
    from streaming import StreamingDataLoader, StreamingDataset

    rows = StreamingDataset(local=str(work.folder / "mds"), shuffle=True, batch_size=BATCH, shuffle_seed=1)
    return StreamingDataLoader(rows, batch_size=BATCH, num_workers=work.workers, collate_fn=_stack)


def _stack(rows: list[dict[str, np.ndarray]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([row["tokens"] for row in rows]).astype(np.int64))


def _prepare_litdata(work: Work) -> None:
    import litdata

    chunk = (LENGTH + 1) * 488
    litdata.optimize(
        fn=_Slices(work, chunk),
        inputs=list(range(max(work.tokens().size // chunk, 1))),
        output_dir=str(work.folder / "chunks"),
        chunk_size=chunk,
        item_loader=litdata.streaming.item_loader.TokensLoader(),
        num_workers=1,
        verbose=False,
    )
    if work.step:
        _save_state(_litdata)(work)


class _Slices:
    """Slices of a store's tokens; can be pickled."""

    def __init__(self, work: Work, size: int):
        self.work, self.size = work, size

    def __call__(self, number: int) -> Iterator[torch.Tensor]:
        yield torch.from_numpy(np.array(self.work.tokens()[number * self.size : (number + 1) * self.size]))


def _litdata(work: Work) -> Iterable[torch.Tensor]:
    import litdata

    loader = litdata.streaming.item_loader.TokensLoader(block_size=LENGTH + 1)
    rows = litdata.StreamingDataset(str(work.folder / "chunks"), item_loader=loader, shuffle=True, drop_last=True)
    return litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=work.workers, shuffle=True)


def _prepare_megatron(work: Work) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    store = tokenstore.open_store(work.store)
    builder = IndexedDatasetBuilder(str(work.folder / "indexed.bin"), dtype=np.uint16)
    for document in range(len(store)):
        builder.add_document(torch.from_numpy(np.array(store[document])), [len(store[document])])
    builder.finalize(str(work.folder / "indexed.idx"))


class _Tokenizer:
    """The attributes of a tokenizer that the configuration requires."""

    vocab_size, eod, pad, unique_identifiers = 50_257, 50_256, None, types.MappingProxyType({"class": "none"})


def _megatron(work: Work) -> Iterable[Pair]:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    tokenizer = _Tokenizer()
    tokenizer.unique_identifiers = dict(tokenizer.unique_identifiers)
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=([str(work.folder / "indexed")], None),
        split="1,0,0",
        path_to_cache=str(work.folder / "cache"),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    rows = BlendedMegatronDatasetBuilder(GPTDataset, [work.tokens().size // LENGTH, 0, 0], lambda: True, config)
    rows = rows.build()[0]
    batches = (range(first, first + BATCH) for first in range(BATCH * work.step, len(rows) - BATCH, BATCH))
    return (
        (batch["tokens"], batch["labels"])
        for batch in DataLoader(rows, batch_sampler=batches, num_workers=work.workers)
    )


PEERS = {
    "tokenstore, concat": Peer(("tokenstore.torch_data",), _ours("concat")),
    "tokenstore, concat, prefetch=2": Peer(("tokenstore.torch_data",), _ours("concat", 2)),
    "tokenstore, best_fit": Peer(("tokenstore.torch_data",), _ours("best_fit")),
    "memmap in a DataLoader": Peer((), _by_hand, workers=(0, 2)),
    "torchdata StatefulDataLoader": Peer(
        ("torchdata.stateful_dataloader",), _from_state(_stateful_loader), _save_state(_stateful_loader)
    ),
    "grain MapDataset": Peer(("grain",), _grain),
    "datasets (Arrow)": Peer(("datasets", "pyarrow"), _arrow, _prepare_arrow, (0, 2)),
    "litdata TokensLoader": Peer(("litdata",), _from_state(_litdata), _prepare_litdata),
    "mosaicml-streaming": Peer(("streaming",), _from_state(_mosaic), _prepare_mosaic),
    "megatron-core GPTDataset": Peer(("megatron.core.datasets.gpt_dataset",), _megatron, _prepare_megatron),
}


# ---- the process of a loader


def check(batches: Iterable[Pair], tokens: np.ndarray) -> None:
    """Check batches against the store.

    Rows must consist of runs of its tokens and of padding, targets must be the next token or -100, and rows must differ.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.uint64), 4)
    keys = windows @ (np.uint64(1) << np.array([0, 16, 32, 48], np.uint64))
    places = dict(zip(keys.tolist(), range(keys.size), strict=True))
    starts = []
    for ids, targets in batches:
        assert ids.dtype == targets.dtype == torch.int64
        assert ids.shape == targets.shape == (BATCH, LENGTH)
        assert ((targets[:, :-1] == ids[:, 1:]) | (targets[:, :-1] == -100)).all()
        for row, wanted in zip(ids.numpy(), targets.numpy(), strict=True):
            starts.append(tuple(row[:8].tolist()))
            assert _unknown(row[: int(np.flatnonzero(wanted != -100)[-1]) + 2], tokens, places) <= 8
    assert len(set(starts)) > 0.8 * len(starts), "rows repeat"


def _unknown(row: np.ndarray, tokens: np.ndarray, places: dict[int, int]) -> int:
    """Tokens of a row outside runs of at least 4 tokens of the store. There are some at its end and near very short documents."""
    stop = unknown = 0
    while stop < row.size:
        at = places.get(sum(int(token) << (16 * i) for i, token in enumerate(row[stop : stop + 4])))
        if at is None:
            stop, unknown = stop + 1, unknown + 1
            continue
        known = tokens[at : at + row.size - stop]
        differs = np.flatnonzero(known != row[stop : stop + known.size])
        stop += int(differs[0]) if differs.size else known.size
    return unknown


def kilobytes(name: str, pid: int | str = "self") -> int:
    """An entry of a process's smaps_rollup, in KB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def _workers() -> list[int]:
    """Private memory that each child process has written, in KB."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [kilobytes("Private_Dirty", pid) for pid in children]


def _serve(peer: Peer, work: Work, answer: Callable[[object], None]) -> None:
    """Make the first batch, then answer requests, one per line: take N | wait N SECONDS | memory."""
    before, start = kilobytes("Anonymous"), time.perf_counter()
    batches = iter(peer.open(work))
    next(batches)
    answer(time.perf_counter() - start)
    for line in sys.stdin:
        match line.split():
            case ["take", count]:
                start = time.perf_counter()
                for _ in range(int(count)):
                    next(batches)
                answer(time.perf_counter() - start)
            case ["wait", count, seconds]:
                answer([_wait(batches, float(seconds)) for _ in range(int(count))])
            case ["memory"]:
                answer([kilobytes("Anonymous") - before, _workers()])


def _wait(batches: Iterator[Pair], seconds: float) -> float:
    """How long the next batch takes after a step that leaves the processor idle, in seconds."""
    time.sleep(seconds)
    start = time.perf_counter()
    next(batches)
    return time.perf_counter() - start


def main() -> None:
    """Perform the actions for one loader. Standard output has only the answers, as lines of JSON."""
    name, store, folder, workers, step, actions = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for module in ("vision", "multimodal"):  # modules of the streaming library that require torchvision
        sys.modules[f"streaming.{module}"] = types.ModuleType(module)
    peer, work = PEERS[name], Work(Path(store), Path(folder), int(workers), int(step))
    for module in peer.modules:
        import_module(module)

    def answer(value: object) -> None:
        print(json.dumps(value), file=out, flush=True)

    if "prepare" in actions:
        peer.prepare(work)
    if "check" in actions:
        for first in {0, work.step}:
            check(islice(peer.open(replace(work, step=first)), 5), work.tokens())
    answer(True)
    if "serve" in actions:
        _serve(peer, work, answer)
    os._exit(0)  # do not wait for threads and processes of the library


if __name__ == "__main__":
    main()
