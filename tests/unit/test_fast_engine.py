"""The fast engine is exact or not used: texts that it encodes differently, and tokenizers that it cannot replace."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers

from tests.data.texts import TEXTS
from tests.support.stores.fast_texts import NEW, same
from tests.support.stores.vocabularies import SPECIAL, added_token, rank_lines, sentencepiece_model, variant
from tokenstore.errors import ConfigError
from tokenstore.tokenizer import EngineMismatch, fast, load_tokenizer
from tokenstore.tokenizer.byte_spans import spans_of_bytes
from tokenstore.tokenizer.characters import ASCII, UNTRUSTED, kind_table, kinds_of
from tokenstore.tokenizer.checks import Checks
from tokenstore.tokenizer.fast_engine import SEPARATOR, fast_file
from tokenstore.tokenizer.request import Request

ADDED = [
    added_token("zwei W", 600),
    added_token("<x>", 601, lstrip=True, rstrip=True),
    added_token("Wort", 602, single_word=True),
    added_token("<r>", 603, rstrip=True, special=True),
]
APART = ("<|endoftext|>", "<|user|>", "zwei W", "<x>", "Wort", "<r>", "<u>", "<s>", "</s>", "<unk>", "<0x41>", "<c>")
MARKS = ("\u0326\u0d3b", "\u09fe\u0c4d", "e\u0301", "q\u0323\u0307", "\u1112\u1161\u11ab", "\u212b")
SPACES = (" ", "  ", "\n", "\t", "\r\n", "\xa0", "\x85", "\u2028", "\u3000", "\u2581")
KINDS = ("huggingface", "added", "nfc", "tiktoken", "sentencepiece", "symbols")
pieces = st.sampled_from([*TEXTS, *APART, *MARKS, *NEW, *SPACES, "a", "1", "'s", "'ſ", "🦊", "ﬁ"])
batches = st.lists(st.one_of(st.text(max_size=20), st.lists(pieces, max_size=6).map("".join)), max_size=8)
SORTS = [(kind, "plain") for kind in KINDS] + [(kind, "special") for kind in KINDS[:4]]


@pytest.fixture(scope="module")
def files(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any]]]:
    """Tokenizers of every type that the fast engine can replace: path and options."""
    folder = tmp_path_factory.mktemp("fast")
    (folder / "ranks").write_bytes(rank_lines(tokenizer_file))
    (folder / "model").write_bytes(sentencepiece_model())
    (folder / "symbols").write_bytes(
        sentencepiece_model(user_defined_symbols=("<u>", "zwei W"), control_symbols=("<c>",))
    )
    variant(tokenizer_file, folder / "added.json", lambda value: value["added_tokens"].extend(ADDED))
    variant(tokenizer_file, folder / "nfc.json", lambda value: value.update(normalizer={"type": "NFC"}))
    ranks = {"pattern": "cl100k_base", "special_tokens": SPECIAL}
    return {
        "huggingface": (str(tokenizer_file), {}),
        "added": (str(folder / "added.json"), {}),
        "nfc": (str(folder / "nfc.json"), {}),
        "tiktoken": (str(folder / "ranks"), ranks),
        "sentencepiece": (str(folder / "model"), {}),
        "symbols": (str(folder / "symbols"), {}),
    }


@pytest.fixture(scope="module")
def load(files: dict[str, tuple[str, dict[str, Any]]]) -> Callable[..., fast.FastTokenizer]:
    """Load a type of tokenizer with the fast engine, once per module."""
    loaded: dict[tuple[str, str], fast.FastTokenizer] = {}

    def get(kind: str, special_text: str = "plain") -> fast.FastTokenizer:
        path, options = files[kind]
        if (kind, special_text) not in loaded:
            found = load_tokenizer(path, special_text=special_text, engine="fast", spans=True, **options)
            loaded[kind, special_text] = found
        return loaded[kind, special_text]

    return get


@pytest.mark.parametrize(("kind", "special_text"), SORTS)
@given(texts=batches)
def test_any_batch_equals_the_reference(
    load: Callable[..., fast.FastTokenizer], kind: str, special_text: str, texts: list[str]
) -> None:
    """For any texts, ids and lengths equal the reference, without a mismatch."""
    assert same(load(kind, special_text), texts)


@pytest.mark.parametrize(("kind", "special_text"), SORTS)
@given(texts=batches)
def test_spans_equal_the_reference(
    load: Callable[..., fast.FastTokenizer], kind: str, special_text: str, texts: list[str]
) -> None:
    """For any texts, also with characters that are normalized, divided among tokens or prepended."""
    tokenizer = load(kind, special_text)
    here, there = tokenizer.encode_batch_with_spans(texts), tokenizer.reference.encode_batch_with_spans(texts)
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("kind", ["huggingface", "tiktoken", "sentencepiece"])
def test_an_end_token_is_added_to_every_text(load: Callable[..., fast.FastTokenizer], kind: str) -> None:
    """In place of the separator between joined texts, also after empty texts; not if a text goes to the reference."""
    tokenizer = load(kind)
    texts = ["", *TEXTS, "", ""]
    found = tokenizer.encode_batch_with_end(texts, 5)
    assert (found is not None) == (kind != "sentencepiece")
    if found is not None:
        ids, lengths = tokenizer.encode_batch(texts)
        assert found[1].tolist() == (lengths + 1).tolist()
        assert found[0].tolist() == np.insert(ids, np.cumsum(lengths), 5).tolist()
    assert tokenizer.encode_batch_with_end([*texts, *NEW], 5) is None


def test_spans_are_computed_without_the_reference(
    load: Callable[..., fast.FastTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For byte-level tokenizers, whose tokens are the bytes of the text; only the compared text is encoded twice."""
    compared = []
    for kind in ("huggingface", "added", "nfc", "tiktoken"):
        tokenizer = load(kind, "special")
        once = tokenizer.reference.encode_with_spans
        monkeypatch.setattr(
            tokenizer.reference, "encode_with_spans", lambda text, f=once: compared.append(text) or f(text)
        )
        tokenizer.encode_batch_with_spans([*TEXTS, "", "a<|user|>b"])
        assert len(compared) == 1
        compared.clear()


