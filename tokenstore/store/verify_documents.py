"""What `verify` reports, and its checks of the files with one entry per document: length index, origins, ids (FMT-9, 11, 12)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenstore.errors import TokenStoreError
from tokenstore.format.layout import (
    DOCUMENT_INPUTS_NAME,
    IDS_NAME,
    INPUTS_NAME,
    LENGTH_INDEX_NAME,
    MAX_ID_BYTES,
    METADATA_NAME,
    ORIGINS_NAME,
)
from tokenstore.store.reader import Store

_BLOCK = 1 << 22  # documents, or bytes of ids, checked at once
_CONTINUATION = 0b10  # the highest two bits of a UTF-8 continuation byte


@dataclass(frozen=True)
class Finding:
    """One defect of a store: the file, the place in it, what was expected there and what was found."""

    file: str
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: expected {self.expected}, found {self.found}"


def check_length_index(store: Store) -> Iterator[Finding]:
    """In every run the document numbers must increase and have the run's length: then each document occurs exactly once."""
    name = store.file(LENGTH_INDEX_NAME).name
    try:
        lengths, run_starts = store.runs().T
    except TokenStoreError as error:
        yield Finding(name, "runs", "every length once", str(error))
        return
    starts, order = store.boundaries(), store.length_index()
    for first in range(0, len(store), _BLOCK):
        ids = order[first : first + _BLOCK].astype(np.int64)
        places = np.arange(first, first + ids.size)
        runs = np.searchsorted(run_starts, places, side="right") - 1
        known = (ids >= 0) & (ids < len(store))
        ids = np.where(known, ids, 0)
        previous = order[max(first - 1, 0)] if first else -1
        after = np.append(previous, ids[:-1]) < ids
        wrong = np.flatnonzero(
            ~known | (starts[ids + 1] - starts[ids] != lengths[runs]) | ~(after | (places == run_starts[runs]))
        )
        if wrong.size:
            i = int(wrong[0])
            rule = f"a document of {lengths[runs[i]]} tokens, after those before it"
            yield Finding(name, f"place {first + i}", rule, f"{order[first + i]}")
            return


def check_metadata(store: Store) -> Iterator[Finding]:
    """Every batch must be sound, and there must be a row per document."""
    try:
        for _ in store.metadata_rows():
            pass
    except TokenStoreError as error:
        yield Finding(store.file(METADATA_NAME).name, "metadata", f"{len(store)} sound rows", str(error))


def check_document_inputs(store: Store) -> Iterator[Finding]:
    """Every input must have as many documents as its line says."""
    name, numbers = store.file(DOCUMENT_INPUTS_NAME).name, store.document_inputs()
    try:
        expected = np.diff(store.inputs().ends, prepend=0)
    except TokenStoreError as error:
        yield Finding(store.file(INPUTS_NAME).name, "documents", f"{len(store)} over all inputs", str(error))
        return
    found = np.zeros(expected.size, np.int64)
    for first in range(0, len(store), _BLOCK):
        block = numbers[first : first + _BLOCK]
        wrong = np.flatnonzero((block < 0) | (block >= expected.size))
        if wrong.size:
            yield Finding(name, f"document {first + wrong[0]}", f"one of {expected.size} inputs", f"{block[wrong[0]]}")
            return
        found += np.bincount(block, minlength=expected.size)
    for number in np.flatnonzero(found != expected)[:1].tolist():
        yield Finding(name, f"input {number}", f"{expected[number]} documents", f"{found[number]}")


def check_origins(store: Store, inputs_are_sound: bool) -> Iterator[Finding]:
    """Record numbers must be at least 1, and the documents of the inputs must add up."""
    for first in range(0, len(store), _BLOCK):
        records = store.origins()[first : first + _BLOCK]
        wrong = np.flatnonzero(records < 1)
        if wrong.size:
            i = int(wrong[0])
            place = f"document {first + i}"
            yield Finding(store.file(ORIGINS_NAME).name, place, "the number of a record, from 1", f"{records[i]}")
            break
    if inputs_are_sound:
        try:
            store.inputs()
        except TokenStoreError as error:
            yield Finding(store.file(INPUTS_NAME).name, "documents", f"{len(store)} over all inputs", str(error))


def check_ids(store: Store) -> Iterator[Finding]:
    """Ids must be contiguous from the first byte to the last, at most MAX_ID_BYTES long, and UTF-8."""
    name = store.file(IDS_NAME).name
    starts, text = store.ids()
    if starts[0] != 0 or starts[-1] != text.size:
        yield Finding(name, "ends", f"0 and {text.size}", f"{starts[0]} and {starts[-1]}")
    for first in range(0, len(store), _BLOCK):
        ends = starts[first : first + _BLOCK + 1]
        sizes, inside = np.diff(ends), (ends >= 0) & (ends <= text.size)  # sizes may overflow where not inside
        wrong = np.flatnonzero(~inside[:-1] | ~inside[1:] | (sizes < 0) | (sizes > MAX_ID_BYTES))
        if wrong.size:
            i = int(wrong[0])
            rule = f"at most {MAX_ID_BYTES} of bytes 0..{text.size}"
            yield Finding(name, f"id of document {first + i}", rule, f"{ends[i]}..{ends[i + 1]}")
            return
    yield from _check_text(store, name, starts, text)


def _check_text(store: Store, name: str, starts: np.ndarray, text: np.ndarray) -> Iterator[Finding]:
    """Every id must be UTF-8: the text of each block must be, and no id may begin inside a character. The starts increase."""
    first = 0
    while first < len(store):
        stop = int(np.searchsorted(starts[: len(store)], starts[first] + _BLOCK))
        begins = starts[first:stop]
        begins = begins[begins < text.size]
        if (text[begins] >> 6 == _CONTINUATION).any() or not _is_text(text[starts[first] : starts[stop]]):
            for i in range(first, stop):
                found = text[starts[i] : starts[i + 1]]
                if not _is_text(found):
                    yield Finding(name, f"id of document {i}", "UTF-8", ascii(found[:60].tobytes()))
                    return
        first = stop


def _is_text(data: np.ndarray) -> bool:
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True
