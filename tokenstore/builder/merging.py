"""`tokenstore merge`: several finished stores become one. Their shards are shared as hard links, so no token is copied."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenstore.builder.disk import disk_errors
from tokenstore.builder.replacing import check_replaceable, commit, is_free, resolved_output
from tokenstore.builder.result import BuildResult, Note, result_of
from tokenstore.errors import ConfigError
from tokenstore.format.layout import MANIFEST_NAME, MASK_PREFIX, version_of
from tokenstore.format.manifest import Manifest
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.paths import resolved
from tokenstore.store.length_index import write_length_index
from tokenstore.store.merging import Merger, check_alike, merged_columns
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.location import refuse_url
from tokenstore.store.work import exclusive_work
from tokenstore.store.writing import make_folders, new_folder, own_folder, remove_tree, write_atomically

_ADVICE = "no store was written: fix the cause and merge again"
_APART = ("split_name", "partition_name")  # options that name a store among several of one build


def merge(
    stores: Sequence[str | Path], output: str | Path, overwrite: bool = False, note: Note = lambda text: None
) -> BuildResult:
    """Join stores into a new one that has all their documents, in the order of `stores`.

    The shards are hard links to those of the stores, so no token is copied on one file system. The stores stay as they are and
    may be removed afterwards. Where only some stores have loss masks, all tokens of the others are in the loss; where only some
    have ids or metadata, the documents of the others have empty ones. Origins are kept if all stores have them.

    Args:
        stores: the folders of two or more stores of one tokenizer. A store may occur once.
        output: the folder of the new store.
        overwrite: replace a store at `output`.
        note: called with one line of text for each thing a user should know.

    Returns:
        The new store.

    Raises:
        ConfigError: the stores have different tokenizers or ends of documents, one is named twice, or `output` exists.
        FormatError, CorruptionError: one of them is no store, or is damaged.
        StoreBusyError: another process is writing `output`.
        BuildError: the disk is full. The same call starts again.

    Example:
        >>> merge(["stores/part-0", "stores/part-1"], "stores/web").num_documents
    """
    for path in (*stores, output):
        refuse_url(path, "merge")
    paths = [resolved(store) for store in stores]
    if len(paths) < 2 or len({*paths}) != len(paths):
        raise ConfigError(
            f"merge: expected two or more stores, each once, found {', '.join(map(str, stores)) or 'none'}"
        )
    target = resolved_output(output)
    with disk_errors(target, _ADVICE), contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_store(path)) for path in paths]
        check_alike(opened)
        if target in paths:
            raise ConfigError(f"output: {target} is one of the stores to merge; choose another path")
        make_folders(target.parent)
        work = stack.enter_context(exclusive_work(target))
        if overwrite:
            check_replaceable(target)
        elif not is_free(target):
            raise ConfigError(f"output: {target} exists already; use --overwrite, or choose another path")
        remove_tree(work.building)
        own_folder(work.building)
        stack.callback(remove_tree, work.building)
        folder = work.building / "store"
        new_folder(folder)
        _write(folder, opened, note)
        write_length_index(folder)
        commit(folder, target, note)
        return result_of(target, [(target, None)], None, was_there=False)


def _write(folder: Path, stores: Sequence[Store], note: Note) -> None:
    """Write the merged store into an empty folder, its manifest last."""
    first = stores[0].manifest
    columns = merged_columns(stores)
    if not columns.origins and any(store.has_origins for store in stores):
        note("the merged store has no origins, as not all stores have them")
    masks = any(store.manifest.has_masks for store in stores)
    blocks = all(store.has_block_checksums for store in stores)
    with Merger(folder, columns, masks, blocks, note) as merger:
        for store in stores:
            merger.add(store)
        stores[0].check_tokenizer()
        for name in sorted(first.files):
            if version_of(name) is None and not name.startswith(MASK_PREFIX):
                merger.add_file(stores[0], name)
        merger.close()
    manifest = Manifest(
        dtype=first.dtype,
        vocab_size=first.vocab_size,
        num_tokens=sum(store.num_tokens for store in stores),
        num_documents=sum(map(len, stores)),
        ends_with_eos=first.ends_with_eos,
        tokenizer=first.tokenizer,
        shards=tuple(merger.shards),
        files=dict(sorted(merger.files.items())),
        options=_options(stores),
        counts=dict(sum((Counter(store.manifest.counts) for store in stores), Counter())),
        package_versions={k: v for store in reversed(stores) for k, v in store.manifest.package_versions.items()},
    )
    write_atomically(folder / MANIFEST_NAME, encode_manifest(manifest), read_only=True)


def _options(stores: Sequence[Store]) -> dict[str, Any]:
    """The options of the stores if they agree; otherwise `merged`, a list with the options of each range of documents."""
    ranges: list[dict[str, Any]] = []
    for store in stores:
        options = store.manifest.options
        for each in _ranges(options, len(store)):
            if ranges and ranges[-1]["options"] == each["options"]:
                ranges[-1] = {**each, "documents": ranges[-1]["documents"] + each["documents"]}
            else:
                ranges.append(each)
    alone = len(ranges) == 1 and not any(ranges[0]["options"].get(name) for name in _APART)
    if alone:
        same: dict[str, Any] = ranges[0]["options"]
        return same
    return {"eos_token": stores[0].manifest.options.get("eos_token"), "merged": ranges}


def _ranges(options: dict[str, Any], num_documents: int) -> list[dict[str, Any]]:
    found = options.get("merged")
    of_documents = isinstance(found, list) and all(
        isinstance(each, dict) and {*each} == {"documents", "options"} for each in found
    )
    return list(found) if of_documents and found else [{"documents": num_documents, "options": options}]