def test_wrong_spans_are_a_mismatch(load: Callable[..., fast.FastTokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer whose bytes are interpreted wrongly is detected by the text that is compared."""
    tokenizer = load("huggingface")
    monkeypatch.setattr(fast, "spans_of_bytes", lambda text, sizes: np.maximum(spans_of_bytes(text, sizes) - [1, 0], 0))
    with pytest.raises(EngineMismatch, match="differ in tokens or their characters"):
        tokenizer.encode_batch_with_spans([TEXTS[0]])


def test_spans_need_a_byte_level_tokenizer(tokenizer_file: Path, tmp_path: Path) -> None:
    """`auto` then says why, and `fast` is refused; without spans it is used."""

    def other(value: dict[str, Any]) -> None:
        value["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "never",
            "split": True,
        }

    path = str(variant(tokenizer_file, tmp_path / "t.json", other))
    note = load_tokenizer(path, engine="auto", spans=True).engine_note
    assert "the characters of each token" in note or "differ" in note
    with pytest.raises(ConfigError, match="fast cannot be used"):
        load_tokenizer(path, engine="fast", spans=True)


@pytest.mark.parametrize(("kind", "special_text"), SORTS)
def test_texts_that_it_encodes_differently_go_to_the_reference(
    load: Callable[..., fast.FastTokenizer], kind: str, special_text: str
) -> None:
    """Special strings, stripped and single-word tokens, marks under NFC, characters of new Unicode versions."""
    inside = [
        f"{a}{text}{b}"
        for text in (*APART, *MARKS, *NEW, *SPACES)
        for a in ("", "r", " ", "é")
        for b in ("", "b", "  ")
    ]
    assert same(load(kind, special_text), inside)
    assert same(load(kind, special_text), ["a" * 50_000, " " * 50_000, "\n" * 50_000, "é1" * 20_000, ""])


def test_it_has_the_attributes_of_the_reference(load: Callable[..., fast.FastTokenizer]) -> None:
    """The versions of both engines are included."""
    for kind in KINDS:
        tokenizer = load(kind)
        reference = tokenizer.reference
        for name in ("kind", "data", "file_name", "file", "vocab_size", "eos_id", "bos_id", "pad_id", "special_tokens",
                     "token_names", "chat_template"):  # fmt: skip
            assert getattr(tokenizer, name) == getattr(reference, name)
        assert (tokenizer.engine, tokenizer.engine_note) == ("gigatoken", "")
        assert tokenizer.engine_version.endswith(f" ({reference.engine} {reference.engine_version})")
        ids, spans = tokenizer.encode_with_spans(TEXTS[4])
        assert spans.tolist() == reference.encode_with_spans(TEXTS[4])[1].tolist()
        assert tokenizer.decode(ids) == TEXTS[4]


UNSUITED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no split": (lambda v: v["pre_tokenizer"].update(use_regex=False), "differently from token"),
    "other ids": (lambda v: v["added_tokens"].append(added_token("<x>", 900)), "ids of added tokens"),
    "dropout": (lambda v: v["model"].update(dropout=0.1), "BPE without dropout"),
    "lower": (lambda v: v.update(normalizer={"type": "Lowercase"}), "normalizer Lowercase"),
    "nfkc": (lambda v: v.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}]}), "normalizer NFKC"),
    "regex": (
        lambda v: v.update(normalizer={"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}),
        "normalizer Replace by a regular expression",
    ),
    "normalized": (
        lambda v: (
            v.update(normalizer={"type": "NFC"}),
            v["added_tokens"].append(added_token("e\u0301", 600, normalized=True)),
        ),
        "added tokens that are normalized",
    ),
    "odd split": (
        lambda v: v.update(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}
        ),
        "gigatoken cannot load it",
    ),
}


@pytest.mark.parametrize("name", list(UNSUITED))
def test_a_tokenizer_that_it_cannot_replace_uses_the_reference(tokenizer_file: Path, tmp_path: Path, name: str) -> None:
    """`auto` returns the reference and says why; `fast` is an error that says why."""
    change, reason = UNSUITED[name]
    path = variant(tokenizer_file, tmp_path / "tokenizer.json", change)
    tokenizer = load_tokenizer(str(path), engine="auto")
    assert tokenizer.engine == "tokenizers"
    assert reason in tokenizer.engine_note
    with pytest.raises(ConfigError, match=f"tokenizer engine: .*{reason}.*use auto or reference"):
        load_tokenizer(str(path), engine="fast")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"normalization_rule_name": "nmt_nfkc"}, "Precompiled"),
        ({"remove_extra_whitespaces": True}, "Strip"),
        ({"byte_fallback": False, "vocab_size": 400}, "byte_fallback"),
        ({"model_type": "unigram", "vocab_size": 600}, "BPE"),
    ],
    ids=["nfkc", "spaces", "no bytes", "unigram"],
)
def test_a_model_that_it_cannot_replace_uses_the_reference(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    """Of sentencepiece only BPE with byte fallback and without normalization."""
    (tmp_path / "m").write_bytes(sentencepiece_model(**options))
    tokenizer = load_tokenizer(str(tmp_path / "m"), engine="auto")
    assert tokenizer.engine == "sentencepiece"
    assert reason in tokenizer.engine_note


def test_other_kinds_use_the_reference(
    tokenizer_file: Path, files: dict[str, tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    """Word vocabularies, custom patterns, ranks with gaps, added special tokens, bytes."""
    Library(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "words.json"))
    lines = (tmp_path / "holes", Path(files["tiktoken"][0]).read_bytes().splitlines())
    lines[0].write_bytes(b"\n".join(lines[1][:300] + lines[1][301:]))
    cases: list[tuple[str, dict[str, Any], str]] = [
        (str(tmp_path / "words.json"), {}, "not for WordLevel"),
        (files["tiktoken"][0], {"pattern": r"[\s\S]"}, "does not know the split pattern"),
        (str(lines[0]), {"pattern": "gpt2"}, "gigatoken cannot load it"),
        (str(tokenizer_file), {"add_special_tokens": True}, "does not add special tokens"),
    ]
    for path, options, reason in cases:
        tokenizer = load_tokenizer(path, engine="auto", **options)
        assert tokenizer.engine != "gigatoken"
        assert reason in tokenizer.engine_note
    assert load_tokenizer("bytes", engine="auto").engine_note == ""
    with pytest.raises(ConfigError, match="a bytes tokenizer needs no other engine"):
        load_tokenizer("bytes", engine="fast")
    with pytest.raises(ConfigError, match="tokenizer engine: expected reference, fast or auto, found 'quick'"):
        load_tokenizer("bytes", engine="quick")


@pytest.mark.parametrize(("kind", "name"), [("huggingface", "gigatoken"), ("sentencepiece", "awkward")])
def test_without_the_library_its_extra_is_named(
    files: dict[str, tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """`auto` works without it, `fast` says how to install it."""
    monkeypatch.setitem(sys.modules, name, None)
    path, options = files[kind]
    assert load_tokenizer(path, engine="auto", **options).engine != "gigatoken"
    with pytest.raises(ConfigError, match=r"run: pip install 'tokenstore\[fast\]'"):
        load_tokenizer(path, engine="fast", **options)


@pytest.mark.parametrize("kind", ["huggingface", "added", "nfc", "tiktoken"])
def test_byte_level_tokenizers_do_not_need_awkward(
    files: dict[str, tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Their texts are joined. It takes a quarter of a second to import, a sixth of a small build."""
    monkeypatch.setitem(sys.modules, "awkward", None)
    path, options = files[kind]
    assert same(load_tokenizer(path, engine="fast", **options), [*TEXTS, "", SEPARATOR, f"a{SEPARATOR} b", *NEW, ""])


def test_no_text_with_the_separator_reaches_the_engine() -> None:
    """It would be split there."""
    for nfc in (False, True):
        assert kinds_of([b"a", f"a {SEPARATOR}b".encode()], kind_table(nfc)).tolist() == [ASCII, UNTRUSTED]


STEP = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}


@pytest.mark.parametrize(
    ("change", "is_joined"),
    [
        ({}, True),
        ({"normalizer": {"type": "NFC"}}, True),
        ({"normalizer": {"type": "Prepend", "prepend": "\u2581"}}, False),
        ({"pre_tokenizer": {**STEP, "add_prefix_space": True}}, False),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [STEP]}}, True),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [METASPACE, STEP]}}, False),
        ({"pre_tokenizer": METASPACE}, False),
    ],
)
def test_texts_are_joined_only_if_no_step_looks_beyond_an_added_token(
    tokenizer_file: Path, tmp_path: Path, change: dict[str, Any], is_joined: bool
) -> None:
    """A prepended space, for example, is prepended to each text, and may not be after an added token."""
    path = variant(tokenizer_file, tmp_path / "tokenizer.json", lambda value: value.update(change))
    file = fast_file(load_tokenizer(str(path)), Request())
    assert (file.separator is not None) == is_joined


