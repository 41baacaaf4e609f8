"""Fixtures every kind of test uses: small stores made by the real writer, a tiny BPE tokenizer trained here."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.data.texts import TEXTS
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store.length_index import add_length_index
from tokenstore.store.writer import StoreWriter

for name, examples in ("quick", 25), ("thorough", 150):  # thorough: pytest --hypothesis-profile=thorough
    settings.register_profile(
        name,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as behind `&` in a shell; what tests start would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

EOS = 0


def write_store(
    path: Path,
    documents: Sequence[Sequence[int]],
    vocab_size: int = 300,
    shard_bytes: int = 1 << 20,
    eos: bool = False,
    length_index: bool = False,
) -> Path:
    """A store of the given documents (ids, end-of-text included), by the real writer, committed without a lock.

    length_index: with a length index, as a built store has one and packing whole documents needs.
    """
    path.mkdir(parents=True)
    with StoreWriter(path, vocab_size, shard_bytes) as writer:
        for document in documents:
            writer.append(np.array(document, np.uint32), np.array([len(document)]))
        writer.finish(
            inputs=b"",
            ends_with_eos=eos,
            tokenizer=TokenizerEntry("bytes", None, None, EOS if eos else None, None, None, "tests", "1"),
            options={},
            counts={},
            library_versions={},
        )
    if length_index:
        add_length_index(path)
    return path


def random_documents(seed: int, count: int, longest: int, vocab_size: int = 300) -> list[list[int]]:
    """Documents of 1..longest tokens that no two positions of which are likely to be confused."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab_size, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Give write_store below the test's folder, called as make_store("name", documents, ...)."""

    def make(name: str, documents: Sequence[Sequence[int]], **options: object) -> Path:
        return write_store(tmp_path / name, documents, **options)

    return make


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of a byte-level BPE with 600 ids, trained on the texts shipped here; its end of text is <|endoftext|>."""
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
    """Give a writer of JSON lines, called as jsonl("name.jsonl", ["text", {"text": ...}, b"raw line"])."""

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
