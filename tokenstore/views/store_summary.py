"""A store in one screen."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenstore.format.input_lines import Origin
from tokenstore.format.layout import INPUTS_NAME
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store import Store, versions
from tokenstore.store.input_list import Inputs
from tokenstore.views.lengths import Lengths, largest_documents, summarize_lengths

_MASK_BYTES = 1 << 26  # of masks that are counted; of more, so many spread evenly
_MASK_BLOCKS = 64


@dataclass(frozen=True)
class InputRow:
    """An input file and how many documents came from it."""

    file: str
    documents: int


@dataclass(frozen=True)
class LargeDocument:
    """One of the longest documents. `id` and `origin` are None in a store that does not have them."""

    number: int
    num_tokens: int
    id: str | None
    origin: Origin | None


@dataclass(frozen=True)
class LossShare:
    """Share of the tokens that are in the loss; `exact` where all masks were counted, else from an even sample."""

    share: float
    exact: bool


@dataclass(frozen=True)
class StoreSummary:
    """What a store is.

    Attributes:
        path, version, versions, digest: where and which; `versions` are all that it has.
        num_tokens, num_documents, num_shards, num_bytes: totals; bytes of all files but the manifest.
        dtype, vocab_size, ends_with_eos, tokenizer: of its tokens.
        has_order, has_origins, has_ids, has_masks: which optional files it has.
        options, counts, library_versions: how it was built, of how much, by what.
        num_inputs, inputs: input files, and those with most documents.
        lengths: None without a length index.
        largest: the longest documents, the longest first; [] without a length index.
        in_loss: None without masks.
    """

    path: str
    version: int
    versions: tuple[int, ...]
    digest: str
    num_tokens: int
    num_documents: int
    num_shards: int
    num_bytes: int
    dtype: str
    vocab_size: int
    ends_with_eos: bool
    tokenizer: TokenizerEntry
    has_length_index: bool
    has_origins: bool
    has_ids: bool
    has_masks: bool
    options: dict[str, Any]
    counts: dict[str, int]
    library_versions: dict[str, str]
    num_inputs: int
    inputs: tuple[InputRow, ...]
    lengths: Lengths | None
    largest: tuple[LargeDocument, ...]
    in_loss: LossShare | None


def summarize_store(store: Store, most: int = 5) -> StoreSummary:
    """A summary with at most so many inputs and large documents. Costs O(inputs + distinct lengths), reads no shard.

    Raises: CorruptionError: what it reads is damaged.
    """
    manifest = store.manifest
    inputs = store.inputs() if store.has_file(INPUTS_NAME) and store.entry(INPUTS_NAME).num_bytes else None
    return StoreSummary(
        path=str(store.path),
        version=store.version,
        versions=tuple(versions(store.path, store.allow_links)),
        digest=store.digest,
        num_tokens=store.num_tokens,
        num_documents=len(store),
        num_shards=len(manifest.shards),
        num_bytes=manifest.num_bytes,
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        ends_with_eos=manifest.ends_with_eos,
        tokenizer=manifest.tokenizer,
        has_length_index=store.has_length_index,
        has_origins=store.has_origins,
        has_ids=store.has_ids,
        has_masks=manifest.has_masks,
        options=manifest.options,
        counts=manifest.counts,
        library_versions=manifest.library_versions,
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
    start, stop = store.boundaries()[number : number + 2].tolist()
    return LargeDocument(number, stop - start, store.id(number), store.origin(number))


def loss_share(store: Store) -> LossShare | None:
    """Of the loss masks, by counting at most 64 MiB of them; None in a store without."""
    if not store.manifest.has_masks:
        return None
    in_loss = tokens = 0
    stride = max(1, -(-store.num_tokens // 8 // _MASK_BYTES))
    for number, shard in enumerate(store.shards()):
        bits = store.mask(number)
        size = max(bits.size // _MASK_BLOCKS, 1) if stride > 1 else bits.size
        for first in range(0, bits.size, size):
            block = bits[first : first + max(size // stride, 1)]
            in_loss += int(np.bitwise_count(block).sum(dtype=np.int64))
            tokens += min(8 * block.size, shard.num_tokens - 8 * first)
    return LossShare(in_loss / tokens, stride == 1)
