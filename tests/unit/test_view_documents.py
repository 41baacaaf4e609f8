"""A document decoded token by token, and the search for a document by its id."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.grown import documents_of, write
from tests.support.stores.masked import SMALL
from tests.support.stores.written import build_stores
from tokenstore.errors import ConfigError
from tokenstore.store import Store, open_store
from tokenstore.views import documents
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import document_of_id, view_document


def view(store: Store, number: int, *part: int) -> documents.DocumentView:
    return view_document(store, Decoder.of(store), number, *part)


class TestView:
    def test_a_view_has_id_origin_tokens_and_mask(self, tmp_path: Path) -> None:
        """The view of each document equals what was written."""
        wanted = documents_of(5, [3, 60, 1])
        store = open_store(write(tmp_path / "s", wanted))
        for number, document in enumerate(wanted):
            seen = view(store, number)
            assert (seen.number, seen.id, seen.num_tokens) == (number, document.id, len(document.tokens))
            assert (seen.origin.file, seen.origin.record) == (document.file, document.record)
            assert seen.num_in_loss == sum(document.mask)
            assert [id for segment in seen.excerpt.segments for id in segment.token_ids] == document.tokens
            assert [bit for segment in seen.excerpt.segments for bit in segment.in_loss] == document.mask
        assert view(store, -1) == view(store, 2)

    def test_the_text_equals_store_decode(self, jsonl: Callable[..., Path], tmp_path: Path) -> None:
        """Special tokens are included."""
        build_stores(tmp_path / "s", jsonl("a.jsonl", ["größer 🦊", "two"]))
        store = open_store(tmp_path / "s")
        assert view(store, 0).excerpt.text == store.decode(0) == "größer 🦊<|endoftext|>"
        assert (view(store, 0).id, view(store, 0).origin.record) == (None, 1)

    @given(start=st.integers(0, 12), stop=st.integers(0, 15))
    def test_an_excerpt_is_limited_to_the_document(self, small_masked: Path, start: int, stop: int) -> None:
        """Tokens [start, stop) are decoded; the counts are those of the whole document."""
        seen = view(open_store(small_masked), 4, start, stop)
        inside = [place for segment in seen.excerpt.segments for place in range(segment.start, segment.stop)]
        assert inside == list(range(start, min(stop, 11)))
        assert (seen.num_tokens, seen.num_in_loss) == (11, 10)
        assert [bit for s in seen.excerpt.segments for bit in s.in_loss] == SMALL.masks[4][start:stop]

    @pytest.mark.parametrize("number", [3, -4, 10**30])
    def test_a_missing_document_is_refused(self, make_store: Callable[..., Path], number: int) -> None:
        """The message has the number of documents."""
        store = open_store(make_store("s", [[1], [2], [3]]))
        with pytest.raises(ConfigError, match=r"document: the store has 3 documents, found -?\d+"):
            view(store, number)


class TestSearchById:
    @pytest.mark.parametrize("block", [1, 7, 1 << 24])
    def test_the_first_document_with_the_id_is_found(
        self, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
    ) -> None:
        """Only a whole id matches, wherever the blocks of the search end, and next to empty ids."""
        monkeypatch.setattr(documents, "_BLOCK", block)
        ids = ["aab", "", "", "ab", "b", "", "ü/☃", "ab", "aba", ""]
        build_stores(tmp_path / "s", jsonl("a.jsonl", [{"text": "x", "url": id} for id in ids]), id_field="url")
        store = open_store(tmp_path / "s")
        for id in {*ids} - {""}:
            assert document_of_id(store, id) == ids.index(id)
        for missing in ("a", "", "abab", "ü", "\ud800"):
            with pytest.raises(ConfigError, match="id: no document has the id"):
                document_of_id(store, missing)

    def test_progress_reaches_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is called with (bytes done, bytes in all), ascending."""
        monkeypatch.setattr(documents, "_BLOCK", 3)
        store = open_store(write(tmp_path / "s", documents_of(5, [1] * 9)))
        calls: list[tuple[int, int]] = []
        with pytest.raises(ConfigError):
            document_of_id(store, "nobody", lambda *row: calls.append(row))
        assert calls[-1][0] == calls[-1][1] == store.ids()[1].size
        assert calls == sorted(calls)

    def test_a_store_without_ids_is_refused(self, make_store: Callable[..., Path]) -> None:
        """The message names the build option."""
        with pytest.raises(ConfigError, match=r"id: the store has no ids .*--id-field"):
            document_of_id(open_store(make_store("s", [[1]])), "x")
