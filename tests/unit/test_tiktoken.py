"""tiktoken rank files: ids equal the library's, patterns and special tokens, the file that a store keeps, damaged
files.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tiktoken_ext.openai_public as published
from hypothesis import given
from hypothesis import strategies as st

from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import SPECIAL, byte_of_character, rank_lines
from tokenstore.errors import ConfigError
from tokenstore.tokenizer import load_tokenizer
from tokenstore.tokenizer.patterns import PATTERNS
from tokenstore.tokenizer.rank_file import RankFile

SPECIAL_TEXT = "before<|endoftext|>between<|user|> after"


@pytest.fixture(scope="module")
def rank_file(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rank file without an extension."""
    path = tmp_path_factory.mktemp("ranks") / "vocabulary"
    path.write_bytes(rank_lines(tokenizer_file))
    return path


@pytest.fixture
def changed(rank_file: Path, tmp_path: Path) -> Callable[[bytes], Path]:
    """Write other bytes as a rank file."""

    def write(data: bytes) -> Path:
        path = tmp_path / "changed"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_ids_equal_those_of_the_library(rank_file: Path, pattern: str) -> None:
    """Each text of a batch gets the ids that the tiktoken library gives it alone."""
    tokenizer = load_tokenizer(str(rank_file), pattern=pattern)
    ranks = tokenizer.rank_file.ranks
    library = tiktoken.Encoding("x", pat_str=PATTERNS[pattern].regex, mergeable_ranks=ranks, special_tokens={})
    texts = [*TEXTS, "", " ", SPECIAL_TEXT, "a" * 5000]
    ids, lengths = tokenizer.encode_batch(texts)
    assert ids.tolist() == [i for text in texts for i in library.encode_ordinary(text)]
    assert lengths.tolist() == [len(library.encode_ordinary(text)) for text in texts]
    assert (ids.dtype, lengths.dtype, tokenizer.kind, tokenizer.engine) == (np.uint32, np.int64, "tiktoken", "tiktoken")


@given(st.text())
def test_a_rank_file_equals_its_tokenizer_json(rank_file: Path, tokenizer_file: Path, text: str) -> None:
    """Two libraries agree on the same merges and the same pattern, token by token."""
    whole = load_tokenizer(str(rank_file), pattern="gpt2")
    same = load_tokenizer(str(tokenizer_file))
    names = {i: name for name, i in json.loads(tokenizer_file.read_text("utf-8"))["model"]["vocab"].items()}
    to_byte = byte_of_character()
    expected = [bytes(to_byte[c] for c in names[i]) for i in same.encode_batch([text])[0].tolist()]
    by_rank = {rank: token for token, rank in whole.rank_file.ranks.items()}
    assert [by_rank[i] for i in whole.encode_batch([text])[0].tolist()] == expected


