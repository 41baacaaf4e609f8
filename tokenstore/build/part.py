"""One unit -> one part: its documents' tokens and lengths, and a summary written last, which makes the part count.

A part's key hashes all that decides its bytes, so a part found on disk can be trusted or thrown away without looking
inside. Parts are what a killed build resumes from.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore.build.inputs import InputFile
from tokenstore.build.options import BuildOptions
from tokenstore.build.records import Bad, SliceReader
from tokenstore.build.units import Unit
from tokenstore.errors import BuildError, ConfigError
from tokenstore.format.layout import token_dtype
from tokenstore.format.manifest import canonical_json
from tokenstore.store.files import sync, write_atomically
from tokenstore.tokenizer import Tokenizer

_BATCH_CHARS = 1 << 20
_BATCH_DOCUMENTS = 1024
LENGTH_BYTES = 8  # a document in a part: its number of tokens, int64
_READ_DOCUMENTS = 1 << 16


@dataclass(frozen=True)
class SliceSummary:
    """What was in one slice: lines, documents kept, documents without text, bad records (number, reason, start)."""

    num_lines: int
    num_documents: int
    num_empty: int
    bad: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True)
class Part:
    """A finished part: where its files are, and its summary."""

    stem: Path
    num_documents: int
    num_tokens: int
    slices: tuple[SliceSummary, ...]

    @property
    def num_bad(self) -> int:
        return sum(len(part.bad) for part in self.slices)

    def documents(self, dtype: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(tokens, lengths int64) in blocks of bounded size."""
        with open(_tokens_file(self.stem), "rb") as tokens, open(_lengths_file(self.stem), "rb") as lengths:
            while (block := np.fromfile(lengths, "<i8", _READ_DOCUMENTS)).size:
                yield np.fromfile(tokens, dtype, int(block.sum())), block


def part_key(unit: Unit, files: Sequence[InputFile], recipe: dict[str, Any]) -> str:
    """Hash of what decides a part's bytes: the recipe, and name, size and time of change of each input."""
    slices = [
        [(file := files[part.file_number]).name, file.num_bytes, file.modified_ns, part.start, part.stop]
        for part in unit
    ]
    return hashlib.sha256(canonical_json([recipe, slices]).encode()).hexdigest()


def load_part(stem: Path, key: str, dtype: np.dtype) -> Part | None:
    """The finished part at `stem`, if there is one, made from the same (`key`), and none of its files was cut since."""
    try:
        summary = json.loads(_summary_file(stem).read_text("utf-8"))
        sizes = _tokens_file(stem).stat().st_size, _lengths_file(stem).stat().st_size
    except (OSError, ValueError):
        return None
    if not isinstance(summary, dict) or summary.pop("key", None) != key:
        return None
    slices = tuple(SliceSummary(**{**part, "bad": tuple(map(tuple, part["bad"]))}) for part in summary.pop("slices"))
    part = Part(stem, slices=slices, **summary)
    return part if sizes == (part.num_tokens * dtype.itemsize, part.num_documents * LENGTH_BYTES) else None


def make_part(
    stem: Path,
    key: str,
    unit: Unit,
    files: Mapping[int, InputFile],
    tokenizer: Tokenizer,
    options: BuildOptions,
    report: Callable[[int, int, int], None],
) -> Part:
    """Tokenize `unit` into a part; `report` hears of (bytes, documents, tokens) as they are done.

    Stops early, without a part that counts, as soon as the unit alone has more bad records than allowed.
    """
    slices = []
    totals = np.zeros(2, np.int64)
    with open(_tokens_file(stem), "wb") as tokens_out, open(_lengths_file(stem), "wb") as lengths_out:
        for part in unit:
            reader = SliceReader(files[part.file_number], part, options.text_field)
            collector = _Collector(tokenizer, options, sum(len(done.bad) for done in slices))
            reported = 0
            for texts in collector.batches(reader):
                tokens, lengths = encode_documents(texts, tokenizer, options)
                tokens_out.write(tokens.data)  # not tofile, which does not notice when its last few kilobytes are lost
                lengths_out.write(lengths.data)
                totals += (lengths.size, tokens.size)
                collector.num_documents += lengths.size
                collector.num_empty += len(texts) - lengths.size
                reported, before = reader.num_bytes, reported
                report(reported - before, lengths.size, tokens.size)
            report(reader.num_bytes - reported, 0, 0)
            _check_unchanged(files[part.file_number])
            slices.append(collector.summary(reader.num_lines))
        sync(tokens_out)
        sync(lengths_out)
    result = Part(stem, int(totals[0]), int(totals[1]), tuple(slices))
    if result.num_bad <= options.max_bad:
        summary = {"key": key, **asdict(result)}
        del summary["stem"]
        write_atomically(_summary_file(stem), json.dumps(summary).encode())
    return result


