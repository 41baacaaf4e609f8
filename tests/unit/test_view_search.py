"""Search in a store against a slow twin that looks at every document: phrases in text, ids one after the other."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import write_store
from tests.data.texts import TEXTS
from tests.support.stores.vocabularies import sentencepiece_model
from tests.support.stores.written import build_stores
from tokenstore.errors import ConfigError
from tokenstore.store import Store, open_store
from tokenstore.tokenizer import load_tokenizer
from tokenstore.views import search_text, search_tokens
from tokenstore.views.decoding import Decoder
from tokenstore.views.search_text import documents_with_text
from tokenstore.views.search_tokens import documents_with_tokens

KINDS = ("bytes", "huggingface", "sentencepiece")


def with_tokens(documents: Sequence[Sequence[int]], wanted: Sequence[int], numbers: range) -> list[tuple]:
    """The twin: (document, start, stop) of the first place in each document."""
    found = []
    for number in numbers:
        document, size = list(documents[number]), len(wanted)
        places = [at for at in range(len(document) - size + 1) if document[at : at + size] == list(wanted)]
        found += [(number, places[0], places[0] + size)] if places else []
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end everywhere."""
    monkeypatch.setattr(search_tokens, "_BLOCK", 7)
    monkeypatch.setattr(search_tokens, "_HITS", 2)
    monkeypatch.setattr(search_text, "_BLOCK", 50)
    monkeypatch.setattr(search_text, "_WINDOW", 20)


