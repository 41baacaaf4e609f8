"""Search in a store, against a slow twin that checks every document: phrases in the text, and runs of token ids."""

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
    """The twin: (document, start, stop) of the first match in each document."""
    found = []
    for number in numbers:
        document, size = list(documents[number]), len(wanted)
        places = [at for at in range(len(document) - size + 1) if document[at : at + size] == list(wanted)]
        found += [(number, places[0], places[0] + size)] if places else []
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks and windows so small that they end everywhere."""
    monkeypatch.setattr(search_tokens, "_BLOCK", 7)
    monkeypatch.setattr(search_tokens, "_HITS", 2)
    monkeypatch.setattr(search_text, "_WINDOW", 20)


class TestTokens:
    @given(data=st.data())
    @pytest.mark.usefixtures("small_blocks")
    def test_matches_equal_the_twin(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        """Matches may cross shards but not documents; any range of documents can be searched."""
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

    def test_matches_in_blocks_of_real_size(self, make_store: Callable[..., Path]) -> None:
        """With rare and with common tokens."""
        rng = np.random.default_rng(0)
        documents = [rng.integers(0, 30, 50).tolist() for _ in range(2000)]
        store = open_store(make_store("s", documents, shard_bytes=1 << 14))
        for wanted in ([3], [3, 4], [0, 0, 0], [29, 1, 7]):
            found = [(hit.document, hit.start, hit.stop) for hit in documents_with_tokens(store, wanted)]
            assert found == with_tokens(documents, wanted, range(2000))

    def test_the_search_is_lazy(self, make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        """The first match is returned before the rest is read; progress reaches the end."""
        monkeypatch.setattr(search_tokens, "_BLOCK", 10)
        store = open_store(make_store("s", [[1, 2, 3]] * 20))
        calls: list[tuple[int, int]] = []
        hits = documents_with_tokens(store, [2, 3], None, lambda *row: calls.append(row))
        assert next(hits).document == 0
        assert calls == []
        assert len(list(hits)) == 19
        assert calls[-1] == (60, 60)

    @pytest.mark.parametrize("wanted", [[], [300], [-1], [2**70]])
    def test_ids_outside_the_vocabulary_are_refused(self, make_store: Callable[..., Path], wanted: list[int]) -> None:
        """They would wrap around to other ids, or match nothing."""
        with pytest.raises(ConfigError, match="search: expected one or more token ids below 300"):
            documents_with_tokens(open_store(make_store("s", [[1]])), wanted)

    @pytest.mark.parametrize("part", [range(1, 1), range(0, 3), range(2, 1)])
    def test_missing_documents_are_refused(self, make_store: Callable[..., Path], part: range) -> None:
        """The message has the range of the store."""
        store = open_store(make_store("s", [[1], [2]]))
        for search in (documents_with_tokens, lambda *args: documents_with_text(store, Decoder.of(store), "a", part)):
            with pytest.raises(ConfigError, match=r"documents: expected a range within 0:2"):
                search(store, [1], part)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> dict[str, Store]:
    """Stores of the texts, and of two long texts of all of them, by tokenizers of every kind."""
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
    def test_matches_equal_decoded_documents(self, stores: dict[str, Store], kind: str, data: st.DataObject) -> None:
        """However the characters of the phrase are cut into tokens."""
        store = stores[kind]
        phrase = data.draw(
            phrases("".join(TEXTS)) | st.text(min_size=1, max_size=3) | st.sampled_from([" ", "e", "\n"])
        )
        self.check(store, phrase)

    @pytest.mark.usefixtures("small_blocks")
    def test_a_match_does_not_include_a_preceding_cut_character(self, stores: dict[str, Store], kind: str) -> None:
        """A character of several tokens before the match decodes to several characters while it is incomplete."""
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
    def test_matches_in_windows_of_real_size(self, stores: dict[str, Store], kind: str, phrase: str) -> None:
        """Selected phrases, with the default window."""
        if not (kind == "sentencepiece" and phrase == "<|endoftext|>"):
            self.check(stores[kind], phrase)


DECODERS: dict[Path, Decoder] = {}


def test_a_space_that_the_decoder_drops_does_not_match(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """Some decoders drop the space of a word after a special token: the phrase must match the decoded document."""
    (tmp_path / "model").write_bytes(sentencepiece_model())
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    first, second = (tokenizer.encode_batch([text])[0].tolist() for text in ("a document", "The model"))
    rows = jsonl("a.jsonl", [{"input_ids": [*first, tokenizer.eos_id, *second]}])
    build_stores(tmp_path / "s", rows, tokenizer=str(tmp_path / "model"), records="tokens")
    store = open_store(tmp_path / "s")
    for phrase, found in (("</s>The", [0]), ("</s> The", []), ("document</s>The model</s>", [0])):
        assert (phrase in store.decode(0)) == bool(found)
        assert [hit.document for hit in documents_with_text(store, Decoder.of(store), phrase)] == found


class TestLongDocuments:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_match_across_two_windows_is_found(self, stores: dict[str, Store], kind: str) -> None:
        """A document of several windows: every phrase of it is found at its first place, also at the cuts."""
        store, tokenizer = stores[kind], stores[kind].tokenizer
        text = "".join(chr(0x4E00 + i) + "aß" for i in range(14_000))
        tokens = tokenizer.encode_batch([text])[0]
        assert tokens.size > 2 * search_text._WINDOW
        decoder = Decoder.of(store)
        for cut in (search_text._WINDOW, 2 * search_text._WINDOW):
            for first in range(cut - 12, cut + 50, 7):
                phrase = decoder.text(tokens[first : first + 9]).strip("\ufffd ")
                start, stop = search_text._first_place(decoder, tokens, phrase)
                assert phrase in decoder.text(tokens[start:stop])
                assert abs(start - first) < 4
        assert search_text._first_place(decoder, tokens, "\ufffd") is None


class TestQuestions:
    def test_an_empty_phrase_is_refused(self, stores: dict[str, Store]) -> None:
        """It would match every document."""
        with pytest.raises(ConfigError, match="search: the phrase is empty"):
            documents_with_text(stores["bytes"], Decoder.of(stores["bytes"]), "")

    def test_a_store_without_a_tokenizer_is_refused(self, stores: dict[str, Store]) -> None:
        """The message points to the search for ids."""
        with pytest.raises(ConfigError, match="no library; search for ids with --search-tokens"):
            documents_with_text(stores["bytes"], Decoder(None, "no library"), "x")

    def test_only_the_given_documents_are_searched(self, stores: dict[str, Store]) -> None:
        """Progress reaches the end of the range."""
        store, calls = stores["bytes"], []
        decoder = Decoder.of(store)
        assert [h.document for h in documents_with_text(store, decoder, "the", range(1, 3))] == [1]
        list(documents_with_text(store, decoder, "the", range(1, 3), lambda *row: calls.append(row)))
        assert calls[-1] == (store[1].size + store[2].size,) * 2

    def test_ids_unknown_to_the_tokenizer_do_not_stop_the_search(self, make_store: Callable[..., Path]) -> None:
        """The other ids are decoded."""
        store = open_store(make_store("s", [[999, 97, 98], [97, 999, 98]], vocab_size=1000))
        assert [hit.document for hit in documents_with_text(store, Decoder.of(store), "ab")] == [0]
