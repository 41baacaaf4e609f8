"""The cache folder: which stores have a mirror, what is removed for another one, and what a mirror keeps."""

import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import random_documents, write_store
from tests.support.servers.range_server import RangeServer
from tests.support.stores.at_urls import cached_files, files_of, plan_at
from tokenstore import Plan, RemoteOptions, TokenLoader, open_store
from tokenstore.errors import ConfigError
from tokenstore.store.remote import mirror_file, mirrors
from tokenstore.store.remote.mirror_file import ABSENT, DURABLE, WRITTEN, MirrorFile, UnusableMirror
from tokenstore.store.remote.mirrors import choose_transport
from tokenstore.store.remote.options import ResolvedOptions


def options(cache: Path, limit: int | None = None, transport: str = "auto") -> ResolvedOptions:
    return ResolvedOptions(cache, limit, transport, 10)


def folder(cache: Path, digit: str) -> Path:
    return cache / "mirror" / f"{digit * 32}-{1 << 20}-300000"


def mirror_of(path: Path, num_bytes: int) -> mirrors.MirrorFolder:
    """A mirror with one file that is full, in use as long as the result exists."""
    used = mirrors.MirrorFolder(path)
    file = MirrorFile(used.file("tokens-00000.bin"), num_bytes, 1 << 16, "x")
    for block in range(file.num_blocks):
        start, stop = file.range_of(block)
        file.write(block, memoryview(bytes(stop - start)))
    return used


def test_a_store_that_fits_gets_a_mirror(tmp_path: Path) -> None:
    own = folder(tmp_path, "a")
    assert choose_transport(options(tmp_path, 1000), own, 1000, "s3://b") == "mirror"
    assert choose_transport(options(tmp_path, 1000), own, 1001, "s3://b") == "spans"
    assert choose_transport(options(tmp_path), own, 1000, "s3://b") == "mirror"
    assert choose_transport(options(tmp_path), own, 1 << 60, "s3://b") == "spans"
    assert choose_transport(options(tmp_path, 1000, "spans"), own, 1, "s3://b") == "spans"


def test_only_a_mirror_that_was_demanded_is_refused_with_the_number_needed(tmp_path: Path) -> None:
    says = (
        "the tokens of this store take 1,001 bytes, and the cache may hold 1,000 .*a cache_limit of 1,001 bytes or more"
    )
    with pytest.raises(ConfigError, match=says):
        choose_transport(options(tmp_path, 1000, "mirror"), folder(tmp_path, "a"), 1001, "s3://b")
    with pytest.raises(ConfigError, match=r"its disk has .* left"):
        choose_transport(options(tmp_path, 1 << 61, "mirror"), folder(tmp_path, "a"), 1 << 60, "s3://b")


def test_mirrors_that_nobody_uses_make_room_the_oldest_first(tmp_path: Path) -> None:
    """Nothing else is removed: no mirror in use, no unknown file, no other folder."""
    kept = {digit: mirror_of(folder(tmp_path, digit), 300_000) for digit in "abc"}
    (folder(tmp_path, "b") / "notes.txt").write_text("mine")
    (tmp_path / "mirror" / "other").mkdir()
    (tmp_path / "mirror" / "other" / "tokens-00000.bin.blocks").write_text("mine")
    del kept["b"], kept["c"]
    os.utime(folder(tmp_path, "c") / "in-use", (1, 1))
    assert choose_transport(options(tmp_path, 1_100_000), folder(tmp_path, "d"), 300_000, "s3://b") == "mirror"
    assert [path.parent.name[0] for path in cached_files(tmp_path)] == ["a", "b", "o"]
    assert choose_transport(options(tmp_path, 700_000), folder(tmp_path, "d"), 300_000, "s3://b") == "mirror"
    assert [path.parent.name[0] for path in cached_files(tmp_path)] == ["a", "o"]
    assert (folder(tmp_path, "b") / "notes.txt").read_text() == "mine"
    assert choose_transport(options(tmp_path, 500_000), folder(tmp_path, "d"), 300_000, "s3://b") == "spans"


@pytest.mark.parametrize("digit", "ab")
def test_files_that_another_process_removes_meanwhile_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digit: str
) -> None:
    """A rank may drop blocks while another one starts, in its own folder or in that of another store."""
    block = folder(tmp_path, digit) / "0-9.block"
    block.parent.mkdir(parents=True)
    real, listed = mirrors._own_files, list[Path]()

    def own_files(path: Path) -> list[Path]:
        block.write_bytes(bytes(5000))
        found = real(path)
        block.unlink()
        listed.extend(found)
        return found

    monkeypatch.setattr(mirrors, "_own_files", own_files)
    assert mirrors.make_room(options(tmp_path, 10_000), folder(tmp_path, "a"), 9000) == ("", 9000)
    assert listed


