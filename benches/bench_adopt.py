"""Claims: adopting token files is one sequential read of them, and no second copy; exporting to the same format reads no token.

Resources: memory or disk: one read of the tokens. CPU: two checksums, the range of the ids and the end-of-text tokens; a thread
reads and hashes ahead, so two cores work. The limit is reading the same file in blocks of 1 MiB, which touches no byte.
The files are those of Megatron: a .bin of uint16 tokens, and an .idx of documents of about 1,000 tokens.
"""

import os
import shutil
import struct
from pathlib import Path

import numpy as np

from benches.bench_cold import drop
from benches.scenes import Row, ratio, rounds
from tokenstore.foreign import AdoptOptions, ExportOptions, adopt_store, export_store
from tokenstore.foreign.megatron import MAGIC

EOS, VOCABULARY = 50_256, 50_257
_PIECE = 1 << 22  # tokens


def write_megatron(prefix: Path, num_tokens: int) -> Path:
    """A .bin and .idx of about `num_tokens` tokens. Returns the .bin."""
    rng = np.random.default_rng(0)
    piece = rng.integers(0, 50_000, _PIECE).astype("<u2")
    lengths = np.maximum(1, rng.lognormal(6.5, 0.9, _PIECE // 300).astype(np.int64))
    ends = np.cumsum(lengths)
    ends = np.append(ends[ends < _PIECE], _PIECE)
    piece[ends - 1] = EOS
    count = max(1, num_tokens // _PIECE)
    path = prefix.with_suffix(".bin")
    with open(path, "wb") as file:
        for _ in range(count):
            file.write(piece.tobytes())
        file.flush()
        os.fsync(file.fileno())
    sizes = np.tile(np.diff(ends, prepend=0), count)
    with open(prefix.with_suffix(".idx"), "wb") as file:
        file.write(struct.pack("<9sQBQQ", MAGIC, 1, 8, sizes.size, sizes.size + 1) + sizes.astype("<i4").tobytes())
        file.write(((np.cumsum(sizes) - sizes) * 2).astype("<i8").tobytes())
        file.write(np.arange(sizes.size + 1, dtype="<i8").tobytes())
    return path


def run(folder: Path, smoke: bool) -> list[Row]:
    """Adopt and export one large file, from memory and from the disk."""
    source = folder / "source"
    source.mkdir()
    path = write_megatron(source / "corpus", 1 << (22 if smoke else 30))
    store, size = folder / "store", path.stat().st_size

    def adopt() -> None:
        shutil.rmtree(store, ignore_errors=True)
        adopt_store(AdoptOptions((str(path),), store, vocab_size=VOCABULARY, eos_id=EOS))

    def export() -> None:
        shutil.rmtree(folder / "export", ignore_errors=True)
        export_store(ExportOptions(store, "megatron", folder / "export"))

    def cold(action: object) -> object:
        def measured() -> None:
            drop(source)
            action()  # type: ignore[operator]

        return measured

    times = rounds({"read": lambda: read(path), "adopt": adopt}, 1 if smoke else 5)
    disk = rounds({"read": cold(lambda: read(path)), "adopt": cold(adopt)}, 1 if smoke else 3)
    before = bytes_read()
    adopt()
    once = bytes_read() - before
    taken = sum(file.stat().st_size for file in store.iterdir() if file.stat().st_nlink == 1)
    exported = rounds({"export": export}, 1 if smoke else 5)["export"]
    documents = (source / "corpus.idx").stat().st_size
    return [
        _speed("adopting, from memory, share of the rate of reading", times, size),
        _speed("adopting, from the disk, share of the rate of reading", disk, size),
        Row("bytes read while adopting, for each byte of the files", f"{once / (size + documents):.2f}", "1.1", ""),
        Row(
            "disk space of an adopted store, share of the tokens",
            f"{taken / size:.3f}",
            "0.05",
            "documents of about 1,000 tokens",
        ),
        Row(
            "exporting to the same format, seconds for each GB",
            f"{min(exported) / size * 1e9:.2f}",
            "-",
            "no token is read",
        ),
    ]


def _speed(claim: str, times: dict[str, list[float]], size: int) -> Row:
    speed = ", ".join(f"{name} {size / min(found) / 1e9:.2f} GB/s" for name, found in times.items())
    return Row(claim, ratio(times["read"], times["adopt"]), "0.5", speed)


def read(path: Path) -> None:
    """Read a file in blocks, into one buffer."""
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def bytes_read() -> int:
    """Bytes that this process has read with system calls."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])
