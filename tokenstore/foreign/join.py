"""Writes token files as one stream, so that a document that continues in the next file stays one document."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenstore.foreign.cuts import EosCut
from tokenstore.foreign.files_writer import AdoptedWriter, Count
from tokenstore.foreign.scan import Scan


class Joiner:
    """Writes one shard for each file in which a document begins; it ends where the first document of the next file begins.

    Attributes:
        documents: documents that begin in each file.
        joined: documents that continued in another file.
    """

    def __init__(self, writer: AdoptedWriter, cutter: EosCut, scan: Scan, eos_id: int, count: Count):
        """Write to `writer` what `scan` finds with `cutter`."""
        self._writer, self._cutter, self._scan, self._eos_id, self._count = writer, cutter, scan, eos_id, count
        self.documents: list[int] = []
        self.joined = 0
        writer.start()
        self._out = writer.new_shard()
        self._first = 0  # number of the file in which the shard begins

    def add_file(self, path: Path, blocks: Iterator[np.ndarray]) -> None:
        """Write the tokens of the next file."""
        self._scan.path = path
        is_open, continued = bool(self.documents), False
        self.documents.append(0)
        for block in blocks:
            if is_open:
                size, has_ended = self._continued(block)
                self._write(block[:size])
                continued = continued or size > 0
                if not has_ended:
                    continue
                self._next_shard()
                block, is_open = block[size:], False
            self._write(block)
        self.joined += continued

    def finish(self) -> None:
        """End the last shard."""
        self._scan.end_of_file()
        if self._writer.shard_tokens:
            self._seal()
        else:
            self._out.discard()

    def abandon(self) -> None:
        """Close the open file."""
        self._out.abandon()

    def _continued(self, block: np.ndarray) -> tuple[int, bool]:
        """How many tokens of a block belong to the document that began in an earlier file, and whether it ends there."""
        if not self._cutter.before and self._scan.last_is_eos:
            return 0, True
        found = np.flatnonzero(block == self._eos_id)
        if not found.size:
            return block.size, False
        return int(found[0]) + (0 if self._cutter.before else 1), True

    def _write(self, block: np.ndarray) -> None:
        if block.size:
            self._writer.add_written(self._out, iter([block]), self._scan, self._count)

    def _next_shard(self) -> None:
        """End the document, and the shard if it holds any: the next document begins in the present file."""
        self._writer.add(self._scan.end_document(self._cutter), 0)
        if self._writer.shard_tokens:
            self._seal()
            self._out = self._writer.new_shard()
        self._first = len(self.documents) - 1

    def _seal(self) -> None:
        self._writer.seal(self._out)
        self.documents[self._first] += self._writer.shards[-1].num_documents
        self._cutter.restart()
