"""What a build would do, without doing it: inputs, units, tokens to expect, disk needed. A sample is read, nothing is written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenstore.build.documents import Document, DocumentReader, reading
from tokenstore.build.encode import encode_documents, has_masks
from tokenstore.build.inputs import TABLES, InputFile
from tokenstore.build.options import BuildOptions
from tokenstore.build.part import part_bytes
from tokenstore.build.pipeline import output_path, prepare
from tokenstore.build.records import Bad, SliceReader
from tokenstore.build.units import Slice, cut_units, slice_bytes
from tokenstore.format.layout import boundaries_bytes, mask_bytes, order_ids_bytes, token_dtype
from tokenstore.paths import is_folder
from tokenstore.store.files import free_bytes
from tokenstore.tokenizer import Tokenizer

_SAMPLES, _SAMPLE_CHARACTERS = 5, 1 << 18  # inputs read of each ending, spread over all, and how much of each


@dataclass(frozen=True)
class BuildPreview:
    """A build to be.

    Attributes:
        files: (ending, how many, bytes on the disk) of the inputs, by ending.
        passed_over: how many files of folders are no inputs, by ending.
        num_units: parts the work is cut into; a killed build loses at most one a worker.
        num_tokens, num_documents: to expect, from a sample; 0 where it held no document.
        num_bad: bad records in the sample.
        store_bytes: size of the store to expect. disk_bytes: room needed while building: finished parts are kept till the end.
        free_bytes: room there is.
    """

    files: tuple[tuple[str, int, int], ...]
    passed_over: dict[str, int]
    num_bytes: int
    num_units: int
    tokenizer: str
    vocab_size: int
    dtype: str
    num_documents: int
    num_tokens: int
    num_bad: int
    store_bytes: int
    disk_bytes: int
    free_bytes: int


def preview_build(options: BuildOptions) -> BuildPreview:
    """What `build_store` would do where the output is free; the same ConfigError for inputs, tokenizer or options."""
    output = output_path(options)
    job = prepare(options, output, None, lambda text: None)
    options, files, tokenizer = job.options, job.files, job.tokenizer
    reader = DocumentReader(options, tokenizer)
    units = cut_units(files)
    kinds: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for file in files:
        kinds[file.format + file.compression] += 1
        sizes[file.format + file.compression] += file.num_bytes
    num_bytes = sum(sizes.values())
    slices: dict[str, list[Slice]] = {}
    for part in (part for unit in units for part in unit):
        file = files[part.file_number]
        slices.setdefault(file.format + file.compression, []).append(part)
    expected = [_expected(each, files, tokenizer, reader) for each in slices.values()]
    documents, tokens, bad = (sum(column) for column in zip(*expected, strict=True))
    dtype = token_dtype(tokenizer.vocab_size)
    store_bytes = tokens * dtype.itemsize + boundaries_bytes(documents, tokens) + order_ids_bytes(documents)
    store_bytes += documents * 8 * options.origins + mask_bytes(tokens) * has_masks(options)
    return BuildPreview(
        files=tuple((ending, kinds[ending], sizes[ending]) for ending in sorted(kinds)),
        passed_over=job.passed_over,
        num_bytes=num_bytes,
        num_units=len(units),
        tokenizer=f"{tokenizer.kind} ({tokenizer.engine} {tokenizer.engine_version})",
        vocab_size=tokenizer.vocab_size,
        dtype=dtype.name,
        num_documents=documents,
        num_tokens=tokens,
        num_bad=bad,
        store_bytes=store_bytes,
        disk_bytes=store_bytes + part_bytes(documents, tokens, dtype, options),
        free_bytes=free_bytes(next(folder for folder in output.parents if is_folder(folder))),
    )


def _expected(
    slices: Sequence[Slice], files: Sequence[InputFile], tokenizer: Tokenizer, reader: DocumentReader
) -> tuple[int, int, int]:
    """(documents, tokens) of inputs of one ending, as many a byte as in a sample; and bad records in the sample."""
    total = sum(slice_bytes(part, files[part.file_number]) for part in slices)
    read = num_documents = tokens = bad = 0
    for number in sorted({(len(slices) - 1) * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
        records = SliceReader(files[slices[number].file_number], slices[number], reading(reader.options))
        documents: list[Document] = []
        size = 0
        for _, row in records:
            found = row if isinstance(row, Bad) else reader.document(row, records.file.format in TABLES)
            if isinstance(found, Bad):
                bad += 1
            elif found is not None:
                documents.append(found)
                size += len(found.text if found.text is not None else found.ids)
            if size >= _SAMPLE_CHARACTERS:
                break
        read += records.num_bytes
        if documents:
            lengths = encode_documents(documents, tokenizer, reader.options).lengths
            num_documents, tokens = num_documents + lengths.size, tokens + int(lengths.sum())
    return round(num_documents * total / max(read, 1)), round(tokens * total / max(read, 1)), bad
