"""Layer 0: reading untrusted files. Such a file can neither block the reader nor make it read without limit.

Pipes and devices are rejected, and so is a file larger than its limit, whatever size the file system reports. All limits are
defined here. Each is far above the size of real files, and low enough that parsing a file of that size is harmless.
"""

import os
import stat
from io import FileIO
from pathlib import Path

MAX_TOKENIZER_BYTES = 256 << 20  # the largest published tokenizer.json files are about 40 MB
MAX_SIDE_FILE_BYTES = 16 << 20  # tokenizer_config.json, chat_template.jinja
MAX_PLAN_BYTES = 1 << 20  # a thousand sources take about 100 KB
MAX_RECIPE_BYTES = 16 << 20  # recipe.json of an unfinished build, state.json of a `save_to_disk` directory
MAX_INPUT_ROW_BYTES = 64 << 10  # one line of inputs.jsonl; a path is at most 4,096 bytes
MANIFEST_BYTES, MANIFEST_BYTES_PER_FILE = (
    1 << 20,
    1 << 10,
)  # an entry for a file takes about 230 bytes, 400 with a long name
MAX_REMOTE_MANIFEST_BYTES = 128 << 20  # of a store at a URL, where nobody counts the files: half a million shards

ANYWHERE = Path("/")  # as `allow_links`: links may lead anywhere

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotUsable(OSError):
    """The path is not a file that can be read: not a regular file, too large, or a forbidden link. `strerror` says which."""

    def __init__(self, found: str, path: Path, is_link: bool = False):
        super().__init__(None, found, str(path))
        self.is_link = is_link


def resolve_inside(path: Path, allow_links: Path | None) -> Path:
    """The file to open for `path`: the path itself, or the target of the link at `path`.

    Args:
        path: a file; if it is a symbolic link, its target must be inside the directory of `path`, with all links resolved.
        allow_links: another directory that may contain the target; `ANYWHERE` allows every target.

    Raises:
        NotUsable: the link leads elsewhere.
    """
    if allow_links == ANYWHERE or not path.is_symlink():
        return path
    target = os.path.realpath(path)
    folders = [path.parent] if allow_links is None else [path.parent, allow_links]
    if not any(target.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders):
        raise NotUsable(f"a link to {target[:200]}, outside of the store", path, is_link=True)
    return Path(target)


def stat_file(path: Path, allow_links: Path | None = ANYWHERE) -> os.stat_result:
    """`os.stat` of the regular file at `path`. OSError if there is none, NotUsable if it is not a regular file."""
    return _look_at(path, allow_links)[1]


def _look_at(path: Path, allow_links: Path | None) -> tuple[Path, os.stat_result]:
    """The file to open for `path`, and what `stat_file` returns for it."""
    target, found = path, os.stat(path) if allow_links == ANYWHERE else os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        target = resolve_inside(path, allow_links)
        found = os.lstat(target)
    _check_regular(found, path)
    return target, found


def open_file(path: Path, allow_links: Path | None = ANYWHERE) -> FileIO:
    """Open the regular file at `path` for reading, unbuffered. OSError if there is none, NotUsable if it is not a regular file."""
    target, _ = _look_at(path, allow_links)  # before opening: opening a device can have effects
    # The path may have been replaced since: O_NONBLOCK so that a pipe does not block, O_NOFOLLOW against a new link
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if allow_links == ANYWHERE else os.O_NOFOLLOW)
    descriptor = os.open(target, flags)
    try:
        _check_regular(os.fstat(descriptor), path)
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, max_bytes: int, allow_links: Path | None = ANYWHERE) -> bytes:
    """All bytes of the regular file at `path`, at most `max_bytes`. OSError or NotUsable as in `open_file`."""
    with open_file(path, allow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise NotUsable(f"a file of {size:,} bytes; at most {max_bytes:,} are allowed", path)
        parts: list[bytes] = []
        left = max_bytes + 1  # the size may be wrong: it is 0 in /proc, and files grow
        while left and (part := os.read(file.fileno(), min(left, size + 1 if not parts else 1 << 16))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise NotUsable(f"a file that grew beyond {max_bytes:,} bytes while it was read", path)
    return b"".join(parts)


def _check_regular(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
        raise NotUsable(f"{kind} instead of a regular file", path)
