"""How a wrong result of the fast engine is detected: differences, failures and panics are mismatches, interrupts are
not.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest

from tests.data.texts import TEXTS
from tests.support.stores.fast_texts import NEW, same
from tokenstore.tokenizer import EngineMismatch, fast, load_tokenizer
from tokenstore.tokenizer.checks import Checks
from tokenstore.tokenizer.fast_engine import FastFile


class PanicException(BaseException):
    """Like the library's panics, not an Exception."""


class Lying:
    """The file of an engine whose results are `answer(texts, ids, offsets)`."""

    def __init__(self, file: FastFile, answer: Callable[..., tuple[np.ndarray, np.ndarray]]):
        self.file, self.answer = file, answer

    def encode(self, engine: Any, texts: list[bytes], end: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = self.file.encode(engine, texts, end)
        return self.answer(texts, ids.copy(), offsets.copy())


def raising(error: BaseException) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def answer(*_: object) -> tuple[np.ndarray, np.ndarray]:
        raise error

    return answer


@pytest.fixture
def lie(tokenizer_file: Path) -> Callable[..., fast.FastTokenizer]:
    """A fast tokenizer whose engine returns wrong results from now on."""

    def make(answer: Callable[..., tuple[np.ndarray, np.ndarray]]) -> fast.FastTokenizer:
        tokenizer = load_tokenizer(str(tokenizer_file), engine="fast")
        tokenizer._file = Lying(tokenizer._file, answer)
        return tokenizer

    return make


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda texts, ids, offsets: (ids + np.uint32(1), offsets), "differently from token 0"),
        (lambda texts, ids, offsets: (ids, np.minimum(offsets + (np.arange(offsets.size) == 1), ids.size)), "differ"),
        (lambda texts, ids, offsets: (ids, offsets[:-1]), "gave 2 of 3 documents"),
        (lambda texts, ids, offsets: (ids[:-1], offsets), "documents"),
        (lambda texts, ids, offsets: (ids.astype(np.int64), offsets), "documents"),
        (raising(PanicException("index out of bounds")), "failed with index out of bounds"),
        (raising(RuntimeError("broken")), "failed with broken"),
        (raising(AttributeError("layout")), "failed with layout"),
    ],
    ids=["ids", "bounds", "count", "short", "type", "panic", "error", "interface"],
)
def test_a_wrong_answer_or_a_failure_is_a_mismatch(
    lie: Callable[..., fast.FastTokenizer], answer: Callable[..., tuple[np.ndarray, np.ndarray]], reason: str
) -> None:
    """Whatever goes wrong in the fast engine, the caller can use the reference."""
    tokenizer = lie(answer)
    with pytest.raises(EngineMismatch, match=reason) as caught:
        tokenizer.encode_batch(TEXTS[:3])
    assert caught.value.excerpt
    assert tokenizer.reference.encode_batch(TEXTS[:3])[1].size == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), MemoryError()], ids=repr)
def test_interrupts_pass_through(lie: Callable[..., fast.FastTokenizer], error: BaseException) -> None:
    """Stopping a build is not a mismatch."""
    with pytest.raises(type(error)):
        lie(raising(error)).encode_batch(TEXTS)


def test_a_mismatch_can_be_sent_between_processes() -> None:
    """A worker's mismatch arrives complete."""
    error = pickle.loads(pickle.dumps(EngineMismatch("text", "reason")))
    assert (error.excerpt, error.reason, str(error)) == ("text", "reason", "reason, at 'text'")


def test_untrusted_texts_do_not_reach_the_engine(lie: Callable[..., fast.FastTokenizer]) -> None:
    """Also if a batch has no other texts."""
    tokenizer = lie(raising(PanicException()))
    assert same(tokenizer, list(NEW))
    assert same(tokenizer, [])