def test_a_mirror_in_use_counts_as_a_whole(tmp_path: Path) -> None:
    """Although nothing of it is there yet: two stores that fill at the same time stay within the limit."""
    used = mirrors.MirrorFolder(folder(tmp_path, "a"))
    assert choose_transport(options(tmp_path, 600_000), folder(tmp_path, "b"), 300_000, "s3://b") == "mirror"
    assert choose_transport(options(tmp_path, 599_999), folder(tmp_path, "b"), 300_000, "s3://b") == "spans"
    del used
    assert choose_transport(options(tmp_path, 599_999), folder(tmp_path, "b"), 300_000, "s3://b") == "mirror"


def test_a_smaller_limit_removes_the_stores_own_mirror(tmp_path: Path) -> None:
    own = folder(tmp_path, "a")
    used = mirror_of(own, 300_000)
    assert choose_transport(options(tmp_path, 100_000), own, 300_000, "s3://b") == "spans"
    assert cached_files(tmp_path)  # in use by another run
    del used
    assert choose_transport(options(tmp_path, 100_000), own, 300_000, "s3://b") == "spans"
    assert not own.exists()


def _use(path: Path, ready: Any, leave: Any) -> None:
    used = mirrors.MirrorFolder(path)
    ready.set()
    leave.wait(60)
    del used


def test_a_mirror_is_in_use_as_long_as_its_process_lives(tmp_path: Path) -> None:
    own = folder(tmp_path, "a")
    mirror_of(own, 1000)
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=_use, args=(own, ready, leave))
    process.start()
    ready.wait(60)
    assert not mirrors._remove_unused(own)
    process.kill()
    process.join()
    assert mirrors._remove_unused(own)


def test_a_network_disk_is_no_place_for_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = f"1 2 0:1 / / rw - ext4 x rw\n1 2 0:1 / {tmp_path} rw - nfs4 server:/x rw\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: lines)
    with pytest.raises(ConfigError, match=r"is on a network file system \(nfs4\); a mirror needs a local disk"):
        choose_transport(options(tmp_path, None, "mirror"), folder(tmp_path, "a"), 1, "s3://b")
    assert mirrors._network(Path("/")) == ""


# ---- one file


def test_a_block_is_present_once_it_is_whole(tmp_path: Path) -> None:
    """Another user of the file sees it, also after the first has gone."""
    file, other = (MirrorFile(tmp_path / "x.blocks", 5000, 2048, "x") for _ in range(2))
    assert file.marks.tolist() == [ABSENT] * 3
    mapped = other.map()
    file.write(2, memoryview(b"a" * 904))
    assert other.marks.tolist() == [ABSENT, ABSENT, WRITTEN]
    assert mapped[4096:].tobytes() == b"a" * 904
    file.write(0, memoryview(b"b" * 2048))
    file.write(1, memoryview(b"c" * 2048))
    assert other.is_complete
    assert other.marks.tolist() == [DURABLE] * 3  # flushed, because it is complete
    assert MirrorFile(tmp_path / "x.blocks", 5000, 2048, "x").map().tobytes() == b"b" * 2048 + b"c" * 2048 + b"a" * 904


def test_after_a_crash_of_the_machine_only_flushed_blocks_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_file, "SYNC_AFTER", 2)
    file = MirrorFile(tmp_path / "x.blocks", 8000, 2048, "x")
    for block in (0, 1, 2):
        file.write(block, memoryview(bytes(2048)))
    assert file.marks.tolist() == [DURABLE, DURABLE, WRITTEN, ABSENT]
    monkeypatch.setattr(mirror_file, "boot_id", lambda: b"another".ljust(36))
    assert MirrorFile(tmp_path / "x.blocks", 8000, 2048, "x").marks.tolist() == [DURABLE, DURABLE, ABSENT, ABSENT]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: bytes(len(data)), lambda data: data + b"."])
def test_a_file_of_another_content_is_made_again(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.blocks"
    file = MirrorFile(path, 5000, 2048, "x")
    file.write(0, memoryview(b"a" * 2048))
    path.write_bytes(change(path.read_bytes()))
    assert MirrorFile(path, 5000, 2048, "x").marks.tolist() == [ABSENT] * 3
    with pytest.raises(UnusableMirror, match="it was replaced"):
        file.write(1, memoryview(bytes(2048)))
    assert MirrorFile(path, 5000, 2048, "y").marks.tolist() == [ABSENT] * 3


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "x.blocks").symlink_to(tmp_path / "target")
    with pytest.raises(UnusableMirror):
        MirrorFile(tmp_path / "x.blocks", 5000, 2048, "x")
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_a_claim_excludes_others_and_ends_with_its_owner(tmp_path: Path) -> None:
    file, other = (MirrorFile(tmp_path / "x.blocks", 5000, 2048, "x") for _ in range(2))
    with file.claimed(1) as mine:
        assert mine
        with other.claimed(1) as second, other.claimed(2) as third:
            assert (second, third) == (False, True)
    with other.claimed(1) as mine:
        assert mine


