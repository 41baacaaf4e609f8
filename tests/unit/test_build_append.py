"""`append_store`: an appended store equals one build of all inputs, and its older versions remain."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

import tokenstore
from tests.data.texts import TEXTS
from tests.support.stores.appended import known, rows, stores_of, whole_tree, write_rows
from tests.support.stores.building import Build, contents, left_behind
from tokenstore.builder import BuildOptions, BuildResult, append_store, build_store
from tokenstore.store import open_store, versions

HOOKS = """
def keep(record):
    return "number" not in record or int(record["number"]) % 3 != 0

def change(record):
    return {**record, "text": record["text"].upper()}
"""


def rank_file(folder: Path) -> Path:
    """A rank file of all bytes and two pairs."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"er"]
    path = folder / "ranks.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return path


def sentencepiece_file(folder: Path) -> Path:
    """A sentencepiece model of the texts shipped here."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=600, byte_fallback=True, minloglevel=2
    )
    path = folder / "model.model"
    path.write_bytes(model.getvalue())
    return path


ALL_TEXT = (".jsonl", ".txt", ".jsonl.gz", ".txt.zst", ".csv", ".tsv", ".parquet", ".arrow")
LISTS = (".jsonl", ".jsonl.zst", ".parquet", ".arrow")
CASES: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "every format": (ALL_TEXT, {"shard_bytes": 600}),
    "ids, no origins": ((".jsonl", ".csv"), {"id_field": "id", "origins": False, "shard_bytes": 500}),
    "ids and origins": ((".parquet", ".jsonl"), {"id_field": "id"}),
    "empty kept": (ALL_TEXT[:2], {"keep_empty": True, "eos": False, "document_start": "bos"}),
    "lengths": (ALL_TEXT[:3], {"min_tokens": 90, "max_tokens": 150, "shard_bytes": 300}),
    "hooks": ((".jsonl", ".csv"), {"filter": "my_hooks:keep", "map": "my_hooks:change", "id_field": "id"}),
    "huggingface": (ALL_TEXT[:2], {"tokenizer": "huggingface", "document_start": "bos", "special_text": "special"}),
    "post-processor": (ALL_TEXT[:2], {"tokenizer": "huggingface", "add_special_tokens": True}),
    "tiktoken": (
        ALL_TEXT[:2],
        {"tokenizer": "tiktoken", "pattern": "gpt2", "special_tokens": ("<|endoftext|>", "<|pad|>=300")},
    ),
    "sentencepiece": (ALL_TEXT[:2], {"tokenizer": "sentencepiece", "document_start": "bos"}),
    "tokens": (LISTS, {"records": "tokens", "mask_field": "labels", "shard_bytes": 100}),
    "tokens, mask found": (LISTS, {"records": "tokens", "id_field": "id"}),
    "chat": (LISTS, {"records": "chat", "chat_template": "chatml", "shard_bytes": 900}),
    "chat of a tokenizer": (LISTS, {"records": "chat", "tokenizer": "huggingface", "train_on": "all"}),
    "chat, tiktoken": (
        LISTS,
        {
            "records": "chat",
            "tokenizer": "tiktoken",
            "pattern": r"\s+|\S+",
            "eos_token": "<|z|>",
            "special_tokens": ("<|z|>",),
            "chat_template": "plain",
        },
    ),
    "splits": (ALL_TEXT[:3], {"split": "train=0.6, val=0.3,test=0.1", "shard_bytes": 700}),
    "splits of chats": ((".jsonl",), {"records": "chat", "chat_template": "alpaca", "split": "b=0.5,a=0.5"}),
}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build inputs into a store, or into one per split, and verify it; with the bytes tokenizer by default."""

    def run(*inputs: object, output: str = "store", **options: object) -> BuildResult:
        result = build_store(
            BuildOptions(tuple(map(str, inputs)), tmp_path / output, **{"tokenizer": "bytes", **options})
        )
        assert [finding for made in result.splits or (result,) for finding in tokenstore.verify(made.path)] == []
        return result

    return run