def _check_unchanged(file: InputFile) -> None:
    """A file that is written to while it is read gives neither its old nor its new documents."""
    now = file.path.stat()
    if (now.st_size, now.st_mtime_ns) != (file.num_bytes, file.modified_ns):
        raise BuildError(
            f"input: expected it to stay as it was, found it changed during the build ({file.path});"
            " run the same command again when it is finished"
        )


class _Collector:
    """Groups a slice's good records into batches and keeps the bad ones."""

    def __init__(self, tokenizer: Tokenizer, options: BuildOptions, bad_before: int):
        self.refused = tokenizer.special_tokens if options.special_text == "error" else ()
        self.most_bad = options.max_bad - bad_before
        self.keep_empty = options.keep_empty
        self.num_documents = self.num_empty = 0
        self.bad: list[tuple[int, str, str]] = []

    def batches(self, records: Iterable[tuple[int, str | Bad]]) -> Iterator[list[str]]:
        batch: list[str] = []
        num_chars = 0
        for number, text in records:
            if isinstance(text, str) and self.refused:
                text = _without(text, self.refused)
            if isinstance(text, Bad):
                self.bad.append((number, text.reason, text.start))
                if len(self.bad) > self.most_bad:
                    return
                continue
            if not text and not self.keep_empty:
                self.num_empty += 1
                continue
            batch.append(text)
            num_chars += len(text)
            if num_chars >= _BATCH_CHARS or len(batch) == _BATCH_DOCUMENTS:
                yield batch
                batch, num_chars = [], 0
        if batch:
            yield batch

    def summary(self, num_lines: int) -> SliceSummary:
        return SliceSummary(num_lines, self.num_documents, self.num_empty, tuple(self.bad))


def _without(text: str, refused: Iterable[str]) -> str | Bad:
    for token in refused:
        if token in text:
            return Bad(f"special token {token!r} in the text", text[:200])
    return text


def encode_documents(
    texts: Sequence[str], tokenizer: Tokenizer, options: BuildOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Texts -> documents: ids with the special tokens asked for, in the store's dtype, and lengths; empty ones left out."""
    ids, lengths = tokenizer.encode_batch(texts)
    if ids.size and int(ids.max()) >= tokenizer.vocab_size:
        raise BuildError(
            f"token id: expected ids below {tokenizer.vocab_size}, found {ids.max()}; the tokenizer's vocabulary and engine disagree"
        )
    starts = np.cumsum(lengths) - lengths
    start_id, end_id = special_ids(tokenizer, options)
    places = [starts] * (start_id is not None) + [starts + lengths] * (end_id is not None)
    values = [start_id] * (start_id is not None) + [end_id] * (end_id is not None)
    if not options.keep_empty:  # a tokenizer may find no token in a text
        kept = lengths > 0
        places, lengths = [place[kept] for place in places], lengths[kept]
    if places:  # document by document: at one place, insert keeps the end of one before the start of the next
        order = np.arange(len(places) * lengths.size).reshape(len(places), -1).T.ravel()
        ids = np.insert(ids, np.concatenate(places)[order], np.repeat(values, lengths.size)[order])
    lengths = lengths + len(places)
    return ids.astype(token_dtype(tokenizer.vocab_size), copy=False), lengths[lengths > 0]


def special_ids(tokenizer: Tokenizer, options: BuildOptions) -> tuple[int | None, int | None]:
    """Ids put before and after every document; ConfigError if the tokenizer lacks one that was asked for."""
    start = {"none": None, "eos": tokenizer.eos_id, "bos": tokenizer.bos_id}[options.document_start]
    end = tokenizer.eos_id if options.eos else None
    if options.eos and end is None:
        listed = ", ".join(map(repr, tokenizer.special_tokens[:20])) or "none"
        raise ConfigError(
            f"eos: expected to know the end-of-text token, found none named; give --eos-token (special tokens: {listed}) or --no-eos"
        )
    if options.document_start != "none" and start is None:
        raise ConfigError(
            f"document start: expected a {options.document_start} token, found none in the tokenizer; use --document-start none"
        )
    return start, end


def _tokens_file(stem: Path) -> Path:
    return stem.with_suffix(".tokens")


def _lengths_file(stem: Path) -> Path:
    return stem.with_suffix(".lengths")


def _summary_file(stem: Path) -> Path:
    return stem.with_suffix(".json")
