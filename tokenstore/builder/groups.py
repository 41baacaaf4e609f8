"""Groups of units, for builds too large for one process to copy every token again: `group_bytes` of input each.

A group is a store of its own, without a length index, in `building/groups/<key>/<split>`. The process that finds all parts of a
group finished writes it, and then removes what is large in the parts. So tokens are written in their final form by whoever
finishes a group, and `join` only links the shards of all groups and concatenates the files with an entry per document.

With `dedup`, no group can be written before all parts are known. Then there are three steps: all parts; the duplicates, by ranges
of hashes (dedup.py); the groups. A task does its share of each step that is possible, and is run again for the next one.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore.builder.assemble import DROPPED, Tally, assemble, new_writer
from tokenstore.builder.dedup import Duplicates
from tokenstore.builder.options import MOST, BuildOptions
from tokenstore.builder.part import FILES, Part
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.schedule import PART_NAME, Schedule, Task
from tokenstore.builder.stores import Place, Writers
from tokenstore.errors import BuildError, CorruptionError
from tokenstore.format.input_lines import InputRow, encode_row
from tokenstore.format.layout import token_dtype
from tokenstore.format.manifest import canonical_json
from tokenstore.store.files import read_bytes
from tokenstore.store.private import private_folder, publish
from tokenstore.store.writer import FileWriter
from tokenstore.store.writing import own_folder, remove, remove_tree, write_atomically

_GROUP_NAME = "group.json"
_MOST_JSON = 1 << 30
_TRIES = 10


@dataclass(frozen=True)
class Group:
    """Consecutive units that become a store of their own.

    Attributes:
        units: their numbers in the schedule.
        key: hash of everything that decides its bytes.
        folder: where it is when it is finished.
    """

    units: range
    key: str
    folder: Path


@dataclass(frozen=True)
class Counts:
    """What a finished group says about itself.

    Attributes:
        documents: for each store, {number of an input: its documents}.
        duplicates: {number of an input: documents that equal an earlier one}.
    """

    documents: Sequence[dict[int, int]]
    duplicates: dict[int, int]


def groups_of(schedule: Schedule, ranges: Sequence[range], folder: Path, dedup: bool) -> list[Group]:
    """The groups of a schedule of all units, in `folder`."""
    everything = hashlib.sha256("".join(schedule.keys).encode()).hexdigest() if dedup else ""
    made = []
    for units in ranges:
        key = hashlib.sha256(canonical_json([everything, *(schedule.keys[i] for i in units)]).encode()).hexdigest()
        made.append(Group(units, key, folder / key[:PART_NAME]))
    return made


def load_counts(group: Group) -> Counts | None:
    """What a finished group holds; None if it is not finished."""
    try:
        found = json.loads(read_bytes(group.folder / _GROUP_NAME, _MOST_JSON))
        if found["key"] != group.key:
            return None
        documents = [dict(map(tuple, each)) for each in found["documents"]]
        return Counts(documents, dict(map(tuple, found["duplicates"])))
    except (CorruptionError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write_group(
    group: Group,
    schedule: Schedule,
    files: Sequence[InputFile],
    options: BuildOptions,
    vocab_size: int,
    side_files: dict[str, bytes],
    fields: Sequence[dict[str, Any]],
    duplicates: Duplicates | None,
) -> None:
    """Write a group from its parts, all of which are finished, and remove what is large in them.

    Args:
        group: to write.
        schedule: with its parts.
        files: the inputs.
        options: of the build.
        vocab_size: of its tokenizer.
        side_files: see `recipe.side_files`.
        fields: of the manifest of each store.
        duplicates: of all units; None without `dedup`.
    """
    parts = [part for i in group.units if (part := schedule.done[i]) is not None]
    units = [schedule.units[i] for i in group.units]
    first = None
    if duplicates is not None:
        begin = sum(part.num_documents for part in schedule.done[: group.units.start] if part is not None)
        first = duplicates.first_in(begin, begin + sum(part.num_documents for part in parts))
    own_folder(group.folder.parent)
    try:
        with private_folder(group.folder) as private:
            tally = Tally(files, BytesIO())
            _write_stores(private, parts, units, tally, options, vocab_size, side_files, fields, first)
            write_atomically(private / _GROUP_NAME, _encoded(group, tally, len(fields)).encode())
            _publish(private, group)
    except FileNotFoundError:
        if load_counts(group) is None:  # else another process wrote it meanwhile, and removed the parts
            raise
    for part in parts:
        for name in FILES:
            if name != "bad":
                remove(part.folder / name)


def _publish(private: Path, group: Group) -> None:
    for _ in range(_TRIES):
        if publish(private, group.folder) or load_counts(group) is not None:
            return
        remove_tree(group.folder)
    raise BuildError(
        f"group: {group.folder} is changed again and again by another process; end it and run the same command again"
    )


def _write_stores(
    folder: Path,
    parts: Sequence[Part],
    units: Sequence[Any],
    tally: Tally,
    options: BuildOptions,
    vocab_size: int,
    side_files: dict[str, bytes],
    fields: Sequence[dict[str, Any]],
    first: np.ndarray | None,
) -> None:
    """One store per split; none for a split without documents here."""
    writers: list[FileWriter] = []

    def new(place: Place) -> FileWriter:
        writers.append(new_writer(folder / str(len(writers)), vocab_size, options))
        return writers[-1]

    try:
        stores = Writers(replace(options, max_bad=MOST), new)
        assemble(parts, units, tally, stores, token_dtype(vocab_size), None, first)
        for number, (writer, given) in enumerate(zip(writers, fields, strict=True)):
            if writer.num_documents:
                for name, data in side_files.items():
                    writer.add_file(name, data)
                used = np.flatnonzero(tally.of(number)).tolist()
                rows = [encode_row(InputRow(tally.files[i].name, int(tally.of(number)[i])), {}) for i in used]
                writer.finish(inputs=b"".join(rows), counts=tally.counts(number), **given)
    finally:
        for writer in writers:
            writer.__exit__(None, None, None)
    for number, writer in enumerate(writers):
        if not writer.num_documents:
            remove_tree(folder / str(number))


def _encoded(group: Group, tally: Tally, num_stores: int) -> str:
    documents = [_nonzero(tally.of(store)) for store in range(num_stores)]
    duplicates = _nonzero(tally.dropped[DROPPED.index("duplicates")])
    return canonical_json({"key": group.key, "documents": documents, "duplicates": duplicates})


def _nonzero(numbers: np.ndarray) -> list[list[int]]:
    return [[int(i), int(numbers[i])] for i in np.flatnonzero(numbers)]


def ranges_of(unit_bytes: Sequence[int], group_bytes: int) -> list[range]:
    """Cut units into groups of at most `group_bytes` of input, or of one larger unit."""
    ranges: list[range] = []
    start = room = 0
    for number, num_bytes in enumerate(unit_bytes):
        if number > start and num_bytes > room:
            ranges.append(range(start, number))
            start = number
        room = (group_bytes if number == start else room) - num_bytes
    return [*ranges, range(start, len(unit_bytes))] if unit_bytes else []


def share_of(ranges: Sequence[range], task: Task) -> list[tuple[int, range]]:
    """The groups of a task, and the numbers of the units it makes in each. If there are more tasks than groups, several tasks
    share a group, and the one that makes its last part writes it.
    """
    count = len(ranges)
    if task.of <= count:
        return [(group, ranges[group]) for group in range(task.number, count, task.of)]
    group, place = task.number % count, task.number // count
    return [(group, ranges[group][place :: len(range(group, task.of, count))])] if count else []


def owners_of(ranges: Sequence[range], of: int) -> dict[int, int]:
    """The task, of `of`, that makes each unit."""
    count = len(ranges)
    found = {}
    for group, units in enumerate(ranges):
        sharers = max(1, len(range(group, of, count)))
        for place, unit in enumerate(units):
            found[unit] = group % of if of <= count else group + count * (place % sharers)
    return found