class TestTokens:
    @given(data=st.data())
    @pytest.mark.usefixtures("small_blocks")
    def test_against_all_documents(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        """Every document that holds them and no other, over shards, never across documents, in any part of the store."""
        ids = st.integers(0, 2)
        documents = data.draw(st.lists(st.lists(ids, min_size=1, max_size=15), min_size=1, max_size=12))
        vocabulary = data.draw(st.sampled_from([300, 70_000]))
        store = open_store(write_store(tmp_path_factory.mktemp("s") / "s", documents, vocabulary, shard_bytes=60))
        wanted = data.draw(st.lists(ids, min_size=1, max_size=4))
        first = data.draw(st.integers(0, len(documents) - 1))
        part = range(first, data.draw(st.integers(first + 1, len(documents))))
        found = [(hit.document, hit.start, hit.stop) for hit in documents_with_tokens(store, wanted, part)]
        assert found == with_tokens(documents, wanted, part)
        everywhere = [hit.document for hit in documents_with_tokens(store, wanted)]
        assert everywhere == [row[0] for row in with_tokens(documents, wanted, range(len(documents)))]

    def test_many_documents(self, make_store: Callable[..., Path]) -> None:
        """Whole blocks at their real size, tokens that are rare and common."""
        rng = np.random.default_rng(0)
        documents = [rng.integers(0, 30, 50).tolist() for _ in range(2000)]
        store = open_store(make_store("s", documents, shard_bytes=1 << 14))
        for wanted in ([3], [3, 4], [0, 0, 0], [29, 1, 7]):
            found = [(hit.document, hit.start, hit.stop) for hit in documents_with_tokens(store, wanted)]
            assert found == with_tokens(documents, wanted, range(2000))

    def test_progress_and_laziness(self, make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        """Told up to the end; the first hit is there before the rest is looked at."""
        monkeypatch.setattr(search_tokens, "_BLOCK", 10)
        store = open_store(make_store("s", [[1, 2, 3]] * 20))
        reported: list[tuple[int, int]] = []
        hits = documents_with_tokens(store, [2, 3], None, lambda *row: reported.append(row))
        assert next(hits).document == 0
        assert reported == []
        assert len(list(hits)) == 19
        assert reported[-1] == (60, 60)

    @pytest.mark.parametrize("wanted", [[], [300], [-1], [2**70]])
    def test_ids_that_cannot_be(self, make_store: Callable[..., Path], wanted: list[int]) -> None:
        """Refused before the search: they would wrap to others, or find nothing."""
        with pytest.raises(ConfigError, match="search: expected ids below 300"):
            documents_with_tokens(open_store(make_store("s", [[1]])), wanted)

    @pytest.mark.parametrize("part", [range(1, 1), range(0, 3), range(2, 1)])
    def test_documents_that_are_not_there(self, make_store: Callable[..., Path], part: range) -> None:
        """The message says how many there are."""
        store = open_store(make_store("s", [[1], [2]]))
        for search in (documents_with_tokens, lambda *args: documents_with_text(store, Decoder.of(store), "a", part)):
            with pytest.raises(ConfigError, match=r"documents: expected some of 0:2"):
                search(store, [1], part)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> dict[str, Store]:
    """The texts, and two long ones of all of them, by tokenizers of every kind."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "model").write_bytes(sentencepiece_model())
    (folder / "in").mkdir()
    for number, text in enumerate([*TEXTS, " ".join(TEXTS), "x", "".join(TEXTS[::-1])]):
        (folder / "in" / f"{number:02d}.txt").write_bytes(text.encode())
    files = {"bytes": "bytes", "huggingface": str(tokenizer_file), "sentencepiece": str(folder / "model")}
    for kind, tokenizer in files.items():
        build_stores(folder / kind, folder / "in", tokenizer=tokenizer)
    return {kind: open_store(folder / kind) for kind in files}


def phrases(text: str) -> st.SearchStrategy[str]:
    """Parts of a text."""
    starts = st.integers(0, len(text) - 1)
    return st.tuples(starts, st.integers(1, 12) | st.integers(1, 100)).map(lambda at: text[at[0] : at[0] + at[1]])


@pytest.mark.parametrize("kind", KINDS)
class TestText:
    @given(data=st.data())
    @pytest.mark.usefixtures("small_blocks")
    def test_against_all_documents(self, stores: dict[str, Store], kind: str, data: st.DataObject) -> None:
        """Every document whose text holds the phrase and no other, however its characters are cut into tokens."""
        store = stores[kind]
        phrase = data.draw(
            phrases("".join(TEXTS)) | st.text(min_size=1, max_size=3) | st.sampled_from([" ", "e", "\n"])
        )
        self.check(store, phrase)

    @pytest.mark.usefixtures("small_blocks")
    def test_a_place_behind_a_cut_character(self, stores: dict[str, Store], kind: str) -> None:
        """A character of several tokens before the phrase reads as several while it is not whole, and is none of the hit."""
        self.check(stores[kind], "🇺")

    @staticmethod
    def check(store: Store, phrase: str) -> None:
        decoder = DECODERS.setdefault(store.path, Decoder.of(store))
        hits = list(documents_with_text(store, decoder, phrase))
        assert [hit.document for hit in hits] == [i for i in range(len(store)) if phrase in store.decode(i)]
        for hit in hits:
            assert phrase in decoder.text(store[hit.document][max(hit.start - 1, 0) : hit.stop])
            assert hit.start == 0 or phrase not in decoder.text(store[hit.document][hit.start + 1 : hit.stop])

    @pytest.mark.parametrize(
        "phrase",
        [
            "the",
            "🦊",
            "👩‍👩‍👧",
            "步",
            "\u2028",
            "<|endoftext|>",
            "plugh",
            " ",
            "�",
            "the the the the the the the",
            "</s>x",
        ],
    )
    def test_phrases(self, stores: dict[str, Store], kind: str, phrase: str) -> None:
        """At the real size of blocks."""
        if not (kind == "sentencepiece" and phrase == "<|endoftext|>"):
            self.check(stores[kind], phrase)

    def test_without_a_table(self, stores: dict[str, Store], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where texts of tokens do not follow one another all is decoded, and the same is found."""
        monkeypatch.setattr(Decoder, "texts", None)
        monkeypatch.setattr(search_text, "_WINDOW", 20)
        for phrase in ("the order", "🦊", "第十步"):
            self.check(stores[kind], phrase)

    def test_few_tokens_are_decoded(self, stores: dict[str, Store], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only what may hold the phrase: of one that is not there nearly nothing, though its letters are."""
        store, decoded = stores[kind], []
        decoder = DECODERS.setdefault(store.path, Decoder.of(store))
        assert decoder.texts
        text = Decoder.text
        monkeypatch.setattr(Decoder, "text", lambda self, ids: decoded.append(len(ids)) or text(self, ids))
        search = search_text._Search(store, decoder, "stepping stone")
        table = search.table()
        decoded.clear()
        monkeypatch.setattr(search, "table", lambda: table)
        assert list(search.hits(search_tokens.parts_of(store, None), lambda done, total: None)) == []
        assert sum(decoded) < store.num_tokens / 3


DECODERS: dict[Path, Decoder] = {}


def test_a_space_that_goes_behind_a_special_token(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """Decoders that take a word's space away there: the phrase is found as it reads in the document, and only so."""
    (tmp_path / "model").write_bytes(sentencepiece_model())
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    first, second = (tokenizer.encode_batch([text])[0].tolist() for text in ("a document", "The model"))
    rows = jsonl("a.jsonl", [{"input_ids": [*first, tokenizer.eos_id, *second]}])
    build_stores(tmp_path / "s", rows, tokenizer=str(tmp_path / "model"), records="tokens")
    store = open_store(tmp_path / "s")
    for phrase, found in (("</s>The", [0]), ("</s> The", []), ("document</s>The model</s>", [0])):
        assert (phrase in store.decode(0)) == bool(found)
        assert [hit.document for hit in documents_with_text(store, Decoder.of(store), phrase)] == found


class TestQuestions:
    def test_no_phrase(self, stores: dict[str, Store]) -> None:
        """An empty phrase is in every text: a mistake."""
        with pytest.raises(ConfigError, match="search: expected a phrase, found none"):
            documents_with_text(stores["bytes"], Decoder.of(stores["bytes"]), "")

    def test_a_store_that_cannot_be_decoded(self, stores: dict[str, Store]) -> None:
        """It can be searched by ids still, and the message says so."""
        with pytest.raises(ConfigError, match="no library; use --search-tokens"):
            documents_with_text(stores["bytes"], Decoder(None, 300, "no library"), "x")

    def test_a_part_of_the_documents(self, stores: dict[str, Store]) -> None:
        """And nothing around it; progress is told up to the end of the part."""
        store, reported = stores["bytes"], []
        decoder = Decoder.of(store)
        assert [h.document for h in documents_with_text(store, decoder, "the", range(1, 3))] == [1]
        list(documents_with_text(store, decoder, "the", range(1, 3), lambda *row: reported.append(row)))
        assert reported[-1] == (store[1].size + store[2].size,) * 2

    def test_ids_of_no_token(self, make_store: Callable[..., Path]) -> None:
        """A store of other ids than its tokenizer knows is searched as far as it can be decoded."""
        store = open_store(make_store("s", [[999, 97, 98], [97, 999, 98]], vocab_size=1000))
        assert [hit.document for hit in documents_with_text(store, Decoder.of(store), "ab")] == [0]
