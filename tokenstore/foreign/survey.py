"""Reads a foreign index once, before any token is read: it must be possible, and must it be copied?"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenstore.foreign.reading import Documents, ForeignReader, TokenFile, refuse

_SAMPLE = 1000  # documents whose last token is looked at before all tokens are read


@dataclass(frozen=True)
class Survey:
    """What an index says about a token file.

    Attributes:
        num_documents: documents with tokens.
        num_empty: documents without tokens.
        num_tokens: tokens of all documents.
        is_whole: whether the documents follow each other from the first token of the file to the last.
        has_ids: whether any document has an id.
        sample: int64[n], last tokens (positions) of some documents.
    """

    num_documents: int
    num_empty: int
    num_tokens: int
    is_whole: bool
    has_ids: bool
    sample: np.ndarray


def survey(file: TokenFile, documents: Iterator[Documents]) -> Survey:
    """Check every document of an index against its token file. BuildError if one is outside of it, or they overlap."""
    end = total = count = number = 0
    is_whole, has_ids = True, False
    sample: list[np.ndarray] = []
    for block in documents:
        kept = np.flatnonzero(block.lengths)
        starts, lengths = block.starts[kept], block.lengths[kept]
        stops = starts + lengths
        wrong = np.flatnonzero((starts < 0) | (stops > file.num_tokens))[:1].tolist()
        if wrong:
            place = f"document {number + int(kept[wrong[0]])}"
            rule = f"a part of tokens 0..{file.num_tokens} of {file.path.name}"
            raise refuse(place, rule, f"{starts[wrong[0]]}..{stops[wrong[0]]}", file.index[0])
        total += int(lengths.sum())
        if total > file.num_tokens:
            raise refuse(
                "documents", f"at most {file.num_tokens} tokens in all", f"{total}, so they overlap", file.index[0]
            )
        if kept.size:
            is_whole &= bool((starts == np.append(end, stops[:-1])).all())
            end = int(stops[-1])
            sample.append(stops[:: max(1, kept.size // 50)] - 1)
        has_ids = has_ids or (block.ids is not None and any(block.ids))
        count, number = count + kept.size, number + block.lengths.size
    if count == 0:
        raise refuse("documents", "at least one with tokens", "none", file.index[0])
    return Survey(count, number - count, total, is_whole and end == file.num_tokens, has_ids, _thin(sample))


def _thin(sample: list[np.ndarray]) -> np.ndarray:
    found = np.concatenate(sample)
    return found[:: -(-found.size // _SAMPLE)]


def share_of_eos(file: TokenFile, sample: np.ndarray, eos_id: int) -> float:
    """Share of the sampled tokens that are the end-of-text token."""
    with ForeignReader(file.path) as reader:
        found = [
            int(reader.array(file.dtype.str, file.first_byte + int(at) * file.dtype.itemsize, 1)[0]) for at in sample
        ]
    return found.count(eos_id) / max(len(found), 1)


def runs(documents: Iterator[Documents]) -> Iterator[tuple[int, int]]:
    """The documents of an index as runs [start, stop) of contiguous tokens, in their order."""
    start = stop = 0
    for block in documents:
        kept = np.flatnonzero(block.lengths)
        if not kept.size:
            continue
        starts, ends = block.starts[kept], block.starts[kept] + block.lengths[kept]
        first = np.flatnonzero(starts != np.append(stop, ends[:-1]))
        for begin, end in zip(starts[first].tolist(), np.append(stop, ends)[first].tolist(), strict=True):
            if end > start:
                yield start, end
            start = begin
        stop = int(ends[-1])
    if stop > start:
        yield start, stop


def looks_wider(file: TokenFile) -> bool:
    """Whether a file that is read as uint16 looks like uint32: every second number of its beginning is nearly always 0."""
    if file.dtype.itemsize != 2 or file.num_tokens < 64:
        return False
    with ForeignReader(file.path) as reader:
        tokens = reader.array("<u2", file.first_byte, min(file.num_tokens, 1 << 14) & ~1)
    low, high = tokens[0::2], tokens[1::2]
    return bool(np.count_nonzero(high > 15) == 0 and np.count_nonzero(low > 15) > low.size // 2)
