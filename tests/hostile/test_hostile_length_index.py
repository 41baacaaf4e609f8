"""Damaged length indexes (P9, FMT-9): what is read is the document's own, or an error names the file; never a crash.

The sweeps run twice: here, and in a process of their own.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.forge import flip, forge, replace
from tests.support.stores.length_index_damage import LENGTH, SWEEPS, make_store, plan_of, sweep
from tokenstore.errors import CorruptionError, TokenStoreError
from tokenstore.store import open_store, verify

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)  # a hang is a failure long before the suite's own limit


@pytest.mark.parametrize("what", sorted({*SWEEPS} - {"flips"}))  # all flips are below
def test_a_damaged_length_index_is_found_and_never_followed(what: str, tmp_path: Path) -> None:
    """P9: verify names the file; batches are right, or an error names the file and what to run."""
    path = make_store(tmp_path)
    assert sweep(path, SWEEPS[what](path)) > 100


@pytest.mark.deep
def test_no_damage_crashes_the_process(tmp_path: Path) -> None:
    """P9: all sweeps in a separate process end with return code 0: no segmentation fault, abort or hang."""
    code = "import sys, pathlib; from tests.support.stores.length_index_damage import sweep_all; print(sweep_all(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 500


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_flipped_bit_is_found_and_never_followed(tmp_path: Path) -> None:
    """P9: all bits of length_index.bin, one by one."""
    path = make_store(tmp_path)
    sound = (path / "length_index.bin").read_bytes()
    assert sweep(path, (flip(sound, bit) for bit in range(8 * len(sound)))) == 8 * len(sound)


@pytest.mark.parametrize(
    "more", [-16, -8, -1, 1, 8, 16, 10**9, 2**62, 2**70, -(2**70), "none", "all", "numbers", "null"]
)
def test_a_wrong_size_in_the_manifest_is_refused(tmp_path: Path, more: int | str) -> None:
    """P9, FMT-9: neither an impossible size nor one that differs from the file is accepted."""
    path = make_store(tmp_path)
    sound = (path / "length_index.bin").stat().st_size
    size = (
        {"none": 0, "all": 104 + 26 * 16, "numbers": 104, "null": None}[more] if isinstance(more, str) else sound + more
    )
    forge(path, lambda body: body["files"]["length_index.bin"].update(num_bytes=size))
    for check in ("sizes", "lazy"):
        with pytest.raises(CorruptionError) as error:
            open_store(path, check=check).runs()
        assert "length_index.bin" in str(error.value)
    with pytest.raises(CorruptionError):
        plan_of(path, {"packing": "best_fit"})
    assert any("length_index.bin" in str(finding) for finding in verify(path))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """P9: every shorter length, and a longer one, is detected at open; with check="lazy", before the file is used."""
    path = make_store(tmp_path)
    sound = (path / "length_index.bin").read_bytes()
    for content in (*(sound[:size] for size in range(0, len(sound), 7)), sound[:-1], sound + b"\0", sound * 2):
        replace(path / "length_index.bin", content)
        for ask in (lambda: open_store(path), lambda: open_store(path, check="lazy").length_index()):
            with pytest.raises(
                CorruptionError, match=rf"file size: expected {len(sound)} bytes, found {len(content)} "
            ):
                ask()
        assert [finding.file for finding in verify(path)] == ["length_index.bin"]


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "link to dev zero": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_or_device_is_refused_without_blocking(tmp_path: Path, kind: str) -> None:
    """P9: in place of the length index. `concat` does not need it, and continues if the store is open already."""
    path = make_store(tmp_path)
    concat = plan_of(path, {"packing": "concat"})
    (path / "length_index.bin").unlink()
    KINDS[kind](path / "length_index.bin")
    for ask in (lambda: open_store(path), lambda: open_store(path, check="lazy").runs()):
        with pytest.raises(TokenStoreError, match=r"length_index\.bin"):
            ask()
    assert [finding.file for finding in verify(path)] == ["length_index.bin"]
    assert concat.batch(0)["input_ids"].shape == (4, LENGTH)


def test_a_read_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an input/output error while the length index is mapped is a TokenStoreError that names the file."""
    path = make_store(tmp_path)
    store = open_store(path)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(TokenStoreError, match=r"Input/output error .*length_index\.bin"):
        store.runs()
