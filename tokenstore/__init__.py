"""tokenstore: a pre-sharded, memory-mapped token store with a sampling index, for training language models.

    batch = f(stores, plan, step, rank)        no state between batches, so one integer resumes a run

    import tokenstore
    plan = tokenstore.Plan.of({"web": "stores/web", "code": "stores/code"}, sequence_length=2048, global_batch_size=64)
    for batch in tokenstore.TokenLoader(plan, rank=0, world_size=1, step=0):
        ...                                    # {"input_ids": int64[64, 2048], "targets": int64[64, 2048]}

Layers. Each imports only lower ones; `tests/unit/test_layers.py` checks that.
    collector    -1  no search for garbage while many objects are made
    errors, paths 0  the exceptions of the package; what is at a path
    outside       0  reading untrusted files: how they are opened, and their size limits
    text          0  untrusted text and numbers, made safe to show
    jit           0  how numba kernels are compiled; `intrinsics`: operations that numba lacks
    format/       1  values <-> bytes. Its docstring is the specification of the store
    order/        1  integers -> integers. Its docstring is the specification of the order
    tokenizer/    1  text <-> ids
    store/        2  the files of a store: reader, writer, verify
    builder/      3  inputs -> a store
    batches/      3  rows of a step -> numpy arrays
    planning/     4  a plan over stores: the contents of each step
    foreign/      4  token files of other tools: a store over them, a store as such files
    torch_data/   5  batches as torch tensors
    trainers/     6  adapters for trainers; each imports the library it adapts
    views/        5  descriptions of a store, a plan and a step, as data for reports and commands
    report/       6  the views as one HTML file
    examples/     6  training scripts to copy, and `tokenstore demo`; programs that use the package
    commands/     7  the command line

The names below are imported on first use, so `import tokenstore` imports neither torch nor the builder's libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenstore.collector import paused_collector

__version__ = "0.1.0"

_HOMES = {
    "open_store": "store",
    "build": "builder",
    "merge": "builder",
    "verify": "store",
    "Store": "store",
    "StoreWriter": "builder",
    "RemoteOptions": "store",
    "Finding": "store",
    "PlanConfig": "planning",
    "Plan": "planning",
    "Piece": "planning",
    "SequenceInfo": "planning",
    "Batch": "torch_data",
    "BatchInfo": "torch_data",
    "Evaluation": "torch_data",
    "EvaluationResult": "torch_data",
    "TokenLoader": "torch_data",
    "TokenDataset": "torch_data",
    "SequenceDataset": "torch_data",
    "DataRank": "torch_data",
    "TokenStoreError": "errors",
}
__all__ = [
    "Batch",
    "BatchInfo",
    "DataRank",
    "Evaluation",
    "EvaluationResult",
    "Finding",
    "Piece",
    "Plan",
    "PlanConfig",
    "RemoteOptions",
    "SequenceDataset",
    "SequenceInfo",
    "Store",
    "StoreWriter",
    "TokenDataset",
    "TokenLoader",
    "TokenStoreError",
    "__version__",
    "build",
    "merge",
    "open_store",
    "verify",
]

if TYPE_CHECKING:
    from tokenstore.builder import StoreWriter, build, merge
    from tokenstore.errors import TokenStoreError
    from tokenstore.planning import Piece, Plan, PlanConfig, SequenceInfo
    from tokenstore.store import Finding, RemoteOptions, Store, open_store, verify
    from tokenstore.torch_data import (
        Batch,
        BatchInfo,
        DataRank,
        Evaluation,
        EvaluationResult,
        SequenceDataset,
        TokenDataset,
        TokenLoader,
    )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenstore' has no attribute {name!r}")
    with paused_collector():
        value = getattr(import_module(f"tokenstore.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