def test_named_patterns_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt2, cl100k_base and o200k_base split texts and name special tokens as tiktoken does."""
    monkeypatch.setattr(published, "load_tiktoken_bpe", lambda *_, **__: {})
    for name in ("r50k_base", "p50k_base", "cl100k_base", "o200k_base"):
        theirs = getattr(published, name)()
        assert PATTERNS[name].regex == theirs["pat_str"]
        assert theirs["special_tokens"] in PATTERNS[name].special_tokens.values()
    assert PATTERNS["gpt2"] == PATTERNS["r50k_base"]


@pytest.mark.parametrize("num_ranks", [50256, 50257, 50280])
def test_known_special_tokens_come_with_a_known_number_of_ranks(num_ranks: int) -> None:
    """A named pattern brings its special tokens only to the vocabulary they belong to."""
    known = PATTERNS["gpt2"].special_tokens.get(num_ranks)
    assert known == (None if num_ranks == 50257 else {"<|endoftext|>": 50256})


def test_a_vocabulary_of_known_size_has_its_end_of_text(changed: Callable[[bytes], Path]) -> None:
    """50,256 ranks and the pattern gpt2 make GPT-2's vocabulary with its end of text; requested tokens take
    precedence.
    """
    import base64

    tokens = [bytes([a]) for a in range(256)] + [bytes([a, b]) for a in range(256) for b in range(256)]
    path = changed(b"".join(base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(tokens[:50256])))
    tokenizer = load_tokenizer(str(path), pattern="gpt2")
    assert (tokenizer.eos_id, tokenizer.vocab_size, tokenizer.special_tokens) == (50256, 50257, ("<|endoftext|>",))
    assert tokenizer.token_names == {"eos_token": "<|endoftext|>"}
    more = load_tokenizer(str(path), pattern="gpt2", special_tokens=["<eos>=50256", "<|pad|>"])
    assert (more.eos_id, more.pad_id, more.special_tokens) == (50256, 50257, ("<eos>", "<|pad|>"))


def test_special_tokens_get_the_requested_or_the_next_free_id(rank_file: Path) -> None:
    """`name=id` and `name`; vocabulary size, end of text and the names for templates follow."""
    plain = load_tokenizer(str(rank_file), pattern="gpt2")
    assert (plain.eos_id, plain.special_tokens) == (None, ())
    requested = ["<|endoftext|>=700", "<|user|>", "<|begin_of_text|>=650", "a=b"]
    tokenizer = load_tokenizer(str(rank_file), pattern="gpt2", special_tokens=requested)
    assert tokenizer.rank_file.special_tokens == {
        "<|endoftext|>": 700, "<|user|>": 701, "<|begin_of_text|>": 650, "a=b": 702}  # fmt: skip
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id, tokenizer.vocab_size) == (700, 650, None, 703)
    assert tokenizer.token_names == {"eos_token": "<|endoftext|>", "bos_token": "<|begin_of_text|>"}
    assert load_tokenizer(str(rank_file), "<|user|>", pattern="gpt2", special_tokens=requested).eos_id == 701


def test_special_strings_are_text_or_special_ids_on_request(rank_file: Path) -> None:
    """Special strings are text by default; either way they decode to the text."""
    for special_text, count in (("plain", 0), ("special", 2)):
        tokenizer = load_tokenizer(
            str(rank_file), special_text=special_text, pattern="cl100k_base", special_tokens=SPECIAL
        )
        ids, _ = tokenizer.encode_batch([SPECIAL_TEXT])
        assert np.count_nonzero(ids >= 700) == count
        assert tokenizer.decode(ids) == SPECIAL_TEXT
        assert tokenizer.decode(np.append(ids, 700)) == SPECIAL_TEXT + "<|endoftext|>"
        assert tokenizer.decode(np.array([690, 72])) == "H"  # an id in a gap has no token


def test_the_saved_file_is_all_that_is_needed(rank_file: Path, changed: Callable[[bytes], Path]) -> None:
    """It loads without a pattern, gives the same ids, and is saved unchanged again."""
    first = load_tokenizer(str(rank_file), pattern="qwen2", special_tokens=SPECIAL)
    again = load_tokenizer(str(changed(first.data)), eos_id=first.eos_id)
    assert (first.file_name, again.data, again.vocab_size) == ("tiktoken.json", first.data, first.vocab_size)
    assert (again.eos_id, again.special_tokens) == (700, ("<|endoftext|>", "<|user|>"))
    assert again.encode_batch(TEXTS)[0].tolist() == first.encode_batch(TEXTS)[0].tolist()


def test_the_hash_of_the_saved_file_is_the_identity(rank_file: Path, changed: Callable[[bytes], Path]) -> None:
    """It covers pattern, special tokens and ranks, and nothing else, such as the order or ends of lines."""

    def identity(path: Path, pattern: str = "gpt2", special: tuple[str, ...] = SPECIAL) -> str:
        return hashlib.sha256(load_tokenizer(str(path), pattern=pattern, special_tokens=special).data).hexdigest()

    lines = rank_file.read_bytes().splitlines()
    same = changed(b"\r\n".join(reversed(lines)) + b"\n\n")
    assert identity(same) == identity(rank_file) == identity(rank_file, PATTERNS["gpt2"].regex, SPECIAL[::-1])
    other = identity(rank_file, "qwen2"), identity(rank_file, special=SPECIAL[:1]), identity(changed(b"\n".join(lines[:-1])))  # fmt: skip
    assert len({identity(rank_file), *other}) == 4


def test_the_bytes_of_the_saved_file_are_frozen() -> None:
    """A store's digest depends on these bytes."""
    file = RankFile("a|b", {b"b": 1, b"\xff": 0}, {"<é>": 2})
    assert file.to_bytes() == (
        b'{"kind":"tiktoken","pattern":"a|b","ranks":{"/w==":0,"Yg==":1},"special_tokens":{"<\\u00e9>":2}}'
    )


