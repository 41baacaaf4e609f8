"""Can a format hold a store? All reasons why not are given at once."""

from collections.abc import Iterator

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.foreign.formats import FORMATS
from tokenstore.foreign.options import ExportOptions
from tokenstore.foreign.parts import Part
from tokenstore.format.layout import is_plain_name
from tokenstore.store.reader import Store

_INT32 = 1 << 31


def check_export(store: Store, options: ExportOptions) -> None:
    """ConfigError if the format cannot hold the token ids, lengths, masks or documents of the store; with every reason."""
    if options.to not in FORMATS:
        raise ConfigError(f"to: expected one of {', '.join(FORMATS)}, found {options.to!r}")
    if options.name is not None and not is_plain_name(options.name):
        raise ConfigError(f"name: expected letters, digits, '.', '_' and '-', found {options.name!r}")
    if wrong := list(_reasons(store, options)):
        raise ConfigError(f"export: {options.to} files cannot hold {store.path}: {'; '.join(wrong)}")


def _reasons(store: Store, options: ExportOptions) -> Iterator[str]:
    to, longest = options.to, 0
    everything = Part(store, "", range(len(store.shards())))
    if to == "nanogpt" and store.dtype.itemsize != 2:
        yield f"its tokens are {store.dtype.name}, and nanoGPT reads uint16 only"
    if to in ("megatron", "llmc") and store.vocab_size > _INT32:
        yield f"its vocabulary has {store.vocab_size:,} ids, and the format holds ids below 2**31"
    if to == "megatron":
        longest = max(int(np.diff(bounds).max()) for _, bounds in everything.bounds())
        if longest >= _INT32:
            yield f"its longest document has {longest:,} tokens, and the format holds lengths below 2**31"
    if to == "llmc":
        most = store.num_tokens if options.one_file else max(shard.num_tokens for shard in store.shards())
        if most >= _INT32:
            yield f"a file would have {most:,} tokens, and its header holds numbers below 2**31"
    if store.manifest.has_masks and to != "datatrove" and not options.drop_masks:
        yield "it has loss masks, and the format has none; --drop-masks drops them, so that every token counts in the loss"
    if to in ("nanogpt", "llmc"):
        yield from _reasons_of_eos(store, everything, to)


def _reasons_of_eos(store: Store, everything: Part, to: str) -> Iterator[str]:
    """Reasons why the end-of-text token alone does not divide the documents."""
    eos_id = store.manifest.tokenizer.eos_id
    if eos_id is None or not (store.manifest.ends_with_eos or starts_with_eos(store)):
        where = "end with" if to == "nanogpt" else "begin or end with"
        yield f"the format has no index, and not all documents {where} an end-of-text token"
        return
    if to == "nanogpt" and not store.manifest.ends_with_eos:
        yield "the format has no index, and its documents begin with the end-of-text token instead of ending with it"
        return
    found = sum(int(np.count_nonzero(block == eos_id)) for block in everything.tokens())
    if found != len(store):
        yield (
            f"the format has no index, and {found:,} end-of-text tokens ({eos_id}) do not divide {len(store):,} documents: some are"
            " inside of documents"
        )


def starts_with_eos(store: Store) -> bool:
    """Whether every document begins with the end-of-text token."""
    eos_id = store.manifest.tokenizer.eos_id
    if eos_id is None:
        return False
    for number in range(len(store.shards())):
        tokens = store.shard(number)
        for _, bounds in Part(store, "", range(number, number + 1)).bounds():
            if (tokens[bounds[:-1]] != eos_id).any():
                return False
    return True
