"""Shows what a build would do: inputs, units, expected tokens, disk space needed. Reads a sample, writes nothing."""

from collections import Counter
from dataclasses import dataclass

from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.documents.encode import has_masks
from tokenstore.builder.estimate import Estimate, Estimator
from tokenstore.builder.job import prepare
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import part_bytes
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import cut_units
from tokenstore.builder.remote_output import location_of, with_scratch
from tokenstore.builder.replacing import resolved_output
from tokenstore.errors import BadRecordsError
from tokenstore.format.layout import boundaries_bytes, length_index_numbers_bytes, mask_bytes, token_dtype
from tokenstore.paths import is_folder
from tokenstore.store.files import free_bytes


@dataclass(frozen=True)
class BuildPreview:
    """What a build would do.

    Attributes:
        files: (ending, number of files, bytes on disk) for each ending of the inputs.
        skipped: number of files in folders that are not inputs, by ending.
        num_bytes: of all inputs, on disk.
        num_units: units of work; a killed build loses at most one per worker.
        tokenizer: kind, engine and version.
        vocab_size: token ids are below it.
        dtype: of the tokens on disk, `uint16` or `uint32`.
        num_documents, num_tokens: expected, from a sample; duplicates are not searched for.
        is_exact: whether all inputs were read and tokenized.
        error: relative error of `num_tokens`; the true number is within it with a probability of about 95 %.
        read_in_part: number of inputs of which only the beginning was read, as they are large and cannot be read from the
            middle. The rest is assumed to be similar, which `error` does not cover.
        num_bad: bad records in the sample.
        store_bytes: expected size of the store.
        disk_bytes: disk space needed during the build, as finished parts are kept until the end.
        free_bytes: disk space available.
    """

    files: tuple[tuple[str, int, int], ...]
    skipped: dict[str, int]
    num_bytes: int
    num_units: int
    tokenizer: str
    vocab_size: int
    dtype: str
    num_documents: int
    num_tokens: int
    is_exact: bool
    error: float
    read_in_part: int
    num_bad: int
    store_bytes: int
    disk_bytes: int
    free_bytes: int


def preview_build(options: BuildOptions) -> BuildPreview:
    """What `build_store` would do with these options if there is nothing at the output.

    Raises:
        ConfigError: inputs, tokenizer or options are invalid, as in `build_store`.
        BadRecordsError: all records of the sample of one format are bad, for example because a field has another name.
        BuildError: an input is damaged.
    """
    if place := location_of(options):
        options = with_scratch(options, place)
    output = resolved_output(options.output)
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
    alike: dict[str, list[InputFile]] = {}
    for file in files:
        alike.setdefault(file.format + file.compression, []).append(file)
    estimator = Estimator(tokenizer, reader)
    expected = [_checked(ending, estimator.estimate(each)) for ending, each in alike.items()]
    documents, tokens = (round(sum(each)) for each in zip(*((x.documents, x.tokens) for x in expected), strict=True))
    if options.max_total_tokens is not None and tokens > options.max_total_tokens:
        documents = documents * options.max_total_tokens // tokens
        tokens = options.max_total_tokens
    errors = sum((each.error * each.tokens) ** 2 for each in expected) ** 0.5
    dtype = token_dtype(tokenizer.vocab_size)
    store_bytes = tokens * dtype.itemsize + boundaries_bytes(documents, tokens) + length_index_numbers_bytes(documents)
    store_bytes += documents * 8 * options.origins + mask_bytes(tokens) * has_masks(options)
    return BuildPreview(
        files=tuple((ending, kinds[ending], sizes[ending]) for ending in sorted(kinds)),
        skipped=job.skipped,
        num_bytes=num_bytes,
        num_units=len(units),
        tokenizer=f"{tokenizer.kind} ({tokenizer.engine} {tokenizer.engine_version})",
        vocab_size=tokenizer.vocab_size,
        dtype=dtype.name,
        num_documents=documents,
        num_tokens=tokens,
        is_exact=all(each.is_exact for each in expected),
        error=errors / max(tokens, 1),
        read_in_part=sum(each.read_in_part for each in expected),
        num_bad=sum(each.num_bad for each in expected),
        store_bytes=store_bytes,
        disk_bytes=store_bytes + part_bytes(documents, tokens, dtype, options),
        free_bytes=free_bytes(next(folder for folder in output.parents if is_folder(folder))),
    )


def _checked(ending: str, expected: Estimate) -> Estimate:
    if expected.num_bad and expected.num_bad == expected.num_records:
        raise BadRecordsError(
            f"bad records: all {expected.num_bad} records sampled from the {ending} inputs are bad; the first is"
            f" {expected.first_bad}; check the field names and --records"
        )
    return expected
