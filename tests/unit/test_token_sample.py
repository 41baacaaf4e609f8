"""Kinds of characters, and which texts of a batch are checked against the reference."""

import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest

from tests.data.texts import TEXTS
from tokenstore.tokenizer import characters as c


def kinds(texts: Sequence[str], nfc: bool = False) -> np.ndarray:
    return c.kinds_of([text.encode("utf-8", "surrogatepass") for text in texts], c.kind_table(nfc))


def test_only_assigned_characters_are_trusted() -> None:
    """Unassigned and private characters and surrogates are not, whatever the version of Python."""
    trusted = np.flatnonzero(c.kind_table(False) != c.UNTRUSTED)
    assert not {unicodedata.category(chr(code)) for code in trusted.tolist()} & {"Cn", "Co", "Cs"}
    assert trusted.size > 140_000
    assert c.kind_table(False).shape == (0x110000,)


def test_common_text_is_trusted() -> None:
    """Every script of the test texts is encoded by the fast engine."""
    assert (kinds(TEXTS) != c.UNTRUSTED).all()


@pytest.mark.parametrize("text", ["e\u0301", "\u212b", "\u1100\u1161", "\u0928\u093c", "\u0344", "\u09fe", "\u0d3b"])
def test_characters_that_nfc_may_change_are_not_trusted(text: str) -> None:
    """Marks, parts of syllables and characters with another form, if the tokenizer normalizes."""
    assert kinds([text], nfc=True) == [c.UNTRUSTED]
    assert kinds([text]) != [c.UNTRUSTED]


def test_trusted_characters_are_unchanged_by_nfc() -> None:
    """Any text of them is its own NFC, alone and between others."""
    trusted = np.flatnonzero(c.kind_table(True) != c.UNTRUSTED).tolist()
    rng = np.random.default_rng(1)
    for _ in range(20):
        text = "".join(map(chr, rng.choice(trusted, 5000)))
        assert unicodedata.is_normalized("NFC", text)
    assert unicodedata.is_normalized("NFC", "".join(map(chr, trusted)))
    assert {"é", "ß", "я", "中", "한", "ア", "क", "ا"} <= set(map(chr, trusted))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("plain words", c.ASCII),
        ("", c.ASCII),
        ("12 34 56 78", c.FEW_LETTERS),
        ("Größe", c.LATIN),
        ("слово word", c.GREEK_CYRILLIC),
        ("слово 中", c.CJK),
        ("هذا", c.INDIC_ARABIC),
        ("中 🦊", c.OTHER),
        ("中 🦊 \U000331da", c.UNTRUSTED),
        ("\ud800", c.UNTRUSTED),
    ],
)
def test_a_text_has_the_kind_of_its_rarest_character(text: str, kind: int) -> None:
    """So the few texts of a rare script in a batch are found."""
    assert kinds(["x", text, "é"]).tolist() == [c.ASCII, kind, c.LATIN]


def test_every_kind_is_checked_however_rare() -> None:
    """One text of a kind among a thousand others is checked in every batch."""
    texts = ["some plain words of English"] * 1000 + ["слово", "中文", "🦊", "12345 67", "été", "हिन्दी"]
    whole, parts = c.choose_sample(texts, kinds(texts), len("".join(texts)) // 100, 3)
    assert set(range(1000, 1006)) <= set(whole)
    assert parts == []
    assert sum(len(texts[i]) for i in whole) < len("".join(texts)) // 100 + 30 * 7


def test_the_choice_is_deterministic_and_rotates() -> None:
    """Checks are reproducible, and over many batches every text of a kind is checked."""
    texts = [f"number {'x' * (i % 5)}" for i in range(500)]
    assert c.choose_sample(texts, kinds(texts), 600, 7) == c.choose_sample(texts, kinds(texts), 600, 7)
    seen = {i for turn in range(60) for i in c.choose_sample(texts, kinds(texts), 600, turn)[0]}
    assert seen == set(range(500))


def test_a_piece_of_a_long_text_is_checked() -> None:
    """A long text costs no more than a short one; other batches check other pieces."""
    texts = ["".join(map(chr, range(65, 91))) * 10_000]
    found = {c.choose_sample(texts, kinds(texts), 500, turn)[1][0] for turn in range(20)}
    assert len(found) > 10
    assert all(len(piece) == 1024 and piece in texts[0] for piece in found)
    assert c.choose_sample(texts, kinds(texts), 500, 0)[0] == []


def test_the_longest_and_the_shortest_are_checked() -> None:
    """Among the texts that are checked completely."""
    texts = ["middle words"] * 100 + ["w" * 4000, "y", "z" * 9000]
    whole, _ = c.choose_sample(texts, kinds(texts), 7000, 0)
    assert {100, 101} <= set(whole)


def test_every_kind_is_checked_when_more_than_the_share_was() -> None:
    """Then one text of each, of any length, and a piece if it is long."""
    texts = ["middle words"] * 100 + ["w" * 4000, "слово " * 1000]
    for turn in range(5):
        whole, pieces = c.choose_sample(texts, kinds(texts), -1, turn)
        assert (len(whole), len(pieces)) == (1, 1)
    assert {c.choose_sample(texts, kinds(texts), -1, turn)[0][0] for turn in range(101)} == set(range(101))
