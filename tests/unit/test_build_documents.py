"""`build_store`: which documents, of which tokens, in which shards a store has."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from tokenizers import processors

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.building import Build, as_bytes, counts, documents, mixed_corpus
from tokenstore.errors import BadRecordsError


@pytest.mark.parametrize("special_text", ["plain", "special"])
@pytest.mark.parametrize(("start", "eos"), [("none", True), ("none", False), ("eos", True), ("eos", False), ("bos", True), ("bos", False)])  # fmt: skip
def test_documents_are_the_tokens_of_the_reference_library_and_special_tokens(
    build: Build,
    jsonl: Callable[..., Path],
    tokenizer_file: Path,
    tmp_path: Path,
    start: str,
    eos: bool,
    special_text: str,
) -> None:
    """Each document is what the tokenizers library makes of its text, with the start and end tokens of the options."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(tokenizer_file, folder)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>", "bos_token": "<|user|>"}')
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    reference.encode_special_tokens = special_text == "plain"
    texts = [*TEXTS, "a<|endoftext|>b", "<|user|>"]
    before = {"none": [], "eos": [0], "bos": [1]}[start]
    expected = [before + reference.encode(t, add_special_tokens=False).ids + [0] * eos for t in texts]
    options = {"document_start": start, "eos": eos, "special_text": special_text}
    result = build(jsonl("in.jsonl", texts), tokenizer=str(folder / "tokenizer.json"), **options)
    assert documents(result.path) == expected
    assert (result.num_documents, result.num_tokens) == (len(texts), sum(map(len, expected)))
    manifest = tokenstore.open_store(result.path).manifest
    assert manifest.ends_with_eos is eos
    assert (manifest.tokenizer.eos_id, manifest.tokenizer.bos_id, manifest.tokenizer.pad_id) == (0, 1, None)


def test_tokens_of_a_template_in_the_tokenizer_file_are_not_added(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path, tmp_path: Path
) -> None:
    """A post-processor in the tokenizer file adds no tokens by default."""
    templated = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    templated.post_processor = processors.TemplateProcessing("<|user|> $A <|user|>", None, [("<|user|>", 1)])
    templated.save(str(tmp_path / "tokenizer.json"))
    result = build(jsonl("in.jsonl", ["a"]), tokenizer=str(tmp_path / "tokenizer.json"))
    assert documents(result.path) == [[*templated.encode("a", add_special_tokens=False).ids, 0]]


def test_documents_are_in_the_order_of_files_and_lines(build: Build, tmp_path: Path) -> None:
    """Documents follow the order of arguments, sorted paths and lines."""
    corpus = mixed_corpus(tmp_path / "in")
    result = build(corpus / "e.jsonl", corpus, max_bad=3)
    texts = ["the last", *TEXTS * 3, TEXTS[2], *TEXTS[:6], TEXTS[3] * 20]
    assert documents(result.path) == as_bytes(*texts)


def test_documents_without_text_are_dropped_and_counted(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """Empty texts become documents only with keep_empty, and otherwise are counted."""
    (tmp_path / "empty.txt").touch()
    inputs = (jsonl("in.jsonl", ["a", "", "b", "", " "]), tmp_path / "empty.txt")
    result = build(*inputs)
    assert documents(result.path) == as_bytes("a", "b", " ")
    assert result.counts == {"input files": 2, **counts(documents=3, empty=3)}
    kept = build(*inputs, output="kept", keep_empty=True)
    assert documents(kept.path) == as_bytes("a", "", "b", "", " ", "")
    assert kept.counts == {"input files": 2, **counts(documents=6)}


def test_a_document_without_any_token_cannot_be_kept(build: Build, jsonl: Callable[..., Path]) -> None:
    """Without special tokens an empty text has no tokens: it is dropped and counted, even with keep_empty."""
    result = build(jsonl("in.jsonl", ["a", "", "b"]), keep_empty=True, eos=False)
    assert documents(result.path) == [[97], [98]]
    assert result.counts["empty"] == 1


def test_a_text_without_tokens_counts_as_empty(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """Some tokenizers drop spaces: a text of spaces does not become a document of one eos token."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<eos>"])
    words.save(str(tmp_path / "tokenizer.json"))
    source = jsonl("in.jsonl", ["a", "  ", "a a", "\n"])
    options = {"tokenizer": str(tmp_path / "tokenizer.json"), "document_start": "eos"}
    result = build(source, **options)
    assert documents(result.path) == [[1, 0, 1], [1, 0, 0, 1]]
    assert result.counts["empty"] == 2
    assert documents(build(source, output="kept", keep_empty=True, **options).path) == [
        [1, 0, 1],
        [1, 1],
        [1, 0, 0, 1],
        [1, 1],
    ]


def test_text_comes_from_the_text_field(build: Build, jsonl: Callable[..., Path]) -> None:
    """`a.b` is field b of object a."""
    result = build(jsonl("in.jsonl", [{"a": {"b": "x"}, "text": "y"}]), text_field="a.b")
    assert documents(result.path) == as_bytes("x")


def test_special_text_error_makes_records_with_special_tokens_bad(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path
) -> None:
    """The reason names the token, and the other documents are kept."""
    source = jsonl("in.jsonl", ["a", "b<|user|>c", "d"])
    options = {"tokenizer": str(tokenizer_file), "special_text": "error"}
    with pytest.raises(BadRecordsError, match=r"record 2 of in\.jsonl: special token '<\|user\|>' in the text"):
        build(source, **options)
    assert build(source, max_bad=1, **options).num_documents == 2


@pytest.mark.parametrize("shard_bytes", [4, 100, 1000])
def test_no_document_straddles_shards(build: Build, jsonl: Callable[..., Path], shard_bytes: int) -> None:
    """A new shard begins before the document that would exceed the target size; a larger document is alone in its shard."""
    source = jsonl("in.jsonl", TEXTS)
    result = build(source, shard_bytes=shard_bytes)
    assert documents(result.path) == as_bytes(*TEXTS)
    shards = tokenstore.open_store(result.path).shards()
    assert result.num_shards == len(shards) > 1
    assert all(shard.num_bytes <= shard_bytes or shard.num_documents == 1 for shard in shards)
    sizes = [2 * len(document) for document in documents(result.path)]
    for before, after in pairwise(shards):
        assert before.num_bytes + sizes[after.first_document] > shard_bytes
