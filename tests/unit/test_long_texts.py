"""A long text is encoded in pieces: with the same ids, for every pattern that allows it, and uncut for others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import added_token, rank_lines, variant
from tokenstore.tokenizer import load_tokenizer, long_texts
from tokenstore.tokenizer.self_test import self_test_texts

BYTES_LAST = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ODD = st.text(st.sampled_from("ab1 1 \n\r\t'sS.!/éß中ー\u0301\u2003_\x01"), max_size=60)


def split_by(*patterns: str) -> dict:
    steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"type": "Sequence", "pretokenizers": [*steps, BYTES_LAST]}


DEEPSEEK = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", *long_texts._COVERING - {p.regex for p in long_texts.PATTERNS.values()}]
PATTERNS = {name: [pattern.regex] for name, pattern in long_texts.PATTERNS.items()} | {"deepseek": DEEPSEEK}


@pytest.mark.parametrize("nfc", [False, True])
@pytest.mark.parametrize("name", [*PATTERNS, "byte level"])
def test_pieces_give_the_tokens_of_the_whole(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nfc: bool
) -> None:
    """Cut at every place where a cut is possible."""

    def change(value: dict) -> None:
        value["normalizer"] = {"type": "NFC"} if nfc else None
        if name in PATTERNS:
            value["pre_tokenizer"] = split_by(*PATTERNS[name])

    tokenizer = load_tokenizer(str(variant(tokenizer_file, tmp_path / "tokenizer.json", change)))
    assert tokenizer.can_be_cut

    def check(text: str) -> None:
        text = f"a b{text}"
        with monkeypatch.context() as patched:
            whole, _ = tokenizer.encode_batch([text])
            patched.setattr(long_texts, "LONG", 1)
            pieces, lengths = tokenizer.encode_batch(["", text])
        assert lengths.tolist() == [0, whole.size]
        np.testing.assert_array_equal(pieces, whole)

    for text in [*TEXTS, *self_test_texts([])]:
        check(text)
    given(ODD)(check)()


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(normalizer={"type": "Lowercase"}),
        lambda value: value.update(pre_tokenizer=None),
        lambda value: value.update(pre_tokenizer=split_by(r"\w+ \w+|\s+")),
        lambda value: value.update(pre_tokenizer=split_by(r"\p{N}{1,3}")),
        lambda value: value["pre_tokenizer"].update(add_prefix_space=True),
        lambda value: value["added_tokens"].append(added_token("a b", 690)),
        lambda value: value["added_tokens"].append(added_token("word", 690, single_word=True)),
    ],
)
def test_a_tokenizer_that_might_notice_gets_the_whole_text(
    tokenizer_file: Path, tmp_path: Path, change: Callable[[dict], object]
) -> None:
    """Another normalizer, an unknown pattern, one that skips spaces, a prepended space, tokens that depend on
    neighbours.
    """
    assert load_tokenizer(str(tokenizer_file)).can_be_cut
    assert not load_tokenizer(str(variant(tokenizer_file, tmp_path / "tokenizer.json", change))).can_be_cut


def test_a_rank_file_can_be_cut_if_its_pattern_is_known(tokenizer_file: Path, tmp_path: Path) -> None:
    """Unless a special token that is looked for in texts contains a space."""
    path = tmp_path / "ranks"
    path.write_bytes(rank_lines(tokenizer_file))
    for name in long_texts.PATTERNS:
        assert load_tokenizer(str(path), pattern=name, special_tokens=["<a b>"]).can_be_cut
    spaced = {"special_tokens": ["<a b>"], "special_text": "special"}
    assert not load_tokenizer(str(path), pattern="gpt2", **spaced).can_be_cut
    assert not load_tokenizer(str(path), pattern=r"[\s\S]").can_be_cut


def test_joined_pieces_are_the_text() -> None:
    """Nothing is lost; a cut is before a single space between two words or signs. A text without such a place is not cut."""
    assert [*long_texts.pieces_of("ab cd ef  gh1 é. kl\n mn 1", 4)] == ["ab cd", " ef  gh1 é.", " kl\n mn", " 1"]
    assert [*long_texts.pieces_of("中" * 30, 4)] == ["中" * 30]
