"""Loaders that read from an object store: each in a process of its own, which `bench_remote` starts.

`python -m benches.remote_peers NAME ROOT CACHE STEPS`: ROOT has the data as every loader prepared it, and is served as bucket
`data` by the server that AWS_ENDPOINT_URL names. Prints one line of JSON: seconds to the first batch, seconds of waiting for
each later batch after a step of 5 ms, and bytes of disk at the end.
"""

import json
import os
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import tokenstore
from benches.peers import BATCH, LENGTH, Pair, Work, _prepare_litdata, _prepare_mosaic, _stack, split

STEP_SECONDS = 0.005
LOCALITY = {"block_sequences": 32, "lanes": 16}  # 128 KiB: the store is small. 16 blocks per lane


@dataclass(frozen=True)
class RemotePeer:
    """How to import, prepare and open a loader. `prepare` converts the store in ROOT/store into ROOT/NAME."""

    modules: tuple[str, ...]
    open: Callable[[Path, Path], Iterable[Pair]]
    prepare: Callable[[Work], None] = lambda work: None


def _ours(transport: str) -> Callable[[Path, Path], Iterable[Pair]]:
    def open_it(root: Path, cache: Path) -> Iterable[Pair]:
        where = str(root / "store") if transport == "local" else "s3://data/store"
        remote = tokenstore.RemoteOptions(cache=cache, transport=None if transport == "local" else transport)
        local: Any = LOCALITY if transport == "blocks" else None

        def plan_of(**fields: Any) -> tokenstore.Plan:
            sources: Any = {"web": {"path": where, "locality": local}}
            config = tokenstore.PlanConfig(
                sequence_length=LENGTH, global_batch_size=BATCH, sources=sources, packing="concat", **fields
            )
            return tokenstore.Plan(config, remote=remote)

        steps = plan_of().num_sequences["web"] // BATCH  # an epoch: nothing after it is fetched ahead
        plan = plan_of(num_steps=steps)
        loader = tokenstore.TokenLoader(plan, prefetch=2)
        return ((batch["input_ids"], batch["targets"]) for batch in loader)

    return open_it


def _mosaic(root: Path, cache: Path) -> Iterable[Pair]:
    from streaming import StreamingDataLoader, StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    rows = StreamingDataset(
        remote="s3://data/mosaic/mds", local=str(cache / "mds"), shuffle=True, batch_size=BATCH, shuffle_seed=1
    )
    return map(split, StreamingDataLoader(rows, batch_size=BATCH, num_workers=0, collate_fn=_stack))


def _litdata(root: Path, cache: Path) -> Iterable[Pair]:
    import litdata
    import obstore.store
    from litdata.streaming.resolver import Dir

    secure = obstore.store.S3Store

    def plain(*arguments: Any, client_options: Any = None, **options: Any) -> Any:
        """LitData has no option for a server without TLS."""
        return secure(*arguments, client_options={**(client_options or {}), "allow_http": True}, **options)

    obstore.store.S3Store = plain
    item_loader = litdata.streaming.item_loader.TokensLoader(block_size=LENGTH + 1)
    where = Dir(path=str(cache / "chunks"), url="s3://data/litdata/chunks")
    rows = litdata.StreamingDataset(
        where, item_loader=item_loader, shuffle=True, drop_last=True, storage_options=_s3_options()
    )
    loader = litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=0, shuffle=True)
    return (split(block.to(torch.int64)) for block in loader)


def _s3_options() -> dict[str, str]:
    names = {"endpoint_url": "AWS_ENDPOINT_URL", "aws_access_key_id": "AWS_ACCESS_KEY_ID"}
    names |= {"aws_secret_access_key": "AWS_SECRET_ACCESS_KEY", "region_name": "AWS_REGION"}
    return {option: os.environ[variable] for option, variable in names.items()}


PEERS = {
    "tokenstore, local disk": RemotePeer(("tokenstore.torch_data",), _ours("local")),
    "tokenstore, spans": RemotePeer(("tokenstore.torch_data",), _ours("spans")),
    "tokenstore, blocks": RemotePeer(("tokenstore.torch_data",), _ours("blocks")),
    "tokenstore, mirror": RemotePeer(("tokenstore.torch_data",), _ours("mirror")),
    "litdata": RemotePeer(("litdata",), _litdata, _prepare_litdata),
    "mosaic": RemotePeer(("streaming",), _mosaic, _prepare_mosaic),
}


def main() -> None:
    """Prepare the data of a loader (STEPS = prepare), or measure it."""
    name, root, cache, steps = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for module in ("vision", "multimodal"):  # modules of the streaming library that require torchvision
        sys.modules[f"streaming.{module}"] = types.ModuleType(module)
    peer = PEERS[name]
    for module in peer.modules:
        import_module(module)
    if steps == "prepare":
        (Path(root) / name).mkdir(exist_ok=True)
        peer.prepare(Work(Path(root) / "store", Path(root) / name))
        os._exit(0)
    if name.startswith("tokenstore"):  # load the compiled kernels
        next(iter(_ours("local")(Path(root), Path(cache))))
    print(json.dumps(_measure(peer, Path(root), Path(cache), int(steps))), file=out, flush=True)
    os._exit(0)  # do not wait for threads and processes of the library


def _measure(peer: RemotePeer, root: Path, cache: Path, steps: int) -> dict[str, object]:
    start = time.perf_counter()
    batches = iter(peer.open(root, cache))
    next(batches)
    first, waits = time.perf_counter() - start, []
    for _ in islice(range(steps), steps):
        time.sleep(STEP_SECONDS)
        start = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - start)
    disk = sum(512 * path.stat().st_blocks for path in cache.rglob("*") if path.is_file())
    return {"first": first, "waits": waits, "disk": disk, "batches": 1 + len(waits)}


if __name__ == "__main__":
    main()
