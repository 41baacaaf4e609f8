"""Stores whose documents have origins, ids and masks, written at once or made longer (FMT-11..13), and forged ones."""

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tests.support.stores.forge import canonical, replace, seal, sha256
from tests.support.stores.masked import REST
from tokenstore.format.manifest import Manifest
from tokenstore.store import Origin, Store, open_store
from tokenstore.store.document_files import Columns
from tokenstore.store.length_index import write_length_index
from tokenstore.store.next_version import commit_append
from tokenstore.store.writer import FileWriter


class Document(NamedTuple):
    """A document and all that a store can know of it."""

    tokens: list[int]
    mask: list[bool]
    file: str
    record: int
    id: str


class Kind(NamedTuple):
    """What a store has besides tokens."""

    masks: bool = True
    origins: bool = True
    ids: bool = True
    length_index: bool = True


ALL = Kind()


def documents_of(seed: int, lengths: Sequence[int], vocab_size: int = 300) -> list[Document]:
    """Documents of these lengths, a few from one input file; ids of all alphabets, some of them empty."""
    rng = np.random.default_rng(seed)
    names = [f"part {seed}-{number // 3}.jsonl" for number in range(len(lengths))]
    ids = ["", "doc", "ü", "☃" * 7, "\U0001f600 x", "a\nb\x00"]
    return [
        Document(
            rng.integers(1, vocab_size, length).tolist(),
            (rng.random(length) < 0.5).tolist(),
            name,
            int(rng.integers(1, 1 << 40)),
            f"{ids[rng.integers(len(ids))]}" + (str(number) if rng.random() < 0.8 else ""),
        )
        for number, (length, name) in enumerate(zip(lengths, names, strict=True))
    ]


def inputs_of(documents: Sequence[Document]) -> bytes:
    """Lines of inputs.jsonl (FMT-4)."""
    groups = [(file, len(list(group))) for file, group in groupby(documents, lambda document: document.file)]
    return b"".join(canonical({"file": file, "documents": count}).encode() + b"\n" for file, count in groups)


def _fill(writer: FileWriter, documents: Sequence[Document], kind: Kind, at_once: int) -> None:
    for first in range(0, len(documents), at_once):
        some = documents[first : first + at_once]
        writer.append(
            np.concatenate([np.array(each.tokens, np.uint32) for each in some]),
            np.array([len(each.tokens) for each in some]),
            np.concatenate([np.array(each.mask, np.bool_) for each in some]) if kind.masks else None,
            np.array([each.record for each in some]) if kind.origins else None,
            [each.id for each in some] if kind.ids else None,
        )


def write(
    path: Path, documents: Sequence[Document], kind: Kind = ALL, shard_bytes: int = 1 << 20, at_once: int = 3
) -> Path:
    """A store by the real writer, given `at_once` documents a call."""
    path.mkdir(parents=True)
    with FileWriter(path, 300, shard_bytes, kind.masks, Columns(kind.origins, kind.ids)) as writer:
        _fill(writer, documents, kind, at_once)
        writer.finish(**{**REST, "inputs": inputs_of(documents)})
    if kind.length_index:
        write_length_index(path)
    return path


def prepare(
    path: Path, documents: Sequence[Document], kind: Kind = ALL, shard_bytes: int = 1 << 20, at_once: int = 3
) -> Path:
    """The folder next to the store at `path` that holds its next version, not committed."""
    working = path.with_name(path.name + ".working")
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir()
    with open_store(path) as base, FileWriter.extending(base, working, shard_bytes) as writer:
        _fill(writer, documents, kind, at_once)
        writer.finish(inputs_of(documents))
    if kind.length_index:
        write_length_index(working)
    return working


def grow(path: Path, documents: Sequence[Document], kind: Kind = ALL, **options: int) -> Manifest:
    """Make the store at `path` longer."""
    working = prepare(path, documents, kind, **options)
    manifest = commit_append(path, working)
    working.rmdir()  # nothing is left there
    return manifest


def check_documents(store: Store, documents: Sequence[Document], kind: Kind = ALL) -> None:
    """The store gives just these documents, and all that is known of them."""
    assert len(store) == len(documents)
    assert (store.has_origins, store.has_ids, store.manifest.has_masks) == (kind.origins, kind.ids, kind.masks)
    for i, document in enumerate(documents):
        assert store[i].tolist() == document.tokens
        assert store.origin(i) == (Origin(document.file, document.record) if kind.origins else None)
        assert store.id(i) == (document.id if kind.ids else None)
        assert store.loss_mask(i).tolist() == (document.mask if kind.masks else [True] * len(document.tokens))
    if kind.length_index:
        by_length = sorted(range(len(documents)), key=lambda i: (len(documents[i].tokens), i))
        assert store.length_index().tolist() == by_length


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# ---- made wrong on purpose


def digest_of(body: dict) -> str:
    """The digest of a manifest's fields (FMT-5), of any version, masks and all."""
    boundaries = next(name for name in body["files"] if name.startswith("boundaries"))
    content = {
        "dtype": body["dtype"],
        "vocab_size": body["vocab_size"],
        "tokenizer": [body["tokenizer"]["kind"], body["tokenizer"]["sha256"]],
        "shards": [[shard["num_tokens"], shard["checksum"]] for shard in body["shards"]],
        "boundaries": body["files"][boundaries]["checksum"],
    }
    names = [f"mask-{i:05d}.bin" for i in range(len(body["shards"]))]
    if masks := [body["files"][name]["checksum"] for name in names if name in body["files"]]:
        content["masks"] = masks
    return sha256(content)


def edit_manifest(store: Path, edit: Callable[[dict], Any], name: str = "manifest.json") -> Path:
    """Edit a manifest so that its checksum, and its digest where one can be made, fit again."""
    body = json.loads((store / name).read_bytes())
    edit(body)
    try:
        digest = digest_of(body)
    except StopIteration:
        digest = None
    replace(store / name, seal(body, digest))
    return store


def rewrite(store: Path, name: str, data: bytes) -> Path:
    """Another file in the place of one, with size and checksum in the manifest: what only a faulty writer would do."""
    replace(store / name, data)
    entry = {"num_bytes": len(data), "checksum": xxhash.xxh3_128(data).hexdigest()}
    return edit_manifest(store, lambda body: body["files"].update({name: entry}))
