"""What a build would do, without doing it: inputs, units, tokens to expect, disk needed. A sample is read, nothing is written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.build.inputs import Inputs, find_inputs
from tokenstore.build.options import BuildOptions
from tokenstore.build.part import LENGTH_BYTES, encode_documents, special_ids
from tokenstore.build.pipeline import written_by
from tokenstore.build.records import SliceReader
from tokenstore.build.units import Slice, cut_units, slice_bytes
from tokenstore.format.layout import boundaries_bytes, order_ids_bytes, token_dtype
from tokenstore.store.files import free_bytes
from tokenstore.tokenizer import Tokenizer, load_tokenizer

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
    output = Path(options.output).absolute()
    inputs = find_inputs(options.inputs, options.text_endings, written_by(output))
    tokenizer = load_tokenizer(options.tokenizer, options.eos_token, None, options.special_text)
    special_ids(tokenizer, options)
    units = cut_units(inputs.files)
    kinds: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for file in inputs.files:
        kinds[file.format + file.compression] += 1
        sizes[file.format + file.compression] += file.num_bytes
    num_bytes = sum(sizes.values())
    slices: dict[str, list[Slice]] = {}
    for part in (part for unit in units for part in unit):
        file = inputs.files[part.file_number]
        slices.setdefault(file.format + file.compression, []).append(part)
    expected = [_expected(each, inputs, tokenizer, options) for each in slices.values()]
    documents, tokens, bad = (sum(column) for column in zip(*expected, strict=True))
    dtype = token_dtype(tokenizer.vocab_size)
    part_bytes = tokens * dtype.itemsize + documents * LENGTH_BYTES
    store_bytes = tokens * dtype.itemsize + boundaries_bytes(documents, tokens) + order_ids_bytes(documents)
    return BuildPreview(
        files=tuple((ending, kinds[ending], sizes[ending]) for ending in sorted(kinds)),
        passed_over=inputs.passed_over,
        num_bytes=num_bytes,
        num_units=len(units),
        tokenizer=f"{tokenizer.kind} ({tokenizer.engine} {tokenizer.engine_version})",
        vocab_size=tokenizer.vocab_size,
        dtype=dtype.name,
        num_documents=documents,
        num_tokens=tokens,
        num_bad=bad,
        store_bytes=store_bytes,
        disk_bytes=store_bytes + part_bytes,
        free_bytes=free_bytes(next(folder for folder in output.parents if folder.is_dir())),
    )


def _expected(
    slices: Sequence[Slice], inputs: Inputs, tokenizer: Tokenizer, options: BuildOptions
) -> tuple[int, int, int]:
    """(documents, tokens) of inputs of one ending, as many a byte as in a sample; and bad records in the sample."""
    total = sum(slice_bytes(part, inputs.files[part.file_number]) for part in slices)
    read = documents = tokens = bad = 0
    for number in sorted({(len(slices) - 1) * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
        reader = SliceReader(inputs.files[slices[number].file_number], slices[number], options.text_field)
        texts: list[str] = []
        characters = 0
        for _, text in reader:
            if not isinstance(text, str):
                bad += 1
                continue
            texts.append(text)
            characters += len(text)
            if characters >= _SAMPLE_CHARACTERS:
                break
        read += reader.num_bytes
        if texts:
            lengths = encode_documents(texts, tokenizer, options)[1]
            documents, tokens = documents + lengths.size, tokens + int(lengths.sum())
    return round(documents * total / max(read, 1)), round(tokens * total / max(read, 1)), bad
