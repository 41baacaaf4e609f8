"""Giving a store its length index while the disk fails, the process dies or the directory is closed (P8): the store stays whole."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.privileges import NOBODY, open_folder, unprivileged
from tokenstore.errors import TokenStoreError
from tokenstore.store import added_files, open_store, verify
from tokenstore.store.length_index import add_length_index


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 300 documents in some shards, without a length index."""
    return write_store(tmp_path / "s", random_documents(1, 300, 40), shard_bytes=2000)


# ---- a disk that fails


def test_a_full_disk_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: no room for the file is an error that says so, not a signal; the store reads on, and the next run writes it."""
    before = contents(path)
    with monkeypatch.context() as patch:

        def full(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(
            TokenStoreError, match=r"length index: cannot write .*length_index\.bin: No space left on device"
        ):
            add_length_index(path)
    after = contents(path)
    assert {name: after[name] for name in before} == before
    assert verify(path) == []
    assert not list(path.parent.glob("s.*"))
    assert add_length_index(path)
    assert verify(path) == []


def test_a_full_disk_is_not_kept_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: what was written of the order goes again where it cannot be finished."""
    before = contents(path)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TokenStoreError):
        add_length_index(path)
    assert contents(path) == before


CALLS = ("posix_fallocate", "fsync", "replace", "fchmod")


def test_a_disk_that_fails_at_any_call_leaves_a_whole_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: whichever call fails, the store is sound with or without an order, and the next run ends in the same bytes."""
    spare = path.with_name("spare")
    shutil.copytree(path, spare)
    add_length_index(spare)
    expected = contents(spare)
    failures = 0
    while True:
        made: list[str] = []

        def counted(name: str, made: list[str] = made, fail_at: int = failures) -> Callable:
            real = getattr(os, name)

            def call(*arguments: object, **options: object) -> object:
                made.append(name)
                if len(made) - 1 == fail_at:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return real(*arguments, **options)

            return call

        shutil.rmtree(spare)
        shutil.copytree(path, spare)
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, counted(name))
            try:
                assert add_length_index(spare)
                break
            except TokenStoreError as error:
                message = str(error)
        failures += 1
        assert ": Input/output error; fix the cause and run `tokenstore index` again" in message
        assert verify(spare) == []
        assert len(list(open_store(spare))) == 300
        add_length_index(spare)
        assert contents(spare) == expected
        assert verify(spare) == []
    assert set(made) == set(CALLS)
    assert failures > 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_kill_before_the_manifest_leaves_a_store_that_the_next_run_completes(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """P8: the file has its name and the manifest does not know it: a store without order, sound, until it is run again."""

    def die(*arguments: object, **options: object) -> None:
        raise error

    before = (path / "manifest.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(added_files, "write_atomically", die)
        with pytest.raises(error):
            add_length_index(path)
    assert (path / "length_index.bin").exists()
    assert (path / "manifest.json").read_bytes() == before
    assert not open_store(path).has_length_index
    assert verify(path) == []
    assert add_length_index(path)
    assert open_store(path).has_length_index
    assert verify(path) == []


def test_an_interruption_on_the_way_leaves_the_store(path: Path) -> None:
    """P8: interrupted while counting or while placing, the store is as it was, its lock free, and the next run whole."""
    for share in (1, 2):

        def interrupt(done: int, total: int, share: int = share) -> None:
            if done * 2 >= total * share:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            add_length_index(path, interrupt)
        assert not open_store(path).has_length_index
        assert verify(path) == []
    assert add_length_index(path)
    assert verify(path) == []


# ---- a directory that may not be written


@pytest.fixture
def public() -> Iterator[Path]:
    """A store in a folder of nobody's, which tests open without root's right to write everywhere."""
    with open_folder() as folder:
        path = write_store(folder / "s", random_documents(1, 30, 20))
        if os.geteuid() == 0:
            for file in (folder, path, *path.iterdir()):
                os.chown(file, NOBODY, NOBODY)
        yield path


@unprivileged()
@pytest.mark.parametrize("closed", ["store", "folder"])
def test_a_directory_that_may_not_be_written_is_an_error(public: Path, closed: str) -> None:
    """The message names the file, why, and what to do; the store reads on."""
    (public if closed == "store" else public.parent).chmod(0o555)
    with pytest.raises(
        TokenStoreError,
        match=rf"cannot write {public}(/length_index\.bin\.tokenstore-tmp|\.tokenstore): Permission denied.*; fix the cause",
    ):
        add_length_index(public)
    assert verify(public) == []
    assert not list(public.parent.glob("s.*"))


@unprivileged()
def test_a_store_that_has_its_order_needs_no_directory_to_write(public: Path) -> None:
    """`index stores/*` on a read-only disk is fine where there is nothing to do."""
    assert add_length_index(public)
    public.parent.chmod(0o555)
    assert not add_length_index(public)


@unprivileged()
def test_a_run_killed_before_the_rename_is_taken_up(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: who is not root may run it again after a kill between the file's mode and its name."""

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(added_files, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            add_length_index(public)
    assert add_length_index(public)