def test_a_rank_file_without_a_pattern_is_refused(rank_file: Path) -> None:
    """A rank file does not contain it, and a guess would split every text differently."""
    with pytest.raises(ConfigError, match=r"pattern: expected one of gpt2, .* found none .*vocabulary"):
        load_tokenizer(str(rank_file))


def test_a_pattern_that_loses_text_is_an_error(rank_file: Path) -> None:
    """A custom pattern must match every character of every text."""
    tokenizer = load_tokenizer(str(rank_file), pattern=r"\w+| +")
    assert tokenizer.decode(tokenizer.encode_batch(["ab cd"])[0]) == "ab cd"
    with pytest.raises(ConfigError, match=r"pattern: it does not match every character: 1 bytes of"):
        tokenizer.encode_batch(["ab, cd"])
    with pytest.raises(ConfigError, match="pattern: not a valid regular expression"):
        load_tokenizer(str(rank_file), pattern="(")


def test_a_saved_file_accepts_no_other_pattern(rank_file: Path, changed: Callable[[bytes], Path]) -> None:
    """It contains the pattern and special tokens that its ids were made with."""
    path = changed(load_tokenizer(str(rank_file), pattern="gpt2").data)
    with pytest.raises(ConfigError, match="pattern: not valid for a saved tiktoken tokenizer"):
        load_tokenizer(str(path), pattern="gpt2")
    with pytest.raises(ConfigError, match="special tokens: not valid for a saved tiktoken tokenizer"):
        load_tokenizer(str(path), special_tokens=["<a>"])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda data: data + b"$$$ 600\n", "line 5"),
        (lambda data: data + b"YQ==\n", "line 5"),
        (lambda data: data + b"YWFh -1\n", "not an id"),
        (lambda data: data + b"YWFhYWE= 99999999999\n", "not an id"),
        (lambda data: data.split(b"\n", 1)[1], "no rank for 1 single bytes, the first 0x00"),
        (lambda data: data + b"YWFhYWFhYWE= 7\n", "found 7 twice"),
        (lambda data: b'{"kind":"tiktoken",', "Expecting"),
        (lambda data: b'{"kind":"tiktoken","pattern":1,"ranks":{},"special_tokens":{}}', "not an id"),
        (lambda data: b'{"kind":"tiktoken","pattern":"a","ranks":[],"special_tokens":{}}', "items"),
        (lambda data: b'{"kind":"tiktoken","pattern":"a","ranks":{"Y":1},"special_tokens":{}}', "padding|base64"),
        (lambda data: b'{"kind":"tiktoken","pattern":"a","ranks":{"YQ==":"1"},"special_tokens":{}}', "not an id"),
    ],
    ids=range(11),
)
def test_a_damaged_rank_file_is_refused(
    rank_file: Path, changed: Callable[[bytes], Path], change: Callable[[bytes], bytes], found: str
) -> None:
    """P9: for any contents, loading is a ConfigError, never a panic of the library."""
    data = change(rank_file.read_bytes())
    pattern = None if data.startswith(b"{") else "gpt2"
    with pytest.raises(ConfigError, match=found):
        load_tokenizer(str(changed(data)), pattern=pattern)


def test_an_unknown_end_of_text_and_added_tokens_are_refused(rank_file: Path) -> None:
    """An end of text must be a special token; tiktoken cannot add special tokens to texts."""
    with pytest.raises(ConfigError, match=r"eos token: .*'<eot>'.*'<\|endoftext\|>', '<\|user\|>'"):
        load_tokenizer(str(rank_file), "<eot>", pattern="gpt2", special_tokens=SPECIAL)
    with pytest.raises(ConfigError, match="add special tokens: not valid for a tiktoken tokenizer"):
        load_tokenizer(str(rank_file), pattern="gpt2", add_special_tokens=True)


def test_without_the_library_its_extra_is_named(rank_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank file needs tiktoken, and the message says how to install it."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ConfigError, match=r"pip install 'tokenstore\[tiktoken\]'"):
        load_tokenizer(str(rank_file), pattern="gpt2")