def test_only_pieces_with_unknown_characters_go_to_the_reference(
    load: Callable[..., fast.FastTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of long texts, if they can be cut; the tokens are those of the whole texts."""
    texts = ["plain words " * 200, f"{'some words ' * 500}{NEW[0]} {'more words ' * 500}", NEW[1], ""]
    for kind in ("huggingface", "nfc", "tiktoken"):
        tokenizer = load(kind)
        given: list[str] = []
        encode = tokenizer.reference.encode_batch
        with monkeypatch.context() as patched:
            patched.setattr(tokenizer, "checks", Checks(lambda *_: None))
            patched.setattr(
                tokenizer.reference, "encode_batch", lambda some, f=encode, to=given: to.extend(some) or f(some)
            )
            tokenizer.encode_batch(texts)
        assert sum(map(len, given)) < 2500
        assert same(tokenizer, texts)
    assert not getattr(load("added").reference, "can_be_cut", False)
    assert same(load("added"), texts)


def test_a_template_and_truncation_in_the_file_change_nothing(tokenizer_file: Path, tmp_path: Path) -> None:
    """Parts of a tokenizer.json that the reference ignores are ignored by the fast engine too."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_file.read_bytes())
    full = Library.from_file(str(path))
    full.enable_truncation(3)
    full.enable_padding(length=50)
    full.normalizer = normalizers.Sequence([])
    full.save(str(path))
    assert json.loads(path.read_text("utf-8"))["truncation"]
    assert same(load_tokenizer(str(path), engine="fast"), TEXTS)
