"""Tokenizes some documents of a store again from its inputs and compares the tokens (`verify --retokenize`).

It uses the reference tokenizer, whatever engine built the store.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenstore.builder.documents.convert import Document, DocumentReader, reading
from tokenstore.builder.documents.encode import encode_documents
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.reading.inputs import TABLES, InputFile, find_inputs
from tokenstore.builder.reading.records import Bad, SliceReader
from tokenstore.builder.reading.units import Slice
from tokenstore.builder.recipe import check_same_options, open_tokenizer, options_of, recipe_of
from tokenstore.errors import BuildError, ConfigError
from tokenstore.format.input_lines import InputRow
from tokenstore.format.layout import INPUTS_NAME
from tokenstore.store.input_list import checked_rows
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.verify_documents import Finding
from tokenstore.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
_LEAST_SHARE = 1e-12  # with this share one document of each input is compared
_NONE = (-1, 1 << 63)  # (document, record) once none is left: a record after all others


def retokenize(
    path: str | Path,
    inputs: Sequence[str],
    share: float,
    version: int | None = None,
    progress: Progress = lambda num_bytes, num_total: None,
    filter: str | None = None,
    map: str | None = None,
    allow_links: str | Path | None = None,
    remote: RemoteOptions | None = None,
) -> list[Finding]:
    """Compare evenly spread documents of a store with the documents that its inputs give now.

    Args:
        path: the store's folder or URL; it must have origins.
        inputs: files, folders and glob patterns of the build, wherever they are now.
        share: fraction of the documents to compare, above 0 and at most 1; at least one per input.
        version: version of the store; None for the newest.
        progress: called with (bytes of inputs read since the last call, bytes of all inputs).
        filter: the filter the store was built with, if any. A function that only the store names does not run.
        map: the map the store was built with, if any.
        allow_links, remote: as in `open_store`.

    Returns:
        What differs; [] if nothing does.

    Raises:
        ConfigError: `share` is out of range; the store has no origins; an input does not exist; or the store's functions are
            not named, cannot be imported or have changed.
        CorruptionError: the list of inputs is damaged.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"retokenize: expected more than 0 and at most 100 %, found {100 * share:g} %")
    with open_store(path, version=version, allow_links=allow_links, remote=remote) as store:
        if not store.has_origins:
            raise ConfigError(
                f"retokenize: {path} has no origins, so its documents cannot be found in the inputs; build it without"
                " --no-origins"
            )
        options = replace(options_of(store, tuple(inputs), filter=filter, map=map), engine="reference")
        store.check_tokenizer()
        files = find_inputs(options.inputs, options.text_endings).files
        tokenizer = open_tokenizer(options, store.manifest.tokenizer, store.allow_links)
        check_same_options(store, recipe_of(options, tokenizer, files)["options"])
        return list(_compare_all(store, files, share, DocumentReader(options, tokenizer), tokenizer, progress))


def _compare_all(
    store: Store,
    files: Sequence[InputFile],
    share: float,
    reader: DocumentReader,
    tokenizer: Tokenizer,
    progress: Progress,
) -> Iterator[Finding]:
    total = sum(file.num_bytes for file in files)
    alike: dict[tuple[str, int | None], list[InputFile]] = defaultdict(list)
    for file in files:
        alike[file.path.name, file.num_bytes].append(file)
    rows = checked_rows(store.file(INPUTS_NAME), store.entry(INPUTS_NAME), len(store), store.allow_links)
    order = _by_input(store)
    for first, row in rows:
        documents = (
            range(len(store))[first : first + row.documents] if order is None else order[first : first + row.documents]
        )
        if not row.documents:
            continue
        may_be_it = _that_may_be(row, alike)
        if not may_be_it:
            rule = f"{row.file} of {row.num_bytes} bytes"
            yield Finding(INPUTS_NAME, "inputs", rule, "no such file among the inputs given")
            continue
        wanted = documents[:: round(1 / max(share, _LEAST_SHARE))]
        wanted = wanted if isinstance(wanted, range) else wanted.tolist()
        findings = (list(_compare(store, file, row, wanted, reader, tokenizer)) for file in may_be_it)
        yield from _least(findings)
        progress(row.num_bytes or 0, total)


def _by_input(store: Store) -> np.ndarray | None:
    """int64[documents]: their numbers by input and record; None if they are in this order already."""
    if not store.manifest.has_document_inputs:
        return None
    order: np.ndarray = np.lexsort((store.origins(), store.document_inputs()))
    return order


def _that_may_be(row: InputRow, alike: dict[tuple[str, int | None], list[InputFile]]) -> list[InputFile]:
    """Files with the name and size of an input, first the one with the same path below the folder that all share."""
    name = tuple(row.file.split("/"))
    files = [file for file in alike[name[-1], row.num_bytes] if file.path.parts[-len(name) :] == name]
    return sorted(files, key=lambda file: file.name != row.file)


def _least(findings: Iterable[list[Finding]]) -> list[Finding]:
    """[] if one of several files has no findings, else the findings of the first."""
    first = None
    for found in findings:
        if not found:
            return []
        first = first or found
    return first or []


def _compare(
    store: Store, file: InputFile, row: InputRow, wanted: Sequence[int], reader: DocumentReader, tokenizer: Tokenizer
) -> Iterator[Finding]:
    """Read one input and compare the documents `wanted`, which are in it in this order."""
    left = ((document, origin.record) for document in wanted if (origin := store.origin(document)) is not None)
    document, record = next(left)
    try:
        for number, found in SliceReader(file, Slice(0), reading(reader.options)):
            while record < number:
                yield Finding(row.file, f"record {record}", f"the tokens of document {document}", "no such record")
                document, record = next(left, _NONE)
            if record == number:
                made = found if isinstance(found, Bad) else reader.document(found, file.format in TABLES)
                if difference := _difference(store, document, made, tokenizer, reader.options):
                    rule = f"the tokens of document {document}"
                    yield Finding(row.file, f"record {record}", rule, difference)
                document, record = next(left, _NONE)
            if (document, record) == _NONE:
                return
        yield Finding(row.file, f"record {record}", f"document {document}", "the end of the file before it")
    except BuildError as error:
        yield Finding(INPUTS_NAME, row.file, "a readable input", str(error))


def _difference(
    store: Store, document: int, made: Document | Bad | str, tokenizer: Tokenizer, options: BuildOptions
) -> str:
    """How a document of the store differs from its record now; "" if it does not."""
    if not isinstance(made, Document):
        return made.reason if isinstance(made, Bad) else "a record that the filter or map drops"
    encoded = encode_documents([made], tokenizer, options)
    tokens = store[document]
    if not np.array_equal(encoded.tokens, tokens):
        same = int(np.argmin(np.append(encoded.tokens[: tokens.size] == tokens[: encoded.tokens.size], False)))
        return f"{encoded.tokens.size} tokens instead of {tokens.size}, different from token {same} on"
    if encoded.mask is not None and not np.array_equal(encoded.mask, store.loss_mask(document)):
        return "another loss mask"
    name = store.id(document)
    return "" if name is None or name == made.name else f"the id {made.name!r}, not {name!r}"
