"""Decides, before any token is read in full, how each token file becomes a shard; everything that can be refused is refused here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tokenstore.errors import ConfigError
from tokenstore.foreign.cuts import BothCut, Cutter, EosCut, FileCut, IndexCut
from tokenstore.foreign.formats import Format, find_token_files
from tokenstore.foreign.options import AdoptOptions
from tokenstore.foreign.reading import Documents, TokenFile, most_documents
from tokenstore.foreign.scan import Ids
from tokenstore.foreign.survey import Survey, looks_wider, share_of_eos, survey
from tokenstore.format.layout import token_dtype
from tokenstore.outside import stat_file
from tokenstore.store.files import Identity
from tokenstore.tokenizer import Tokenizer, load_tokenizer

_SAME_BITS = {
    "<u2": "<u2",
    "<i2": "<u2",
    "<u4": "<u4",
    "<i4": "<u4",
}  # of ids that are not negative, as a store holds them
_MOST_UINT16 = 1 << 16


@dataclass(frozen=True)
class Source:
    """A token file, what its index says, and why it must be copied.

    Attributes:
        file: the token file.
        survey: of its index; None if the index is not used.
        reason: why its tokens cannot be mapped as they are; empty if they can.
        seen: identities of its files before they were surveyed.
    """

    file: TokenFile
    survey: Survey | None
    reason: str
    seen: tuple[Identity, ...]


@dataclass(frozen=True)
class Job:
    """Everything that is decided about an adoption.

    Attributes:
        options: as the user gave them.
        format: of the files.
        cut: what divides documents.
        eos_at: where the end-of-text token is; None to find out.
        eos_id: the end-of-text token; None if it is not known.
        tokenizer: of the tokens; of the kind `none` if it is not known.
        vocab_size: of the store.
        dtype: of the store.
        sources: in order.
    """

    options: AdoptOptions
    format: Format
    cut: str
    eos_at: str | None
    eos_id: int | None
    tokenizer: Tokenizer
    vocab_size: int
    dtype: np.dtype
    sources: tuple[Source, ...]

    def linked_on(self, device: int) -> "Job":
        """The job with the files of other file systems copied, because a hard link cannot lead to these."""
        sources = tuple(
            each
            if each.reason or stat_file(each.file.path).st_dev == device
            else replace(each, reason="it is on another file system than the output")
            for each in self.sources
        )
        return replace(self, sources=sources)

    @property
    def ids(self) -> Ids:
        """What the token ids must be, and which is the end-of-text token."""
        return Ids(self.vocab_size, self.eos_id)

    @property
    def num_bytes(self) -> int:
        """Bytes of all token files."""
        return sum(source.file.num_bytes for source in self.sources)

    def cutter(self, source: Source) -> Cutter:
        """What finds the documents of one file."""
        return new_cutter(self.cut, source.file.num_tokens, self.eos_at == "start", self.documents(source))

    def documents(self, source: Source) -> Callable[[], Iterator[Documents]]:
        """A function that reads the index of a file from its beginning."""
        return partial(self.format.documents, source.file.index, most_documents(source.file.num_tokens))


def new_cutter(cut: str, num_tokens: int, before: bool, documents: Callable[[], Iterator[Documents]]) -> Cutter:
    """What finds the documents of a file of `num_tokens` tokens.

    Args:
        cut: as in `AdoptOptions`.
        num_tokens: tokens of the file that belong to documents.
        before: whether the end-of-text token is the first of a document.
        documents: reads the index.
    """
    if cut == "index":
        return IndexCut(documents())
    if cut == "both":
        return BothCut(IndexCut(documents()), EosCut(num_tokens, False))
    return FileCut(num_tokens) if cut == "file" else EosCut(num_tokens, before)


def prepare(options: AdoptOptions, note: Callable[[str], None]) -> Job:
    """Look at all files but their tokens, and decide.

    Raises:
        ConfigError: the options do not fit the files.
        BuildError: an index is damaged or does not fit its token file.
    """
    format, paths = find_token_files(options.inputs, options.format)
    files = [format.describe(path, options.dtype) for path in paths]
    seen = [file.identities() for file in files]
    for text in dict.fromkeys(text for file in files for text in file.notes):
        note(text)
    tokenizer = _tokenizer(options)
    vocab_size = options.vocab_size or tokenizer.vocab_size
    eos_id = options.eos_id if options.eos_id is not None else tokenizer.eos_id
    if eos_id is not None and eos_id >= vocab_size:
        raise ConfigError(f"eos_id: expected one below the size of the vocabulary, {vocab_size}, found {eos_id}")
    cut = _cut(options, format, files, eos_id)
    eos_at = options.eos_at or (format.eos_at if cut == "eos" else "end" if cut == "both" else None)
    surveys = [_survey(format, file) if cut in ("index", "both") else None for file in files]
    if len({file.loss is None for file in files}) > 1:
        raise ConfigError("input: some files have a .loss and others have none; adopt them as two stores")
    _check_width(options, files, vocab_size)
    _check_sample(files, surveys, eos_id, options.eos_at)
    dtype = _dtype(files, vocab_size)
    sources = tuple(
        Source(file, found, _reason(options, file, found, dtype), identities)
        for file, found, identities in zip(files, surveys, seen, strict=True)
    )
    _check_masks(sources, options)
    return Job(options, format, cut, eos_at, eos_id, tokenizer, vocab_size, dtype, sources)


def _tokenizer(options: AdoptOptions) -> Tokenizer:
    if options.tokenizer in (None, "none"):
        return load_tokenizer("none", eos_id=options.eos_id, vocab_size=options.vocab_size)
    return load_tokenizer(str(options.tokenizer), eos_id=options.eos_id, pattern=options.pattern)


def _cut(options: AdoptOptions, format: Format, files: Sequence[TokenFile], eos_id: int | None) -> str:
    has_index = [bool(file.index) for file in files]
    cut = options.cut or ("index" if all(has_index) else "eos")
    if cut in ("index", "both") and not all(has_index):
        file = files[has_index.index(False)]
        raise ConfigError(f"cut: {file.path} has no index; cut at the end-of-text token (--cut eos --eos-id N)")
    if options.cut is None and len(set(has_index)) > 1:
        raise ConfigError(
            "input: some files have an index and others have none; adopt them as two stores, or add --cut eos"
        )
    if cut in ("eos", "both") and (eos_id is None or options.eos_at == "none"):
        raise ConfigError(
            f"eos_id: only the end-of-text token divides these {format.name} files into documents; give --eos-id N (GPT-2:"
            " 50256), or --cut file if each file is one document"
        )
    if options.join and cut != "eos":
        raise ConfigError(f"join: only with --cut eos, found the cut {cut}; documents of an index never cross files")
    return cut


def _survey(format: Format, file: TokenFile) -> Survey:
    return survey(file, format.documents(file.index, most_documents(file.num_tokens)))


def _check_width(options: AdoptOptions, files: Sequence[TokenFile], vocab_size: int) -> None:
    """ConfigError if ids were lost when 16-bit files were written, or if 32-bit files are read as 16-bit ones."""
    narrow = next((file for file in files if file.dtype.itemsize <= 2), None)
    if narrow is not None and vocab_size > _MOST_UINT16:
        raise ConfigError(
            f"vocabulary: {vocab_size:,} ids do not fit the {narrow.dtype.name} tokens of {narrow.path}: ids from 65,536 on wrapped"
            " when the file was written, and nothing in it shows which. Tokenize again; or, if you know that only ids below"
            " 65,536 were used, add --vocab-size 65536"
        )
    for file in files:
        if options.dtype is None and not file.index and file.first_byte == 0 and looks_wider(file):
            raise ConfigError(
                f"dtype: {file.path} looks like uint32 (every second 16-bit number is 0), and nothing in it says so; add"
                " --dtype uint32, or --dtype uint16 if it is not"
            )


def _check_sample(
    files: Sequence[TokenFile], surveys: Sequence[Survey | None], eos_id: int | None, eos_at: str | None
) -> None:
    """ConfigError if hardly any document of a sample ends with the end-of-text token, although the user says that they do."""
    if eos_at != "end" or eos_id is None:
        return
    for file, found in zip(files, surveys, strict=True):
        if found is not None and (share := share_of_eos(file, found.sample, eos_id)) < 0.5:
            raise ConfigError(
                f"eos_at: expected documents that end with {eos_id}, found {100 * share:.0f} % of a sample of"
                f" {found.sample.size:,} ({file.path}); check --eos-id, or omit --eos-at"
            )


def _dtype(files: Sequence[TokenFile], vocab_size: int) -> np.dtype:
    """The dtype of the store: that of the files, if it is one that a store can hold; otherwise what the vocabulary needs."""
    mapped = {_SAME_BITS.get(file.dtype.str) for file in files}
    needed = token_dtype(vocab_size)
    if "<u4" in mapped or None in mapped:
        return np.dtype("<u4") if "<u4" in mapped else needed
    return np.dtype("<u2")


def _reason(options: AdoptOptions, file: TokenFile, found: Survey | None, dtype: np.dtype) -> str:
    """Why a file must be copied; empty if it can be linked."""
    if _SAME_BITS.get(file.dtype.str) != dtype.str:
        return f"its tokens are {file.dtype.name}, and the store holds {dtype.name}"
    if file.first_byte % dtype.itemsize:
        return f"its tokens begin at byte {file.first_byte}, which is not aligned"
    if found is not None and not found.is_whole:
        return "its documents do not follow each other without gaps"
    if options.join:
        return "documents that continue in the next file are joined (--join)"
    return "requested (--copy)" if options.copy else ""


def _check_masks(sources: Sequence[Source], options: AdoptOptions) -> None:
    for source in sources:
        has_gaps = source.survey is not None and not source.survey.is_whole
        if source.file.loss is not None and (has_gaps or options.join):
            raise ConfigError(f"loss: {source.file.loss} cannot be adopted, because {source.reason}")
