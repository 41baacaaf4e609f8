"""Settings and fixtures for all tests: small stores written by the real writer, a tiny BPE tokenizer trained here."""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.data.texts import TEXTS
from tests.support.servers.range_server import RangeServer
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store.length_index import add_length_index
from tokenstore.store.writer import FileWriter

if TYPE_CHECKING:
    from tests.support.twins.packed_plans import Stores

for name, examples in ("quick", 15), ("thorough", 150):  # CI also runs: pytest --hypothesis-profile=thorough
    settings.register_profile(
        name,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # set by a shell after `&`, and inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start about two hundred processes: compile each module once, whatever the environment says
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# There are enough test processes for all cores: more threads of torch would only wait for each other, in busy loops
os.environ.setdefault("OMP_NUM_THREADS", "1")

# pytest-xdist sets it to 80 in its processes: a long path would be wrapped there, and which ones are long depends on the run
os.environ.pop("COLUMNS", None)

EOS = 0


def pytest_xdist_auto_num_workers() -> int:
    """A process more than there are cores, because some tests wait for servers, disks and processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Exempt what has been imported from garbage collection: Accelerate collects after every training run."""
    gc.freeze()


def write_store(
    path: Path,
    documents: Sequence[Sequence[int]],
    vocab_size: int = 300,
    shard_bytes: int = 1 << 20,
    eos: bool = False,
    length_index: bool = False,
) -> Path:
    """Write a store of the given documents, end-of-text tokens included, without taking its lock.

    length_index: also write the length index, which packing whole documents needs. A built store always has one.
    """
    path.mkdir(parents=True)
    with FileWriter(path, vocab_size, shard_bytes) as writer:
        for document in documents:
            writer.append(np.array(document, np.uint32), np.array([len(document)]))
        writer.finish(
            inputs=b"",
            ends_with_eos=eos,
            tokenizer=TokenizerEntry("bytes", None, None, EOS if eos else None, None, None, "tests", "1"),
            options={},
            counts={},
            package_versions={},
        )
    if length_index:
        add_length_index(path)
    return path


def random_documents(seed: int, count: int, longest: int, vocab_size: int = 300) -> list[list[int]]:
    """Random documents of 1 to `longest` tokens; no two positions are likely to hold the same run of tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab_size, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Skip fsync in this process: no test cuts the power, and waiting for the disk is a tenth of the suite.

    Tests of failing disks replace os.fsync themselves; commands that run as processes call the real one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a store into the test's folder: make_store("name", documents, ...)."""

    def make(name: str, documents: Sequence[Sequence[int]], **options: object) -> Path:
        return write_store(tmp_path / name, documents, **options)

    return make


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> "Stores":
    """The stores that random plans are drawn from. No test changes them."""
    from tests.support.twins.packed_plans import make_stores  # imports this module

    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a byte-level BPE of 600 tokens, trained on tests/data/texts.py. Its end of text is <|endoftext|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes JSON lines: jsonl("name.jsonl", ["text", {"text": ...}, b"raw line"])."""

    def write(name: str, records: Sequence[object]) -> Path:
        lines = []
        for record in records:
            record = {"text": record} if isinstance(record, str) else record
            lines.append(record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode())
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


@pytest.fixture
def range_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """An object store with faults, which clients of S3 in this process and its children use: s3://bucket/KEY."""
    with RangeServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
        if module := sys.modules.get("tokenstore.store.workers"):
            end = time.monotonic() + 20
            while not module.are_idle() and time.monotonic() < end:  # requests of loaders that are gone
                time.sleep(0.01)
