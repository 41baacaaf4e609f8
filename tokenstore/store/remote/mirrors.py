"""The mirrors of a cache folder: one folder for each store, and the rule that decides whether a store may have one.

    CACHE/mirror/<start of the digest>-<block size>-<bytes of the store>/tokens-00000.bin.blocks ...
    and in the same folder `in-use`, which its users lock

The blocks of lanes (`block_files`) are in folders of such names too, with a block size of 0 and the bytes that they may take.

Only files of these names are ever removed, and only in folders that no process uses. The lock of a process ends with it.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from time import sleep

from tokenstore.errors import ConfigError, counted
from tokenstore.paths import is_folder
from tokenstore.store.files import free_bytes
from tokenstore.store.remote.mirror_file import UnusableMirror
from tokenstore.store.remote.options import ResolvedOptions
from tokenstore.store.writing import create_if_missing, make_folders, remove, remove_empty_folder

BLOCK_BYTES = 1 << 20  # a multiple of the blocks that checksums are for (FMT-15)
_SUFFIX, _IN_USE = ".blocks", "in-use"
_ATTEMPTS, _PAUSE = 100, 0.02  # to use a folder that another process is removing
_FOLDER = re.compile(r"[0-9a-f]{32}-[0-9]+-([0-9]+)")
_FILE = re.compile(
    r"(?:(?:tokens|mask)-[0-9]{5,}\.bin\.blocks|[0-9]{1,19}-[0-9]{1,19}\.block)(?:\.[0-9a-f.-]+\.tokenstore-tmp)?|locks"
)
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|beegfs|ceph|afs|9p|glusterfs|fuse\.(?:s3fs|gcsfuse|sshfs|goofys|juicefs|rclone|"
    r"mount-s3|mountpoint-s3|blobfuse2?|glusterfs|ceph|wekafs)|wekafs|panfs|orangefs"
)


class MirrorFolder:
    """The folder of the mirror of a store, marked as used as long as this object exists.

    Attributes:
        path: the folder.
        writable: whether files can be created in it.
    """

    def __init__(self, path: Path):
        """Create the folder if it is missing, and mark it as used.

        Raises:
            UnusableMirror: it cannot be created.
        """
        self.path = path
        self._mark = -1
        try:
            self._use()
        except OSError as error:
            raise UnusableMirror(f"cannot use {self.path}: {error.strerror}") from error
        self.writable = _is_writable(path)

    def _use(self) -> None:
        """Hold a shared lock on `in-use`. A process that cleans up may be removing the file."""
        mark = self.path / _IN_USE
        for _ in range(_ATTEMPTS):
            make_folders(self.path)
            create_if_missing(mark)
            descriptor = os.open(mark, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if _locked(descriptor, fcntl.LOCK_SH) is not False and os.fstat(descriptor).st_nlink:
                self._mark = descriptor
                break
            os.close(descriptor)
            sleep(_PAUSE)
        else:
            raise UnusableMirror(f"cannot use {self.path}: another process is removing it")
        with contextlib.suppress(OSError):
            os.utime(mark)  # the time of the last use

    def __del__(self) -> None:
        if getattr(self, "_mark", -1) >= 0:
            os.close(self._mark)

    def file(self, name: str) -> Path:
        """The path of a mirrored file."""
        return self.path / (name + _SUFFIX)


def folder_of(cache: Path, digest: str, block_bytes: int, num_bytes: int) -> Path:
    """The folder of the mirror of the store with this digest, whose token and mask files have `num_bytes` bytes."""
    return cache / "mirror" / f"{digest[:32]}-{block_bytes}-{num_bytes}"


def choose_transport(options: ResolvedOptions, folder: Path, num_bytes: int, where: str) -> str:
    """Decide how the tokens of a store travel: "mirror" if that was demanded or the store fits into the cache, or "spans".

    Mirrors of other stores that no process uses are removed, the least recently used first, as far as the limit requires.

    Args:
        options: what was requested.
        folder: of the store's mirror.
        num_bytes: size of its token and mask files.
        where: the store's URL, for messages.

    Raises:
        ConfigError: a mirror was demanded, and the store does not fit.
    """
    if options.transport in ("spans", "blocks"):  # a source without lanes has no blocks
        return "spans"
    problem, needed = make_room(options, folder, num_bytes)
    if problem and options.transport == "mirror":
        raise ConfigError(
            f"transport mirror: the tokens of this store take {num_bytes:,} bytes, and {problem} ({where}); use another cache or"
            f" a cache_limit of {needed:,} bytes or more, or the transport auto or spans"
        )
    return "spans" if problem else "mirror"


def expected_transport(options: ResolvedOptions, folder: Path, num_bytes: int, lane_bytes: int = 0) -> tuple[str, str]:
    """What a run will use if no other run uses the cache, and why nothing is kept. Nothing is removed.

    Args:
        options: what was requested.
        folder: of the store's mirror.
        num_bytes: size of the store's token and mask files.
        lane_bytes: what the blocks of its lanes take; 0 for a store that is not read in lanes.
    """
    if options.transport in ("spans", "mirror"):
        return options.transport, ""
    if options.transport == "blocks":
        return ("blocks" if lane_bytes else "spans"), ""
    first = next(path for path in (folder, *folder.parents) if is_folder(path))
    if kind := _network(first):
        return "spans", f"the cache is on a network file system ({kind})"
    room = mirror_room(options, folder)
    if 0 < lane_bytes < num_bytes:
        return ("blocks", "") if lane_bytes <= room else ("spans", f"the cache may hold {room:,} bytes")
    return ("mirror", "") if num_bytes <= room else ("spans", f"the cache may hold {room:,} bytes")


def mirror_room(options: ResolvedOptions, folder: Path) -> int:
    """The bytes that all mirrors in the cache may take together, if no other run uses it."""
    first = next(path for path in (folder, *folder.parents) if is_folder(path))
    used, free = sum(_allocated(path) for path in _folders(folder.parent)), free_bytes(first)
    limit = (free + used) // 2 if options.cache_limit is None else options.cache_limit
    return min(limit, free + used)


def make_room(options: ResolvedOptions, own: Path, num_bytes: int) -> tuple[str, int]:
    """Remove unused folders of the cache until `own` can take `num_bytes`.

    Returns: why they do not fit, or ""; and a limit that is large enough.
    """
    try:
        return _make_room(options, own, num_bytes)
    except OSError as error:
        return f"the cache cannot be used: {error.strerror} ({options.cache})", num_bytes


def _make_room(options: ResolvedOptions, own: Path, num_bytes: int) -> tuple[str, int]:
    root = own.parent
    first = next(path for path in (root, *root.parents) if is_folder(path))
    if kind := _network(first):
        return (
            f"its folder {options.cache} is on a network file system ({kind}); a mirror needs a local disk",
            num_bytes,
        )
    held = {path: _allocated(path) for path in _folders(root) if path != own}
    sizes = {path: max(_needed(path), held[path]) for path in held}
    mine = _allocated(own)
    if not _is_writable(first):
        return ("" if mine else f"the cache is read-only ({options.cache})"), num_bytes
    free, used = free_bytes(first), sum(sizes.values())
    limit = (free + sum(held.values()) + mine) // 2 if options.cache_limit is None else options.cache_limit
    wanted = num_bytes if num_bytes <= limit else 0
    free -= used - sum(held.values())  # what mirrors in use will still take
    for path in sorted(sizes, key=_last_use):
        if used + wanted <= limit and wanted - mine <= free:
            break
        if _remove_unused(path):
            used, free = used - sizes[path], free + held[path]
    if num_bytes + used > limit:
        if mine:
            _remove_unused(own)  # what an earlier run with a larger limit has left
        others = f", of which other stores in use take {used:,}" if used else ""
        return f"the cache may hold {limit:,}{others} ({options.cache})", num_bytes + used
    if num_bytes - mine > free:
        return f"its disk has {counted(max(free, 0), 'byte')} left ({options.cache})", num_bytes + used
    return "", num_bytes + used


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=True)


def _folders(root: Path) -> Iterator[Path]:
    """The folders of mirrors in a cache."""
    if is_folder(root):
        yield from (path for path in root.iterdir() if _FOLDER.fullmatch(path.name) and not os.path.islink(path))


def _own_files(folder: Path) -> list[Path]:
    """The files of a mirror; none if it was removed."""
    with contextlib.suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if _FILE.fullmatch(path.name)]
    return []


def _allocated(folder: Path) -> int:
    """Bytes of disk that a mirror takes now. Other processes may be removing files of it."""
    total = 0
    for path in _own_files(folder) if is_folder(folder) else ():
        with contextlib.suppress(FileNotFoundError):
            total += 512 * os.lstat(path).st_blocks
    return total


def _needed(folder: Path) -> int:
    """Bytes that a mirror takes now, or will take if a process is filling it."""
    name = _FOLDER.fullmatch(folder.name)
    return int(name[1]) if name and _is_used(folder) else _allocated(folder)


def _is_used(folder: Path) -> bool:
    """Whether a process uses a mirror."""
    try:
        descriptor = os.open(folder / _IN_USE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _locked(descriptor, fcntl.LOCK_EX) is False
    finally:
        os.close(descriptor)


def _last_use(folder: Path) -> float:
    try:
        return os.lstat(folder / _IN_USE).st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_unused(folder: Path) -> bool:
    """Remove a mirror that no process uses. False if one does, or it cannot be removed."""
    mark = folder / _IN_USE
    try:
        descriptor = os.open(create_if_missing(mark), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not _locked(descriptor, fcntl.LOCK_EX):
                return False
            for path in _own_files(folder):
                remove(path)
            remove(mark)
            remove_empty_folder(folder)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _locked(descriptor: int, how: int) -> bool | None:
    """Try to lock an open file, without waiting. None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _network(path: Path) -> str:
    """The type of the network file system that `path` is on; empty for a local disk."""
    place, kind = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    full = os.path.realpath(path)
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = fields.split(" ")[4].replace("\\040", " ")
        if (full == mount or full.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(place):
            place, kind = mount, rest.split(" ")[0]
    return kind if _NETWORK.fullmatch(kind) else ""
