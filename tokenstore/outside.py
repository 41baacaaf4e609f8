"""Layer 0: read files that a stranger may have made. They cannot block the reader, nor make it read without end.

A pipe or a device is refused, and so is a file above its limit, whatever size the file system reports. The limits are
all here. Each is far above what real files need, and low enough that parsing such a file does no harm.
"""

import os
import stat
from io import FileIO
from pathlib import Path

MAX_TOKENIZER_BYTES = 256 << 20  # the largest published tokenizer.json files have about 40 MB
MAX_SIDE_FILE_BYTES = 16 << 20  # tokenizer_config.json, chat_template.jinja
MAX_PLAN_BYTES = 1 << 20  # a thousand sources take about 100 KB
MAX_RECIPE_BYTES = 16 << 20  # recipe.json of an unfinished build, state.json of a `save_to_disk` folder
MAX_INPUT_ROW_BYTES = 64 << 10  # one line of inputs.jsonl; a path has at most 4,096 bytes
MANIFEST_BYTES, MANIFEST_BYTES_PER_FILE = 1 << 20, 1 << 10  # a file takes about 230 bytes, a long name 400

ANYWHERE = Path("/")  # as `allow_links`: links may lead to any place

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotUsable(OSError):
    """What is there is not a file to read: not regular, too large, or a link to a forbidden place. `strerror` says what."""

    def __init__(self, found: str, path: Path, is_link: bool = False):
        super().__init__(None, found, str(path))
        self.is_link = is_link


def resolve_inside(path: Path, allow_links: Path | None) -> Path:
    """The file to open for `path`: itself, or what it is a link to.

    Args:
        path: a file; if it is a symbolic link, its target must be inside the folder of `path`, all links resolved.
        allow_links: another folder where the target may be; `ANYWHERE`: no rule.

    Raises: NotUsable: the link leads to another place.
    """
    if allow_links == ANYWHERE or not path.is_symlink():
        return path
    target = os.path.realpath(path)
    folders = [path.parent] if allow_links is None else [path.parent, allow_links]
    if not any(target.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders):
        raise NotUsable(f"a link to {target[:200]}, outside of the store", path, is_link=True)
    return Path(target)


def stat_file(path: Path, allow_links: Path | None = ANYWHERE) -> os.stat_result:
    """What the system knows about the regular file at `path`. OSError if there is none, NotUsable if it is something else."""
    found = os.stat(path) if allow_links == ANYWHERE else os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        found = os.lstat(resolve_inside(path, allow_links))
    _check_regular(found, path)
    return found


def open_file(path: Path, allow_links: Path | None = ANYWHERE) -> FileIO:
    """The regular file at `path`, unbuffered, to read. OSError if there is none, NotUsable if it is something else."""
    stat_file(path, allow_links)  # opening a device may already do something
    # Without O_NONBLOCK a pipe that was put here since would block; O_NOFOLLOW, for the same reason, on a resolved path
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if allow_links == ANYWHERE else os.O_NOFOLLOW)
    descriptor = os.open(resolve_inside(path, allow_links), flags)
    try:
        _check_regular(os.fstat(descriptor), path)
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, max_bytes: int, allow_links: Path | None = ANYWHERE) -> bytes:
    """All bytes of the regular file at `path`, of at most `max_bytes`. OSError or NotUsable as in `open_file`."""
    with open_file(path, allow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise NotUsable(f"a file of {size:,} bytes, which may have {max_bytes:,}", path)
        parts: list[bytes] = []
        left = max_bytes + 1  # the size may be wrong: files of /proc have 0, others grow
        while left and (part := os.read(file.fileno(), min(left, size + 1 if not parts else 1 << 16))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise NotUsable(f"a file that grows beyond {max_bytes:,} bytes", path)
    return b"".join(parts)


def _check_regular(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
        raise NotUsable(f"{kind} instead of a regular file", path)
