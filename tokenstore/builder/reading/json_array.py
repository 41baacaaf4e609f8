"""Cuts a JSON array into its items, without holding more than one of them in memory.

Only the structure is read here: strings, and the depth of brackets. Whether an item is valid JSON is decided when it is parsed,
so one wrong item is one bad record and not the end of the file.
"""

import re
from collections.abc import Iterator

from tokenstore.builder.reading.decompress import CHUNK, Stream

_BLANK = b" \t\r\n"
_STRUCTURE = re.compile(rb'["\[\]{},]')
_STRING_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BOM = b"\xef\xbb\xbf"


class ArrayItems:
    """Iterates over the items of a JSON array, each as bytes, or None for an item of more than `max_bytes` bytes.

    Raises (while iterating):
        EOFError: the array is not complete.
        ValueError: something follows the array, or a closing bracket has no opening one.
    """

    def __init__(self, stream: Stream, max_bytes: int):
        self._stream, self._max_bytes = stream, max_bytes
        self._data = b""  # from the start of the current item; of an item that is too long, only its unread end
        self._too_long = False

    def __iter__(self) -> Iterator[bytes | None]:
        self._data = self._stream.read(CHUNK).removeprefix(_BOM).lstrip(_BLANK)
        while not self._data:
            if not self._more():
                raise EOFError("the end before the array begins")
            self._data = self._data.lstrip(_BLANK)
        self._data = self._data[1:]
        is_first = True
        while True:
            stop = self._find_end()
            item = None if self._too_long else self._data[:stop].strip(_BLANK)
            is_last = self._data[stop : stop + 1] == b"]"
            self._data, self._too_long = self._data[stop + 1 :], False
            if item != b"" or not (is_last and is_first):  # [] has no item
                yield item
            is_first = False
            if is_last:
                break
        while True:
            if self._data.strip(_BLANK):
                raise ValueError(f"{self._data.strip(_BLANK)[:40]!r} after the end of the array")
            self._data = b""
            if not self._more():
                return

    def _find_end(self) -> int:
        """The position in `_data` of the comma or bracket that ends the current item."""
        at, depth = 0, 0
        while True:
            found = _STRUCTURE.search(self._data, at)
            if found is None:
                at = self._continue(len(self._data), len(self._data))
                continue
            mark, after = found[0], found.end()
            if mark == b'"':
                end = _STRING_END.match(self._data, after)
                # A string that is not complete is read again from its start, with more data. Chunks double, so this is linear
                at = end.end() if end else self._in_string(found.start())
            elif mark in b"[{":
                depth, at = depth + 1, after
            elif depth and mark in b"]}":
                depth, at = depth - 1, after
            elif mark == b"}":
                raise ValueError("} without {")
            elif not depth:
                return found.start()
            else:
                at = after

    def _in_string(self, start: int) -> int:
        """Read on within a string that begins at `start`; returns where to search again."""
        if not self._too_long:
            return self._continue(start, start)
        # The rest of a long item is not kept: find the end of the string chunk by chunk
        self._data = self._data[start + 1 :]
        while not (end := _STRING_END.match(self._data)):
            backslashes = len(self._data) - len(self._data.rstrip(b"\\"))
            self._data = self._data[len(self._data) - backslashes % 2 :]
            if not self._more():
                raise EOFError("the end inside a string")
        return end.end()

    def _continue(self, at: int, keep_from: int) -> int:
        """Read more data; returns the new position of `at`. Of an item that is too long, nothing before `keep_from` is kept."""
        if len(self._data) > self._max_bytes:
            self._too_long = True
        if self._too_long:
            self._data = self._data[keep_from:]
            at -= keep_from
        if not self._more():
            raise EOFError("the end before the end of the array")
        return at

    def _more(self) -> bool:
        data = self._stream.read(max(CHUNK, min(len(self._data), 16 * CHUNK)))
        self._data += data
        return bool(data)