# ---- a store


def test_documents_come_from_the_mirror_too(range_server: RangeServer, tmp_path: Path) -> None:
    documents = random_documents(1, 300, 40)
    path = write_store(tmp_path / "s", documents)
    range_server.add_folder("bucket/s", path)
    plan = plan_at("s3://bucket/s", tmp_path / "cache", {"packing": "concat"}, transport="mirror")
    loader = TokenLoader(plan, rank=0, world_size=1)
    for _ in range(30):
        next(loader)
    assert files_of(plan).mirror.is_complete  # type: ignore[union-attr]
    range_server.log.clear()
    assert [plan.stores["s"][i].tolist() for i in range(0, 300, 7)] == documents[::7]
    assert not range_server.gets("tokens-")


def test_the_transport_is_no_part_of_a_plan(range_server: RangeServer, tmp_path: Path) -> None:
    """Fingerprint, states and batches are those of the local store."""
    path = write_store(tmp_path / "s", random_documents(1, 300, 40))
    range_server.add_folder("bucket/s", path)
    fields: dict[str, Any] = {
        "sequence_length": 64,
        "global_batch_size": 8,
        "seed": 3,
        "num_steps": 20,
        "packing": "concat",
    }
    plans = [Plan.of(str(path), **fields)]
    plans += [
        plan_at("s3://bucket/s", tmp_path / "cache", fields, transport=each) for each in ("spans", "mirror", "auto")
    ]
    assert len({plan.fingerprint for plan in plans}) == 1
    assert all(plan.state(7) == plans[0].state(7) for plan in plans)
    assert all(np.array_equal(plan.batch(3)["targets"], plans[0].batch(3)["targets"]) for plan in plans)
    assert [files_of(plan).transport for plan in plans[1:]] == ["spans", "mirror", "mirror"]
    small = RemoteOptions(cache=tmp_path / "small", cache_limit=10)
    with open_store("s3://bucket/s", remote=small) as store:
        assert store.token_files.transport == "spans"  # type: ignore[union-attr]


def test_the_limit_that_a_refusal_names_is_large_enough(tmp_path: Path) -> None:
    """Stores in use count, so the size of the refused store alone would be refused again."""
    used = mirror_of(folder(tmp_path, "a"), 300_000)
    with pytest.raises(ConfigError, match="of which other stores in use take ") as refused:
        choose_transport(options(tmp_path, 400_000, "mirror"), folder(tmp_path, "b"), 300_000, "s3://b")
    limit = int(re.search(r"a cache_limit of ([0-9,]+) bytes", str(refused.value))[1].replace(",", ""))
    assert choose_transport(options(tmp_path, limit, "mirror"), folder(tmp_path, "b"), 300_000, "s3://b") == "mirror"
    assert used


@pytest.mark.parametrize(
    "option", [{"deadline": "x"}, {"deadline": 0}, {"cache": 3}, {"cache_limit": -1}, {"transport": 3}], ids=str
)
def test_invalid_options_are_refused_by_name(option: dict[str, Any]) -> None:
    """A ConfigError, so that a command prints it without a traceback."""
    with pytest.raises(ConfigError, match=f"^{next(iter(option))}: expected "):
        RemoteOptions(**option)


def test_invalid_environment_variables_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same error as that of the option."""
    monkeypatch.setenv("TOKENSTORE_DEADLINE", "x")
    with pytest.raises(ConfigError, match="TOKENSTORE_DEADLINE: expected a number of seconds"):
        RemoteOptions().resolved()


def test_marks_have_space_on_the_disk_before_they_are_mapped(tmp_path: Path) -> None:
    """Otherwise a mark on a full disk would kill the process (SIGBUS)."""
    file = MirrorFile(tmp_path / "x", 40_000 * 4096, 4096, "x")
    tail = file.path.stat().st_size - mirror_file.PAGE_BYTES - file.num_blocks
    with file.path.open("rb") as opened:
        assert os.lseek(opened.fileno(), tail, os.SEEK_HOLE) == file.path.stat().st_size
    assert file.path.stat().st_blocks * 512 < 100_000
