"""Errors of the disk while a store is written, as one message."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenstore.errors import BuildError
from tokenstore.store.files import free_bytes


@contextmanager
def disk_errors(output: Path, advice: str) -> Iterator[None]:
    """Turn OSError into BuildError, which names the file, the free space at `output`, and what to do."""
    try:
        yield
    except OSError as error:
        try:
            free = f"{free_bytes(output.parent) >> 20} MB free there"
        except OSError:
            free = "its free space unknown"
        place = error.filename or output
        raise BuildError(f"disk: {error.strerror or error}: {place} ({free}); {advice}") from error


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """`disk_errors` of a build. To KeyboardInterrupt it adds that the same command resumes."""
    try:
        with disk_errors(output, "finished work is kept: fix the cause and run the same command again to resume"):
            yield
    except KeyboardInterrupt as stop:
        stop.add_note("the same command resumes")
        raise