@pytest.fixture
def settle(tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict], dict]:
    """Options with the tokenizer's path for its kind, and the module of hooks where it is found."""
    folder = tmp_path / "side"
    folder.mkdir()
    (folder / "my_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "my_hooks", raising=False)

    def settled(options: dict) -> dict:
        kind = options.get("tokenizer")
        if kind == "huggingface":
            shutil.copy(tokenizer_file, folder / "tokenizer.json")
            config = {
                "eos_token": "<|endoftext|>",
                "bos_token": {"content": "<|user|>"},
                "unk_token": "<|endoftext|>",
                "chat_template": "{%- for m in messages -%}\r\n{{- bos_token + m.role + unk_token + m.content + eos_token -}}\r\n{%- endfor -%}",
            }
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
        make = {"tiktoken": rank_file, "sentencepiece": sentencepiece_file, "huggingface": lambda folder: folder / "tokenizer.json"}  # fmt: skip
        return {**options, "tokenizer": str(make[kind](folder))} if kind else options

    return settled


@pytest.mark.parametrize("case", CASES)
def test_an_appended_store_equals_one_build_of_all_inputs(
    build: Build, tmp_path: Path, settle: Callable[[dict], dict], case: str
) -> None:
    """P8, FMT-13: documents, origins, ids, masks, order, counts and inputs are the same, and every older version still
    has its content and digest.
    """
    endings, options = CASES[case]
    options = settle(options)
    named = {name: options[name] for name in ("filter", "map") if name in options}
    count = 3 if case in ("every format", "tokens", "splits") else 2
    batches = [[str(write_rows(tmp_path / f"in/{i}-{e[1:]}{e}", rows(i))) for e in endings] for i in range(count)]
    whole = build(*(source for batch in batches for source in batch), output="whole", **options)
    first = build(*batches[0], **options)
    before = [{path: (known(path), open_store(path).digest) for path in stores_of(first.path)}]
    for batch in batches[1:]:
        result = append_store(first.path, batch, **named)
        assert not result.was_there
        before.append({path: (known(path), open_store(path).digest) for path in stores_of(first.path)})
    for path, same in zip(stores_of(first.path), stores_of(whole.path), strict=True):
        assert tokenstore.verify(path) == []
        assert known(path) == known(same)
        assert versions(path) == [*range(1, count + 1)]
        for version in versions(path):
            assert tokenstore.verify(path, version=version) == []
            there = known(path, version), open_store(path, version=version).digest
            assert there == before[version - 1][path]
    assert (result.num_documents, result.num_tokens, result.counts) == (whole.num_documents, whole.num_tokens, whole.counts)  # fmt: skip
    assert [part.path.name for part in result.splits] == [part.path.name for part in whole.splits]
    assert left_behind(first.path) == []


def test_a_build_of_all_inputs_recognises_an_appended_store(build: Build, tmp_path: Path) -> None:
    """P8: run over the store that the inputs were appended to, it has nothing to do."""
    a, b = (write_rows(tmp_path / f"in/{i}.jsonl", rows(i)) for i in range(2))
    store = build(a).path
    append_store(store, [str(b)])
    assert build(a, b).was_there
    with pytest.raises(tokenstore.errors.ConfigError, match=r"inputs\[1\] was .* is null.*tokenstore append"):
        build(a)
    assert build(a, overwrite=True).num_documents == 8
    assert versions(store) == [1]


def test_appended_records_with_masks_do_not_add_masks_to_a_store_without(build: Build, tmp_path: Path) -> None:
    """P8: as in one build of all inputs, the first record of the first input decides that there are no masks."""
    plain = [{"input_ids": row["input_ids"]} for row in rows(0)]
    a, b = write_rows(tmp_path / "in/a.jsonl", plain), write_rows(tmp_path / "in/b.jsonl", rows(1))
    whole = build(a, b, records="tokens", output="whole")
    store = build(a, records="tokens").path
    append_store(store, [str(b)])
    assert known(store) == known(whole.path)
    assert known(store)["has"] == (False, True, False)


def test_the_bytes_do_not_depend_on_workers(
    build: Build, tmp_path: Path, small_units: Callable[[int], None], settle: Callable[[dict], dict]
) -> None:
    """P8: every file of the longer store and the list of bad records are the same for 1 and 2 workers, and if inputs are
    moved.
    """
    small_units(2000)
    options = settle({"tokenizer": "huggingface", "id_field": "id", "split": "a=0.5,b=0.5", "shard_bytes": 500})
    trees = []
    for workers, place in ((1, "in"), (2, "elsewhere/in")):
        a, b = (write_rows(tmp_path / place / f"{i}.jsonl", [*rows(i), {"text": 7}, *rows(i + 5)]) for i in range(2))
        store = build(a, output=f"s{workers}/store", max_bad=1, **options).path
        result = append_store(store, [str(b)], workers=workers, max_bad=1)
        assert result.rejects == store.with_name("store.tokenstore") / "rejects-v2.jsonl"
        trees.append(whole_tree(store.parent))
    assert trees[0] == trees[1]
    assert {name.partition("/")[0] for name in trees[0]} == {
        "store",
        "store.tokenstore",
    }


def test_bad_records_leave_the_store_as_it_was_and_are_listed(build: Build, jsonl: Callable[..., Path]) -> None:
    """P9: too many bad records change neither the store nor the list of its build, and are listed in a file of their
    own.
    """
    store = build(jsonl("in/a.jsonl", ["a", {"text": 1}]), max_bad=1).path
    before, list_before = contents(store), (store.with_name("store.tokenstore") / "rejects.jsonl").read_bytes()
    source = jsonl("in/b.jsonl", ["b", {"text": 2}, {"text": 3}])
    with pytest.raises(
        tokenstore.errors.BadRecordsError, match=r"bad records: 2 so far.*record 2 of b\.jsonl"
    ) as caught:
        append_store(store, [str(source)], max_bad=1)
    listed = store.with_name("store.tokenstore") / "rejects-v2.jsonl"
    assert str(listed) in str(caught.value)
    assert [json.loads(line)["record"] for line in listed.read_text().splitlines()] == [2, 3]
    assert contents(store) == before
    result = append_store(store, [str(source)], max_bad=2)
    assert (result.rejects, result.counts["bad"], result.num_documents) == (listed, 3, 2)
    assert (store.with_name("store.tokenstore") / "rejects.jsonl").read_bytes() == list_before
    assert left_behind(store) == ["rejects-v2.jsonl", "rejects.jsonl"]


def test_the_lists_of_bad_records_are_not_inputs(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """P8: a store inside its input folder: what appends and builds write next to it is never read."""
    jsonl("in/a.jsonl", ["a"])
    store = build(tmp_path / "in", output="in/store").path
    for number in (2, 3):
        jsonl(f"new{number}/b{number}.jsonl", ["b", {"text": 2}])
        append_store(store, [str(tmp_path / f"new{number}")], max_bad=1)
    with pytest.raises(
        tokenstore.errors.ConfigError, match=r"1 of 2 inputs are in the store already, such as a\.jsonl"
    ):
        append_store(store, [str(tmp_path / "in"), str(jsonl("in/c.jsonl", ["c"]))])
    assert build(tmp_path / "in", output="in/store", overwrite=True).num_documents == 2


def result_twice(store: Path, source: Path) -> tuple[BuildResult, BuildResult]:
    return append_store(store, [str(source)]), append_store(store, [str(source)])


@pytest.mark.parametrize("split", [None, "a=0.5,b=0.5"])
def test_repeating_an_append_does_nothing(build: Build, tmp_path: Path, split: str | None) -> None:
    """P8: inputs that the store has are not added again, and both results describe the same store."""
    a, b, c = (write_rows(tmp_path / f"in/{i}.jsonl", rows(i)) for i in range(3))
    store = build(a, split=split).path
    first, second = result_twice(store, b)
    assert second == BuildResult(
        **{**vars(first), "was_there": True, "new_documents": 0, "new_tokens": 0, "splits": second.splits}
    )
    before = {path: path.stat() for path in store.rglob("*")}
    append_store(store, [str(c)])
    after = whole_tree(store)
    for source in (a, b, c, b):
        assert append_store(store, [str(source)]).was_there
    assert append_store(store, [str(c), str(b)]).was_there
    assert whole_tree(store) == after
    assert set(before) < set(store.rglob("*"))


def test_inputs_of_which_the_store_has_some_are_refused(build: Build, tmp_path: Path) -> None:
    """Half an append is never wanted: the message names an input the store has. A file that has grown counts as another."""
    a, b = (write_rows(tmp_path / f"in/{i}.jsonl", rows(i)) for i in range(2))
    store = build(a).path
    before = contents(store)
    with pytest.raises(
        tokenstore.errors.ConfigError, match=r"1 of 2 inputs are in the store already, such as 0\.jsonl"
    ):
        append_store(store, [str(a), str(b)])
    assert contents(store) == before
    assert left_behind(store) == []
    assert append_store(store, [str(b)]).num_documents == 16