def test_it_is_loaded_again_after_much_text(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It caches every word it has seen; in a long build the cache would grow without limit."""
    tokenizer = load_tokenizer(str(tokenizer_file), engine="fast")
    monkeypatch.setattr(fast, "_LOADED_BYTES", 1000)
    before = tokenizer._engine
    assert same(tokenizer, TEXTS)
    assert same(tokenizer, TEXTS)
    assert tokenizer._engine is not before


def test_checks_aside_find_a_difference_by_the_time_they_are_settled(lie: Callable[..., fast.FastTokenizer]) -> None:
    """A build encodes on while a thread compares; its part is used only after all samples were compared."""
    tokenizer = lie(lambda texts, ids, offsets: (ids + np.uint32(1), offsets))
    with tokenizer.checks.aside():
        tokenizer.encode_batch(TEXTS[:3])
        tokenizer.encode_batch(TEXTS[3:6])
        with pytest.raises(EngineMismatch, match="differently from token 0"):
            tokenizer.checks.settle()
    with pytest.raises(EngineMismatch):  # at once again
        tokenizer.encode_batch(TEXTS[:3])


def test_checks_aside_compare_every_sample_once() -> None:
    """In groups on one other thread, in order, and those left over when they are settled."""
    seen: list[tuple[list[str], int]] = []
    checks = Checks(lambda texts, found: seen.append((list(texts), get_ident())))
    samples = [[f"{i}" * 30_000] for i in range(5)]
    with checks.aside():
        for texts in samples:
            checks.add(texts, [np.zeros(1, np.uint32)])
        checks.settle()
    assert [text for texts, _ in seen for text in texts] == [text for texts in samples for text in texts]
    assert [len(texts) for texts, _ in seen] == [3, 2]
    assert get_ident() not in {thread for _, thread in seen}


def test_a_rare_error_is_found_within_some_batches(lie: Callable[..., fast.FastTokenizer]) -> None:
    """One wrong text among many of its kind, because every batch checks others."""

    def answer(texts: list[bytes], ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids[offsets[texts.index(b"odd one out")]] += 1
        return ids, offsets

    tokenizer = lie(answer)
    texts = [f"text number {'x' * (i % 7)}" for i in range(200)] + ["odd one out"] + ["more of it, and more"] * 50

    def some_batches() -> None:
        for _ in range(200):
            tokenizer.encode_batch(texts)

    with pytest.raises(EngineMismatch, match="odd one out"):
        some_batches()


def test_more_of_a_new_source_is_checked(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch, and the first after `start_source`, are checked more than others."""
    tokenizer = load_tokenizer(str(tokenizer_file), engine="fast")
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 20)]
    checked: list[int] = []
    monkeypatch.setattr(tokenizer.checks, "_compare", lambda texts, found: checked.append(sum(map(len, texts))))
    for number in range(6):
        if number == 3:
            tokenizer.start_source()
        tokenizer.encode_batch(texts)
    total = sum(map(len, texts))
    assert [many > total // 10 for many in checked] == [True, False, False, True, False, False]


def test_of_familiar_text_fewer_batches_are_checked(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After many characters of a kind in a source; another kind is checked in every batch all the same."""
    monkeypatch.setattr(fast, "_FAMILIAR_CHARS", 1000)
    tokenizer = load_tokenizer(str(tokenizer_file), engine="fast")
    checked: list[str] = []
    monkeypatch.setattr(tokenizer.checks, "_compare", lambda texts, found: checked.append("".join(texts)))
    for number in range(64):
        tokenizer.encode_batch(["plain words of English"] * 50 + ["слово"])
        if number == 33:
            tokenizer.start_source()
    assert sum("plain" in texts for texts in checked) == 64 // fast._PAUSE + 1
    assert sum("слово" in texts for texts in checked) == 64


def test_a_wrong_token_is_found_in_familiar_text(
    lie: Callable[..., fast.FastTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the batches of one pause, with the end-of-text token already after each text."""
    monkeypatch.setattr(fast, "_FAMILIAR_CHARS", 0)
    right = True

    def answer(texts: list[bytes], ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ids if right else np.where(ids == 600, ids, ids ^ 1), offsets

    tokenizer = lie(answer)
    tokenizer._file.separator = tokenizer._file.file.separator
    tokenizer.encode_batch_with_end(["some text"] * 9, 600)
    right = False
    with pytest.raises(EngineMismatch, match="differently from token 0"):
        [tokenizer.encode_batch_with_end(["some text"] * 9, 600) for _ in range(fast._PAUSE)]


def test_what_is_checked_above_the_share_is_made_up_for(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of each kind per batch may be far more than the share of the batch; then later batches have fewer."""
    tokenizer = load_tokenizer(str(tokenizer_file), engine="fast")
    checked: list[int] = []
    monkeypatch.setattr(tokenizer.checks, "_compare", lambda texts, found: checked.append(sum(map(len, texts))))
    texts = [text * 4000 for text in ("plain words ", "слово ")] * 10 + ["plain words " * 340, "слово " * 680]
    for _ in range(10):
        tokenizer.encode_batch(texts)
    share = sum(map(len, texts)) // fast._SHARE + fast._FEWEST_CHARS
    assert min(checked) >= 2 * 1024
    assert max(checked[1:]) > 8000 > share
    assert sum(checked[1:]) < 9 * share + 2 * 8192  # one round above it, and in one round whole texts by turn
