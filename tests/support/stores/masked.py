"""Stores with loss masks (FMT-10), and what they make of targets and labels, in plain Python."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tests.support.stores.forge import replace, seal, sha256
from tokenstore import Plan
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store.length_index import add_length_index
from tokenstore.store.writer import FileWriter

REST = {
    "inputs": b"",
    "ends_with_eos": False,
    "tokenizer": TokenizerEntry("bytes", None, None, None, None, None, "tests", "1"),
    "options": {},
    "counts": {},
    "package_versions": {},
}


class Documents(NamedTuple):
    """Documents and their masks: which tokens are in the loss."""

    tokens: list[list[int]]
    masks: list[list[bool]]


T, F = True, False
# In shards of at most 10 tokens: three documents of 10, one of 3 that begins inside a byte of the stream, one of 11 that is
# larger than a shard, and two of 8 together
SMALL = Documents(
    [[7] * 3, [6], [5] * 6, [4] * 3, [3] * 11, [2], [1] * 7],
    [[T, F, F], [T], [F, F, T, T, F, T], [F, F, T], [T] * 10 + [F], [F], [T] * 7],
)
SMALL_BITS = {
    "mask-00000.bin": bytes([0b11001001, 0b00000010]),
    "mask-00001.bin": bytes([0b00000100]),
    "mask-00002.bin": bytes([0b11111111, 0b00000011]),
    "mask-00003.bin": bytes([0b11111110]),
}


def random_masked(seed: int, lengths: Sequence[int], vocab_size: int = 300, density: float = 0.5) -> Documents:
    """Documents of these lengths; a tenth of the masks are all True, a tenth all False."""
    rng = np.random.default_rng(seed)
    tokens, masks = [], []
    for length in lengths:
        tokens.append(rng.integers(1, vocab_size, length).tolist())
        share = rng.choice([density, 0.0, 1.0], p=[0.8, 0.1, 0.1])
        masks.append((rng.random(length) < share).tolist())
    return Documents(tokens, masks)


def write_masked(
    path: Path,
    documents: Documents,
    vocab_size: int = 300,
    shard_bytes: int = 1 << 20,
    length_index: bool = False,
    at_once: int = 1,
    masks: bool = True,
) -> Path:
    """A store by the real writer, given `at_once` documents a call; without `masks` it has none."""
    path.mkdir(parents=True)
    with FileWriter(path, vocab_size, shard_bytes, masks=masks) as writer:
        for first in range(0, len(documents.tokens), at_once):
            several = documents.tokens[first : first + at_once]
            mask = np.concatenate([np.array(bits, np.bool_) for bits in documents.masks[first : first + at_once]])
            tokens = np.concatenate([np.array(ids, np.uint32) for ids in several])
            writer.append(tokens, np.array([len(ids) for ids in several]), mask if masks else None)
        writer.finish(**REST)
    if length_index:
        add_length_index(path)
    return path


def mask_files(store: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(store.glob("mask-*"))}


def bits_by_hand(masks: Sequence[Sequence[bool]]) -> bytes:
    """The mask file of a shard that holds documents of these masks (FMT-10)."""
    stream = [bit for mask in masks for bit in mask]
    out = bytearray(-(-len(stream) // 8))
    for t, bit in enumerate(stream):
        if bit:
            out[t // 8] |= 1 << t % 8
    return bytes(out)


# ---- made wrong on purpose


def digest_of(body: dict) -> str:
    """The digest of a manifest's fields (FMT-5), masks and all."""
    content = {
        "dtype": body["dtype"],
        "vocab_size": body["vocab_size"],
        "tokenizer": [body["tokenizer"]["kind"], body["tokenizer"]["sha256"]],
        "shards": [[shard["num_tokens"], shard["checksum"]] for shard in body["shards"]],
        "boundaries": body["files"]["boundaries.bin"]["checksum"],
    }
    names = [f"mask-{i:05d}.bin" for i in range(len(body["shards"]))]
    if masks := [body["files"][name]["checksum"] for name in names if name in body["files"]]:
        content["masks"] = masks
    return sha256(content)


def edit_manifest(store: Path, edit: Callable[[dict], Any]) -> Path:
    """Edit a manifest so that its checksum and digest fit again."""
    body = json.loads((store / "manifest.json").read_bytes())
    edit(body)
    replace(store / "manifest.json", seal(body, digest_of(body)))
    return store


def rewrite_mask(store: Path, number: int, data: bytes) -> None:
    """Another mask of a shard, with its checksum in the manifest: what only a faulty writer would do."""
    name = f"mask-{number:05d}.bin"
    replace(store / name, data)
    checksum = xxhash.xxh3_128(data).hexdigest()
    edit_manifest(store, lambda body: body["files"][name].update(checksum=checksum))


# ---- targets and labels


class Rows(NamedTuple):
    """Lists of a step, a list a row."""

    ids: list[list[int]]
    targets: list[list[int]]
    labels: list[list[int]]


def rows_by_hand(plan: Plan, step: int, sources: dict[str, Documents], pad_id: int = 0) -> Rows:
    """Rows of a step, from the pieces that the plan lists for them, token by token."""
    length, cross = plan.config.sequence_length, plan.config.cross_document_targets
    rows = Rows([], [], [])
    for pieces in plan.documents(step):
        ids, targets, labels = [], [], []
        for piece in pieces:
            tokens, masks = sources[piece.source]
            for k in range(piece.start, piece.stop):
                document, mask = tokens[piece.document], masks[piece.document]
                after, place = piece.document, k + 1  # of the token that follows
                if place == len(document) and cross:
                    after, place = (after + 1) % len(tokens), 0
                predicted = place < len(tokens[after]) and masks[after][place]
                targets.append(tokens[after][place] if predicted else -100)
                begins = k == 0 or (k == piece.start and bool(ids))  # nothing before it predicts it
                labels.append(document[k] if mask[k] and (cross or not begins) else -100)
                ids.append(document[k])
        missing = length - len(ids)
        rows.ids.append(ids + [pad_id] * missing)
        rows.targets.append(targets + [-100] * missing)
        rows.labels.append(labels + [-100] * missing)
    return rows
