"""A store on one screen."""

from dataclasses import dataclass

import numpy as np

from tokenstore.format.input_lines import Origin
from tokenstore.format.layout import BOUNDARIES_NAME, INPUTS_NAME
from tokenstore.format.manifest import Manifest
from tokenstore.store import Store
from tokenstore.store.input_list import Inputs
from tokenstore.views.lengths import Lengths, largest_documents, summarize_lengths

_MASK_BYTES = 1 << 26  # bytes of masks that are counted; of larger masks, an evenly spread sample of this size
_MASK_BLOCKS = 64


@dataclass(frozen=True)
class InputRow:
    """An input file and the number of documents that came from it."""

    file: str
    documents: int


@dataclass(frozen=True)
class LargeDocument:
    """One of the longest documents. `id` and `origin` are None if the store has none."""

    number: int
    num_tokens: int
    id: str | None
    origin: Origin | None


@dataclass(frozen=True)
class LossShare:
    """Share of the tokens that are in the loss. If not `exact`, it is estimated from an even sample of the masks."""

    share: float
    exact: bool


@dataclass(frozen=True)
class StoreSummary:
    """A store.

    Attributes:
        path: its directory.
        version: the version that was opened.
        versions: all versions that the store has.
        digest: identity of the content, hex.
        num_bytes: bytes of all files except the manifest.
        manifest: totals, tokenizer, options, counts and files, as the store has them.
        has_length_index: whether it has a length index.
        num_inputs: number of input files.
        inputs: the input files with the most documents.
        lengths: None without a length index.
        largest: the longest documents, longest first; empty without a length index.
        in_loss: None without masks.
    """

    path: str
    version: int
    versions: tuple[int, ...]
    digest: str
    num_bytes: int
    manifest: Manifest
    has_length_index: bool
    num_inputs: int
    inputs: tuple[InputRow, ...]
    lengths: Lengths | None
    largest: tuple[LargeDocument, ...]
    in_loss: LossShare | None


def summarize_store(store: Store, most: int = 5) -> StoreSummary:
    """Summarize a store, with at most `most` inputs and `most` large documents.

    Costs O(inputs + distinct lengths), and counts at most 64 MiB of loss masks. Reads no shard.

    Raises: CorruptionError: a file that is read is damaged.

    Example:
        >>> summarize_store(open_store("stores/web")).manifest.num_tokens
    """
    inputs = store.inputs() if store.has_file(INPUTS_NAME) and store.entry(INPUTS_NAME).num_bytes else None
    return StoreSummary(
        path=store.place,
        version=store.version,
        versions=tuple(store.versions()),
        digest=store.digest,
        num_bytes=store.manifest.num_bytes,
        manifest=store.manifest,
        has_length_index=store.has_length_index,
        num_inputs=len(inputs or ()),
        inputs=_most(inputs, most) if inputs else (),
        lengths=summarize_lengths(store),
        largest=tuple(_large(store, number) for number in largest_documents(store, most)),
        in_loss=loss_share(store),
    )


def _most(inputs: Inputs, most: int) -> tuple[InputRow, ...]:
    counts = np.diff(inputs.ends, prepend=0)
    chosen = np.argsort(-counts, kind="stable")[:most]
    return tuple(InputRow(inputs.name(i), int(counts[i])) for i in chosen.tolist())


def _large(store: Store, number: int) -> LargeDocument:
    start, stop = store.part(store.number_of(BOUNDARIES_NAME))[number : number + 2].tolist()
    return LargeDocument(number, stop - start, store.id(number), store.origin(number))


def loss_share(store: Store) -> LossShare | None:
    """The share of tokens in the loss, from at most 64 MiB of masks; None if the store has no masks."""
    if not store.manifest.has_masks:
        return None
    in_loss = tokens = 0
    stride = max(1, -(-store.num_tokens // 8 // _MASK_BYTES))
    for number, shard in enumerate(store.shards()):
        bits = store.part(store.mask_number(number))
        size = max(bits.size // _MASK_BLOCKS, 1) if stride > 1 else bits.size
        for first in range(0, bits.size, size):
            block = bits[first : first + max(size // stride, 1)]
            in_loss += int(np.bitwise_count(block).sum(dtype=np.int64))
            tokens += min(8 * block.size, shard.num_tokens - 8 * first)
    return LossShare(in_loss / tokens, stride == 1)
