"""Reads a tar archive of texts as samples, as WebDataset does: consecutive files that differ only in their endings are one sample.

Python's own reader is not used for the stream: it believes the sizes in extended headers, so a small compressed file could make
it take all memory, and it accepts an archive that is truncated between two members.
"""

import re
import tarfile
from collections.abc import Iterator

from tokenstore.builder.reading.decompress import CHUNK, Stream

KEY = "__key__"  # field with the name of a sample
_BLOCK = 512
_MOST_EXTENDED = 1 << 20  # bytes of an extended header; a path takes some hundreds
_PAX_LINE = re.compile(rb"(\d{1,7}) ")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"


class Sample:
    """Members of an archive with one name: `files` holds, by ending, the bytes of each that is wanted; None if too long."""

    def __init__(self, key: str):
        self.key = key
        self.files: dict[str, bytes | None] = {}


class TarReader:
    """Iterates over the samples of an archive.

    Args:
        stream: the archive, decompressed.
        endings: of the members to read, without a dot. Others are skipped, and counted in `skipped`.
        max_bytes: a sample whose files are longer in total has None instead of the file that exceeds it.

    Raises (while iterating):
        EOFError: the archive is truncated.
        ValueError: it is damaged.
    """

    def __init__(self, stream: Stream, endings: frozenset[str], max_bytes: int):
        self._stream, self._endings, self._max_bytes = stream, endings, max_bytes
        self.skipped: dict[str, int] = {}
        self.num_samples = 0

    def __iter__(self) -> Iterator[Sample]:
        sample: Sample | None = None
        for name, size in self._members():
            key, ending = _key_and_ending(name)
            if ending not in self._endings:
                self.skipped[ending] = self.skipped.get(ending, 0) + 1
                self._skip(size)
                continue
            if sample is None or sample.key != key or ending in sample.files:
                if sample is not None:
                    yield sample
                sample, used = Sample(key), 0
                self.num_samples += 1
            used += size
            sample.files[ending] = self._read(size) if used <= self._max_bytes else None
            if sample.files[ending] is None:
                self._skip(size)
            else:
                self._skip(-size % _BLOCK, padded=True)
        if sample is not None:
            yield sample
        while rest := self._stream.read(CHUNK):
            if rest.strip(b"\0"):
                raise ValueError("more data after the end of the archive; unpack it, or make one archive of its files")

    def _members(self) -> Iterator[tuple[str, int]]:
        """(name, size) of each regular file. Its data must be read or skipped before the next."""
        extended: dict[str, str] = {}
        while (header := self._read(_BLOCK)).strip(b"\0"):
            try:
                info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise ValueError(f"a member of the archive: {error}") from error
            if info.size < 0:
                raise ValueError("a member of the archive: a negative size")
            if info.type in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
                extended |= self._extended(info)
                continue
            name, size = extended.get("path", info.name), int(extended.get("size", info.size))
            extended = {}
            if info.type == tarfile.GNUTYPE_SPARSE:
                raise ValueError(f"{name[:100]!r} is a sparse file; make the archive without --sparse")
            if info.isreg():
                yield name, size
            elif info.type not in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE):
                self._skip(size)

    def _extended(self, info: tarfile.TarInfo) -> dict[str, str]:
        if info.size > _MOST_EXTENDED:
            raise ValueError(f"an extended header of {info.size} bytes; at most {_MOST_EXTENDED} are allowed")
        data = self._read(info.size)
        self._skip(-info.size % _BLOCK, padded=True)
        if info.type == _LONG_NAME:
            return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
        return _pax(data) if info.type == _PAX else {}

    def _read(self, size: int) -> bytes:
        """Exactly `size` bytes; EOFError if there are fewer. Memory follows what is there, not what a header says."""
        parts = []
        while size:
            part = self._stream.read(min(size, CHUNK))
            if not part:
                raise EOFError("the end in the middle of the archive")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _skip(self, size: int, padded: bool = False) -> None:
        """Skip the data of a member, and its padding unless `size` is that."""
        left = size if padded else size + -size % _BLOCK
        while left:
            part = self._stream.read(min(left, CHUNK))
            if not part:
                raise EOFError("the end in the middle of the archive")
            left -= len(part)


def _pax(data: bytes) -> dict[str, str]:
    """The path and size that an extended header gives."""
    found, at = {}, 0
    while match := _PAX_LINE.match(data, at):
        length = int(match[1])
        line = data[match.end() : at + length]
        name, equals, value = line.removesuffix(b"\n").partition(b"=")
        if length <= 0 or at + length > len(data) or not equals:
            break
        if name.startswith(b"GNU.sparse"):
            raise ValueError("a sparse file; make the archive without --sparse")
        if name == b"path":
            found["path"] = value.decode("utf-8", "surrogateescape")
        elif name == b"size":
            if not value.isdigit() or len(value) > 18:
                raise ValueError("a member of the archive: a size that is no number")
            found["size"] = value.decode()
        at += length
    if at != len(data):
        raise ValueError("a member of the archive: an extended header that cannot be read")
    return found


def _key_and_ending(name: str) -> tuple[str, str]:
    """`a/b/0.1.txt` is ("a/b/0.1", "txt"); of a hidden file the ending is "", which is never wanted."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, dot, ending = base.rpartition(".")
    return folder + slash + (stem if dot else base), ending.lower() if stem and not base.startswith(".") else ""
