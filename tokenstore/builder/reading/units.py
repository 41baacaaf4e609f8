"""Cuts inputs into units of work, independent of the number of workers. A worker tokenizes a unit into a part."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenstore.builder.reading.inputs import InputFile

MIN_UNIT_BYTES, MAX_UNIT_BYTES = 4 << 20, 16 << 20  # some seconds of tokenizing, so that a killed build loses little
_MANY_UNITS = 64  # aimed for, so that all workers have some
MAX_GROUP_UNIT_BYTES, _UNITS_OF_GROUP = 256 << 20, 64  # fewer files and longer units, for millions of them
UNIT_FILES = 4096
_CUTTABLE = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Slice:
    """A part of an input: the lines that begin in bytes [start, stop), or the row groups placed there.

    Attributes:
        file_number: index of the input.
        start: first byte.
        stop: byte after the last; None for the end of the file.
    """

    file_number: int
    start: int = 0
    stop: int | None = None


Unit = tuple[Slice, ...]


def slice_bytes(part: Slice, file: InputFile) -> int:
    """Number of bytes of `file` in its slice `part`."""
    return (file.num_bytes if part.stop is None else part.stop) - part.start


def unit_size(files: Sequence[InputFile]) -> int:
    """Bytes per unit: a power of two, so that adding a little input leaves most units, and their parts, unchanged."""
    wanted = sum(file.num_bytes for file in files) // _MANY_UNITS
    return min(max(1 << (wanted - 1).bit_length(), MIN_UNIT_BYTES), MAX_UNIT_BYTES)


def group_unit_bytes(group_bytes: int) -> int:
    """Bytes per unit of a build in groups: the store's bytes depend on it, so it follows from the size of a group alone."""
    return max(1, min(group_bytes // _UNITS_OF_GROUP, MAX_GROUP_UNIT_BYTES))


def cut_units(files: Sequence[InputFile], unit_bytes: int | None = None) -> list[Unit]:
    """Cut `files` into units, in order.

    Small files are grouped, large .jsonl (not compressed) and .parquet files cut by byte ranges, other large ones kept whole.
    """
    unit_bytes = unit_size(files) if unit_bytes is None else unit_bytes
    units: list[Unit] = []
    group: list[Slice] = []
    room = unit_bytes
    for number, file in enumerate(files):
        if group and (file.num_bytes > room or len(group) == UNIT_FILES):
            units.append(tuple(group))
            group, room = [], unit_bytes
        if file.format in _CUTTABLE and not file.compression and file.num_bytes > unit_bytes:
            starts = range(0, file.num_bytes, unit_bytes)
            units += [(Slice(number, start, min(start + unit_bytes, file.num_bytes)),) for start in starts]
            continue
        group.append(Slice(number))
        room -= file.num_bytes
    return [*units, tuple(group)] if group else units
