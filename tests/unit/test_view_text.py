"""Untrusted text made safe to print; any ids decoded and cut into tokens."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import rank_lines, sentencepiece_model
from tokenstore.text import clip, safe
from tokenstore.tokenizer import load_tokenizer
from tokenstore.views.decoding import BROKEN, Decoder

ANY = st.text(st.characters(codec=None, exclude_categories=()))
HARMFUL = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
JOINERS = "\u200c\u200d"


class TestSafe:
    @given(ANY, st.booleans())
    def test_safe_text_has_no_control_characters(self, text: str, lines: bool) -> None:
        """Nor format, surrogate, private-use or unassigned characters, nor line and paragraph separators."""
        kept = JOINERS + "\n\t" if lines else JOINERS
        assert not [c for c in safe(text, lines) if unicodedata.category(c) in HARMFUL and c not in kept]

    @given(ANY)
    def test_safe_text_does_not_change(self, text: str) -> None:
        """Escapes are visible characters, so `safe` is idempotent."""
        assert safe(safe(text)) == safe(text)

    @pytest.mark.parametrize("text", [*TEXTS[:13], "a\u3000b\xa0c", "שלום", "ไทย", "e\u0301", "[red]x[/]", "a\\b"])
    def test_letters_of_all_scripts_are_kept(self, text: str) -> None:
        """Also emoji with joiners, combining marks, right-to-left letters, spaces, and text that looks like markup."""
        assert safe(text, lines=True) == text

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("\x1b[31mred", r"\x1b[31mred"),
            ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
            ("\x9b2J", r"\x9b2J"),
            ("a\rb\x08\x7f", r"a\rb\x08\x7f"),
            ("\u202egnp.exe\u202c", r"\u202egnp.exe\u202c"),
            ("\u2066x\u2069\u200f\u200b\ufeff", r"\u2066x\u2069\u200f\u200b\ufeff"),
            ("\ud800", r"\ud800"),
            ("\U000e0041", r"\U000e0041"),
            ("\u2028\u2029", r"\u2028\u2029"),
            ("a\nb\tc", r"a\nb\tc"),
        ],
    )
    def test_unsafe_characters_are_escaped(self, text: str, shown: str) -> None:
        """With the escapes of Python."""
        assert safe(text) == shown
        assert safe("a\nb\tc\r", lines=True) == "a\nb\tc\\r"

    def test_clip_counts_the_omitted_characters(self) -> None:
        """A very long id becomes one short line."""
        assert clip("x" * 10, 10) == "x" * 10
        assert clip("x" * 1_000_010, 10) == "xxxxxxxxxx... (1,000,000 more characters)"


@pytest.fixture(scope="module")
def decoders(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    """A decoder for every kind of tokenizer."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "ranks").write_bytes(rank_lines(tokenizer_file))
    (folder / "model").write_bytes(sentencepiece_model())
    made = {
        "bytes": load_tokenizer("bytes"),
        "huggingface": load_tokenizer(str(tokenizer_file)),
        "tiktoken": load_tokenizer(str(folder / "ranks"), pattern="gpt2", special_tokens=["<|endoftext|>=700"]),
        "sentencepiece": load_tokenizer(str(folder / "model")),
    }
    return {kind: Decoder(tokenizer) for kind, tokenizer in made.items()}


KINDS = ("bytes", "huggingface", "tiktoken", "sentencepiece")


class TestCut:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_parts_join_to_the_text(self, decoders: dict[str, Decoder], kind: str) -> None:
        """They are consecutive, and no character is cut."""
        decoder = decoders[kind]
        for text in TEXTS:
            ids, _ = decoder._tokenizer.encode_batch([text])
            parts = list(decoder.cut(ids))
            assert "".join(part for _, _, part in parts) == decoder.text(ids)
            assert [start for start, _, _ in parts] == [0, *(stop for _, stop, _ in parts[:-1])]
            assert parts[-1][1] == ids.size
            assert all(BROKEN not in part for _, _, part in parts)

    def test_tokens_that_share_a_character_form_one_part(self, decoders: dict[str, Decoder]) -> None:
        """With the byte tokenizer, all bytes of a character are one part."""
        ids = np.frombuffer("aß🦊b".encode(), np.uint8)
        assert list(decoders["bytes"].cut(ids)) == [(0, 1, "a"), (1, 3, "ß"), (3, 7, "🦊"), (7, 8, "b")]

    @given(data=st.lists(st.integers(0, 258), max_size=60))
    @example(data=[0xE4] * 40)
    @example(data=[0xF0, 0x9F, 0xA6])
    def test_invalid_bytes_are_cut_too(self, decoders: dict[str, Decoder], data: list[int]) -> None:
        """Every token is in exactly one part, and no part has more than 8 tokens."""
        parts = list(decoders["bytes"].cut(np.array(data, np.uint16)))
        assert [place for start, stop, _ in parts for place in range(start, stop)] == list(range(len(data)))
        assert all(stop - start <= 8 for start, stop, _ in parts)

    @pytest.mark.parametrize("kind", KINDS)
    def test_unknown_ids_raise_no_error(self, decoders: dict[str, Decoder], kind: str) -> None:
        """The other ids keep their text."""
        ids, _ = decoders[kind]._tokenizer.encode_batch(["a b"])
        text = decoders[kind].text(np.array([*ids.tolist(), 60_000, *ids.tolist()], np.uint32))
        assert text.count("a") == text.count("b") == 2
        assert kind in ("huggingface", "tiktoken") or "<60000>" in text  # these two omit unknown ids

    def test_without_a_tokenizer_ids_are_shown(self) -> None:
        """Each id becomes `<id>`."""
        decoder = Decoder(None, "its library is missing")
        assert list(decoder.cut(np.array([7, 8]))) == [(0, 1, "<7>"), (1, 2, "<8>")]
