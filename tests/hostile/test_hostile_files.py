"""Files of a store that have a wrong size, are not regular, or cannot be read (P9): the error names them; nothing
blocks.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.privileges import open_folder, unprivileged
from tests.support.stores.forge import replace
from tests.support.stores.hostile_stores import check_message, make_fifo, make_small, refused
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.store import open_store, verify

pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit


@pytest.mark.parametrize("name", ["boundaries.bin", "tokens-00000.bin", "tokens-00003.bin"])
def test_every_truncation_of_index_and_shards_is_refused(tmp_path: Path, name: str) -> None:
    """P9: every shorter length, and a longer one, is detected at open; with check="lazy", before the file is used."""
    path = make_small(tmp_path / "s")
    sound = (path / name).read_bytes()
    for content in (*(sound[:size] for size in range(len(sound))), sound + b"\0", sound + sound):
        replace(path / name, content)
        with pytest.raises(CorruptionError) as caught:
            open_store(path)
        check_message(caught.value, path / name, f"found {len(content)}", "copy or build the store again")
        with pytest.raises(CorruptionError) as caught:
            list(open_store(path, check="lazy"))
        check_message(caught.value, path / name)
    assert any(name in str(finding) for finding in verify(path))


def test_a_side_file_of_a_wrong_size_is_refused_at_open(tmp_path: Path) -> None:
    """P9: this includes files that reading does not need."""
    path = make_small(tmp_path / "s")
    replace(path / "inputs.jsonl", b"{}\n")
    refused(path, "inputs.jsonl")


def make_socket(path: Path) -> None:
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path may have a hundred characters
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "fifo": make_fifo,
    "socket": make_socket,
    "directory": lambda path: path.mkdir(),
    "link to dev zero": lambda path: path.symlink_to("/dev/zero"),
    "link to dev null": lambda path: path.symlink_to("/dev/null"),
    "link to a fifo": lambda path: (make_fifo(path.parent.parent / "pipe"), path.symlink_to("../pipe")),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to its folder": lambda path: path.symlink_to("."),
}


@pytest.mark.parametrize("name", ["manifest.json", "boundaries.bin", "tokens-00000.bin", "inputs.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_or_device_is_refused_without_blocking(tmp_path: Path, name: str, kind: str) -> None:
    """P9: a pipe or device in place of any file blocks neither opening, reading, planning nor verify."""
    path = make_small(tmp_path / "s")
    (path / name).unlink()
    KINDS[kind](path / name)
    refused(path, name)
    if name.startswith("tokens"):
        with open_store(path, check="lazy") as store:
            with pytest.raises(TokenStoreError) as caught:
                store[0]
            check_message(caught.value, path / name)
            assert store[29].size  # in another shard
    elif name == "inputs.jsonl":
        with open_store(path, check="lazy") as store:
            assert len(list(store)) == 30


@pytest.fixture
def public_store() -> Iterator[Path]:
    """A small store in a folder that every user may enter."""
    with open_folder() as folder:
        yield make_small(folder / "s")


@pytest.mark.parametrize("name", ["manifest.json", "boundaries.bin", "tokens-00000.bin"])
def test_an_unreadable_file_is_reported_by_name(public_store: Path, name: str) -> None:
    """P9: a missing permission is not damage: the error names the file and says to check permissions or limits."""
    (public_store / name).chmod(0)
    with unprivileged():
        with pytest.raises(TokenStoreError, match="Permission denied") as caught:
            list(open_store(public_store))
        assert type(caught.value) is TokenStoreError
        check_message(caught.value, public_store / name, "check")
        assert any(name in str(finding) and "Permission denied" in str(finding) for finding in verify(public_store))


def test_an_inaccessible_folder_is_reported_by_name(public_store: Path) -> None:
    """P9: an inaccessible store, or one in an inaccessible folder, is not reported as missing or damaged."""
    public_store.chmod(0)
    with unprivileged():
        for path in (public_store, public_store / "inside"):
            with pytest.raises(TokenStoreError, match="Permission denied") as caught:
                open_store(path)
            check_message(caught.value, path, "check the path and its permissions")
            assert "Permission denied" in str(verify(path)[0])


def test_a_read_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an input/output error of the manifest or a shard is a TokenStoreError that names the file."""
    path = make_small(tmp_path / "s")
    store = open_store(path)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.read", fail)
        with pytest.raises(TokenStoreError, match="Input/output error") as caught:
            open_store(path)
        check_message(caught.value, path / "manifest.json")
    with monkeypatch.context() as patch:
        patch.setattr("os.open", fail)
        with pytest.raises(TokenStoreError, match="Input/output error") as caught:
            store.shard(1)
        check_message(caught.value, path / "tokens-00001.bin")
