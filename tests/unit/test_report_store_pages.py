"""Pages of stores, read back: no text on them is active, and they show the content of the store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents
from tests.data.texts import TEXTS
from tests.support.report_pages import (
    ATTACKS,
    check_page,
    facts,
    hostile_store,
    make_plan,
    page_of,
    texts_store,
)
from tests.support.stores.grown import Kind, documents_of, grow, write
from tests.support.stores.written import build_stores
from tokenstore import open_store
from tokenstore.report.plan_page import plan_page
from tokenstore.report.plan_report import plan_report
from tokenstore.report.store_report import store_report
from tokenstore.text import percentage, safe

BARE = Kind(masks=False, origins=False, ids=False, length_index=False)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_store(tmp_path_factory.mktemp("hostile"))


class TestStores:
    def test_hostile_text_is_harmless(self, hostile: Path) -> None:
        """Markup, scripts, escapes and bidirectional controls in texts, ids and names are only shown."""
        with open_store(hostile) as store:
            page = page_of(store)
            assert len(page.boxes) == len(store) == len(ATTACKS)
            for number, box in enumerate(page.boxes):
                assert "".join(box.texts) == safe(store.decode(number), lines=True)
                assert box.tokens == store[number].tolist()
                assert safe(store.id(number), lines=True) in page.text
                assert safe(store.origin(number).file, lines=True) in page.text
            assert safe(hostile.name) in page.text
        assert "window.pwned" not in "".join(page.scripts)
        assert not [given for _, given in page.elements if {"onload", "onfocus", "autofocus"} & set(given)]

    def test_paths_in_commands_are_quoted(self, hostile: Path) -> None:
        """A command can be copied to a shell, whatever the path contains."""
        with open_store(hostile) as store:
            assert "'s <script>" not in (command := page_of(store, 0).shown.rpartition("To check it: ")[2])
        assert command.startswith("tokenstore verify '/")
        assert """$(touch x) '"'"'""" in command

    def test_tokens_of_one_character_share_an_element(
        self, jsonl: Callable[..., Path], tmp_path: Path, tokenizer_file: Path
    ) -> None:
        """The element has all their ids."""
        built = build_stores(tmp_path / "s", jsonl("a.jsonl", [*TEXTS, *ATTACKS]), tokenizer=str(tokenizer_file))
        with open_store(built.path) as store:
            boxes = page_of(store).boxes
            assert ["".join(box.texts) for box in boxes] == [
                safe(store.decode(n), lines=True) for n in range(len(store))
            ]
            assert [box.tokens for box in boxes] == [document.tolist() for document in store]
            assert any(len(ids) > 1 for box in boxes for ids in box.ids)

    @given(texts=st.lists(st.text(min_size=1, max_size=40).map("a b {}".format), min_size=1, max_size=4))
    def test_pages_of_any_text(self, tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
        """Tokens outside the loss are dim."""
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        with open_store(texts_store(tmp_path_factory.mktemp("any") / "s", texts)) as store:
            boxes = page_of(store).boxes
            assert ["".join(box.texts) for box in boxes] == [safe(text, lines=True) for text in texts]
            for number, box in enumerate(boxes):
                in_loss, at = store.loss_mask(number), 0
                for ids, classes in zip(box.ids, box.classes, strict=True):
                    assert ("dim" in classes) == (not in_loss[at : at + len(ids)].any())
                    at += len(ids)

    def test_facts_of_a_store(self, tmp_path: Path) -> None:
        """Totals, digest, tokenizer, lengths; the versions of a store that has grown."""
        path = write(tmp_path / "s", documents_of(3, [30, 4, 60, 9, 12, 40]))
        grow(path, documents_of(4, [1000]))
        with open_store(path) as store, open_store(path, version=1) as old:
            page, before = page_of(store), page_of(old)
            known = facts(page)
            assert (known["path"], known["digest"], known["version"]) == (str(path), store.digest, "2 of 1, 2")
            assert facts(before)["digest"] == old.digest
            assert "1,155 tokens 7 documents" in page.shown
            assert "155 tokens 6 documents" in before.shown
            assert (known["shortest"], known["longest"], known["mean"]) == ("4", "1,000", "165.0")
            assert known["has"] == "length index, origins, ids, loss masks"
            in_loss = sum(int(store.loss_mask(n).sum()) for n in range(7)) / store.num_tokens
            assert f"{percentage(in_loss)} of the tokens are in the loss" in page.shown
        assert "512 – 1,023" in page.shown

    def test_a_minimal_store(self, tmp_path: Path) -> None:
        """Without a length index there are no lengths, and the page names the command that adds it."""
        with open_store(write(tmp_path / "s", documents_of(1, [5]), BARE)) as store:
            page = page_of(store)
        assert facts(page)["has"] == "tokens only"
        assert f"To add it: tokenstore index {tmp_path / 's'}" in page.shown
        assert "Largest documents" not in page.shown
        assert len(page.boxes) == 1

    def test_samples_are_evenly_spaced(self, make_store: Callable[..., Path]) -> None:
        """At most all documents, at most the given number of tokens, and no section without samples."""
        with open_store(make_store("s", random_documents(1, 50, 20), length_index=True)) as store:
            assert [view.number for view in store_report(store, 5).samples] == [5, 15, 25, 35, 45]
            assert [view.number for view in store_report(store, 10**18).samples] == [*range(50)]
            assert all(len(box.tokens) <= 3 for box in page_of(store, 5, 3).boxes)
            page = page_of(store, 0)
            assert (page.boxes, "Samples" in page.shown) == ([], False)
            assert all(box.ids == [] for box in page_of(store, 5, 0).boxes)

    def test_without_a_tokenizer_ids_are_shown(
        self, jsonl: Callable[..., Path], tmp_path: Path, tokenizer_file: Path
    ) -> None:
        """The page has the reason."""
        build_stores(tmp_path / "s", jsonl("a.jsonl", TEXTS), tokenizer=str(tokenizer_file))
        (tmp_path / "s" / "tokenizer.json").write_bytes(b"x" * (tmp_path / "s" / "tokenizer.json").stat().st_size)
        with open_store(tmp_path / "s") as store:
            page = page_of(store)
            assert "tokenizer.json" in page.shown.partition("No text: ")[2]
            assert page.boxes[0].texts[:2] == [f"<{i}>" for i in store[0][:2]]
        plan = make_plan({"a": {"path": str(tmp_path / "s")}}, num_steps=2)
        assert "tokenizer.json" in check_page(plan_page(plan_report(plan))).shown.partition("No text: ")[2]

    def test_options_of_any_type_are_shown(self, hostile: Path) -> None:
        """Lists and hostile strings."""
        with open_store(hostile) as store:
            assert facts(page_of(store, 0))["text_endings"] == "[&#39;.a&lt;script&gt;\\x1b&#39;]"
