"""`retokenize`: documents made again from their inputs are the same, and differences are found and named."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

import tokenstore
from tests.support.stores.appended import rows, stores_of, write_rows
from tests.support.stores.building import contents
from tests.support.stores.grown import edit_manifest
from tokenstore.builder import BuildOptions, append_store, build_store, retokenize
from tokenstore.builder import retokenize as _function
from tokenstore.builder.documents import hooks
from tokenstore.errors import ConfigError, CorruptionError, FormatError
from tokenstore.store import Finding, open_store

ENDINGS = (".jsonl", ".txt", ".jsonl.gz", ".txt.zst", ".csv", ".tsv", ".parquet", ".arrow")
LISTS = (".jsonl", ".jsonl.zst", ".parquet", ".arrow")
module = sys.modules[_function.__module__]


def build(output: Path, *inputs: object, **options: Any) -> Path:
    """A store, or the folder of stores of splits."""
    wanted = BuildOptions(tuple(map(str, inputs)), output, **{"tokenizer": "bytes", **options})
    return build_store(wanted).path


def fill(folder: Path, endings: tuple[str, ...] = ENDINGS, *others: object) -> Path:
    """Make a folder of inputs in several formats, each with other records; `others` follow those of .jsonl."""
    for number, ending in enumerate(endings):
        more = others if ending == ".jsonl" else ()
        write_rows(folder / f"{number}{ending}", [*rows(number), *more])
    return folder


def read_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the documents that are compared from now on."""
    seen: list[int] = []
    real = module._difference

    def noted(store: object, document: int, *rest: object) -> str:
        seen.append(document)
        return real(store, document, *rest)

    monkeypatch.setattr(module, "_difference", noted)
    return seen


CASES = {
    "every format": (ENDINGS, {}),
    "bad records": ((".jsonl", ".parquet"), {"max_bad": 1, "id_field": "id"}),
    "huggingface": (ENDINGS[:3], {"tokenizer": "file", "special_text": "special", "document_start": "eos"}),
    "lengths": (ENDINGS, {"min_tokens": 100, "max_tokens": 150, "keep_empty": True}),
    "tokens": (LISTS, {"records": "tokens", "mask_field": "labels", "id_field": "id"}),
    "tokens without masks": (LISTS, {"records": "tokens", "eos": False}),
    "chat": (LISTS, {"records": "chat", "chat_template": "chatml", "id_field": "id"}),
    "chat of a tokenizer": (LISTS, {"records": "chat", "chat_template": "plain", "tokenizer": "file"}),
    "splits and equal ones": (ENDINGS[:3], {"split": "a=0.5,b=0.5", "dedup": "exact"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sound_store_has_no_findings(
    tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """P9: every document of every format and kind of record is made again and equal, also after an append."""
    endings, options = CASES[case]
    options = {**options, **({"tokenizer": str(tokenizer_file)} if "tokenizer" in options else {})}
    others = (
        ({"id": "x", "text": 7},)
        if options.get("max_bad")
        else ({"text": rows(0)[1]["text"]},)
        if "dedup" in options
        else ()
    )
    store = build(tmp_path / "store", fill(tmp_path / "in", endings, *others), **options)
    more = write_rows(tmp_path / "more/x.jsonl", rows(20))
    if "dedup" not in options:
        append_store(store, [str(more)])
    seen = read_by(monkeypatch)
    for path in stores_of(store):
        assert retokenize(path, [str(tmp_path / "in"), str(more)], 1) == []
        assert seen == [*range(len(open_store(path)))]
        seen.clear()
        assert retokenize(path, [str(tmp_path / "in")], 1, version=1) == []
        assert seen == [*range(len(open_store(path, version=1)))]
        seen.clear()


def test_filters_and_maps_are_applied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: records are found by their numbers, however many the filter drops; the map's changes are made again."""
    code = tmp_path / "retokenize_hooks.py"
    code.write_text("def change(record):\n    return {'text': record['text'] * 2} if record['number'] % 3 else None\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = write_rows(tmp_path / "in/a.jsonl", rows(1))
    store = build(tmp_path / "store", source, map="retokenize_hooks:change")
    assert retokenize(store, [str(source)], 1, map="retokenize_hooks:change") == []
    monkeypatch.setattr(hooks, "_loaded", {})
    monkeypatch.delitem(sys.modules, "retokenize_hooks")
    code.write_text("def change(record):\n    return {'text': record['text']} if record['number'] != 5 else None\n")
    with pytest.raises(ConfigError, match="map_sha256 was"):
        retokenize(store, [str(source)], 1, map="retokenize_hooks:change")
    code.unlink()
    with pytest.raises(ConfigError, match="hook: cannot import 'retokenize_hooks:change'"):
        retokenize(store, [str(source)], 1, map="retokenize_hooks:change")


@pytest.mark.parametrize(("share", "step"), [(0.01, 100), (0.5, 2), (1, 1), (1e-9, 1 << 40), (5e-324, 1 << 40)])
def test_a_share_is_spread_over_every_input(
    tmp_path: Path, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, share: float, step: int
) -> None:
    """P9: 1 % is every hundredth document of each input, and at least one."""
    sizes = [250, 3, 101]
    sources = [jsonl(f"{i}.jsonl", [f"{i} {n}" for n in range(size)]) for i, size in enumerate(sizes)]
    store = build(tmp_path / "store", *sources)
    seen = read_by(monkeypatch)
    assert retokenize(store, list(map(str, sources)), share) == []
    starts = [0, 250, 253]
    assert seen == [first + n for first, size in zip(starts, sizes, strict=True) for n in range(0, size, step)]


@pytest.mark.parametrize("share", [0, -0.1, 1.001, float("nan"), float("inf")])
def test_a_share_out_of_range_is_refused(tmp_path: Path, jsonl: Callable[..., Path], share: float) -> None:
    """P9: a share is above 0 and at most 1."""
    source = jsonl("a.jsonl", ["a"])
    store = build(tmp_path / "store", source)
    with pytest.raises(ConfigError, match=r"retokenize: expected more than 0 and at most 100 %, found .* %"):
        retokenize(store, [str(source)], share)


def test_impossible_requests_are_refused(
    tmp_path: Path, jsonl: Callable[..., Path], make_store: Callable[..., Path]
) -> None:
    """P9: a store without origins, one that no build made, a folder of splits, a missing version or input."""
    source = jsonl("a.jsonl", ["a", "b", "c", "d"])
    with pytest.raises(ConfigError, match="has no origins"):
        retokenize(build(tmp_path / "plain", source, origins=False), [str(source)], 1)
    with pytest.raises(ConfigError, match="has no origins"):
        retokenize(make_store("not built", [[1, 2]]), [str(source)], 1)
    with pytest.raises(FormatError, match=r"found a directory without manifest\.json"):
        retokenize(build(tmp_path / "split", source, split="a=0.5,b=0.5"), [str(source)], 1)
    store = build(tmp_path / "store", source)
    with pytest.raises(FormatError, match="store version: expected one of 1, found 2"):
        retokenize(store, [str(source)], 1, version=2)
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        retokenize(store, [str(tmp_path / "nowhere")], 1)


@pytest.mark.parametrize(
    ("change", "place", "found"),
    [
        ((3, "third", "THIRD"), "record 3", "6 tokens instead of 6, different from token 0 on"),
        ((3, "third", "thirD"), "record 3", "6 tokens instead of 6, different from token 4 on"),
        ((3, '"third"', '"fift" '), "record 3", "5 tokens instead of 6, different from token 0 on"),
        ((3, '"text"', '"texx"'), "record 3", "no field 'text'; the record has 'texx'"),
        ((3, '{"text": "third"}', " " * 17), "record 3", "no such record"),
    ],
)
def test_a_changed_input_of_the_same_size_is_found(
    tmp_path: Path, jsonl: Callable[..., Path], change: tuple[int, str, str], place: str, found: str
) -> None:
    """P9: only the record that differs is named, with its tokens now."""
    source = jsonl("a.jsonl", ["first", "second", "third", "fourth", "fifth"])
    store = build(tmp_path / "store", source)
    _, old, new = change
    source.write_text(
        source.read_text().replace(old, new)
        if "text" not in old or old[0] == "{"
        else "".join(
            line.replace(old, new) if "third" in line else line for line in source.read_text().splitlines(keepends=True)
        )
    )
    assert retokenize(store, [str(source)], 1) == [Finding("a.jsonl", place, "the tokens of document 2", found)]


def test_an_input_with_fewer_records_is_found(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    """P9: of the same size."""
    source = jsonl("a.jsonl", ["first", "second"])
    store = build(tmp_path / "store", source)
    source.write_bytes(b'{"text": "first"}'.ljust(source.stat().st_size))
    assert [f.place for f in retokenize(store, [str(source)], 1)] == ["record 2"]


@pytest.mark.parametrize("damage", ["missing", "other size", "cut"])
def test_missing_and_damaged_inputs_are_findings(tmp_path: Path, damage: str) -> None:
    """P9: also one of another size; the other inputs are compared."""
    folder = fill(tmp_path / "in", (".jsonl", ".jsonl.gz", ".txt"))
    store = build(tmp_path / "store", folder)
    path = folder / "1.jsonl.gz"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-99] + bytes(99))
    else:
        path.write_bytes(path.read_bytes() + b"\n" * 3)
    if damage == "missing":
        path.unlink()
    (finding,) = retokenize(store, [str(folder)], 1)
    assert finding.file == "inputs.jsonl"
    assert "1.jsonl.gz" in finding.place + finding.expected


def test_a_changed_token_is_found_though_its_checksum_fits(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    """P9: a mistake of a tokenizer or writer, which checksums cannot show."""
    source = jsonl("a.jsonl", ["first", "second"])
    store = build(tmp_path / "store", source)
    shard = store / "tokens-00000.bin"
    data = bytearray(shard.read_bytes())
    data[2 * 7] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    (finding,) = retokenize(store, [str(source)], 1)  # of a damaged store as well
    checksum = xxhash.xxh3_128_hexdigest(data)
    edit_manifest(
        store, lambda body: (body["shards"][0].update(checksum=checksum), body["files"].pop("block_checksums.bin"))
    )
    (store / "block_checksums.bin").unlink()
    assert tokenstore.verify(store) == []
    assert retokenize(store, [str(source)], 1) == [finding]
    assert (
        str(finding)
        == "a.jsonl: record 2: expected the tokens of document 1, found 7 tokens instead of 7, different from token 1 on"
    )


@pytest.mark.parametrize("name", ["mask-00000.bin", "ids.bin"])
def test_another_mask_or_id_is_found(tmp_path: Path, name: str) -> None:
    """P9: not only tokens are compared."""
    source = write_rows(tmp_path / "in/a.jsonl", rows(1))
    store = build(tmp_path / "store", source, records="tokens", mask_field="labels", id_field="id")
    data = bytearray((store / name).read_bytes())
    data[0 if name[0] == "m" else -1] ^= 1
    (store / name).chmod(0o644)
    (store / name).write_bytes(data)
    (finding,) = retokenize(store, [str(source)], 1)
    assert finding.found == ("another loss mask" if name[0] == "m" else "the id '1-8', not '1-9'")


def test_damaged_lists_of_inputs_are_an_error(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    """P9: nothing can be compared without the list; there is no traceback."""
    source = jsonl("a.jsonl", ["first", "second"])
    store = build(tmp_path / "store", source)
    path = store / "inputs.jsonl"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"{", b"["))
    with pytest.raises(CorruptionError, match=r"inputs\.jsonl"):
        retokenize(store, [str(source)], 1)


def test_inputs_of_equal_name_and_size_are_distinguished(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    """P9: inputs may have moved; of several that look alike the right one is found."""
    jsonl("in/x.jsonl", ["first", "thing"])
    jsonl("in/sub/x.jsonl", ["other", "words"])
    jsonl("in/sub/sub/x.jsonl", ["third", "batch"])
    store = build(tmp_path / "store", tmp_path / "in")
    assert retokenize(store, [str(tmp_path / "in")], 1) == []
    shutil.move(tmp_path / "in", tmp_path / "some/where/else")
    for argument in ("some", "some/where/else", "some/**/*.jsonl"):
        assert retokenize(store, [str(tmp_path / argument)], 1) == []
    jsonl("some/where/else/sub/x.jsonl", ["other", "wordy"])
    assert [(f.file, f.place) for f in retokenize(store, [str(tmp_path / "some")], 1)] == [("sub/x.jsonl", "record 2")]


def test_it_writes_nothing_and_reports_bytes(tmp_path: Path) -> None:
    """P9: a check changes nothing; progress ends with the bytes of all inputs."""
    folder = fill(tmp_path / "in", (".jsonl", ".csv", ".parquet"))
    store = build(tmp_path / "store", folder)
    before, steps = contents(store), []
    assert retokenize(store, [str(folder)], 0.5, progress=lambda *done: steps.append(done)) == []
    assert contents(store) == before
    assert sorted(os.listdir(tmp_path)) == ["in", "store"]
    assert [sum(done for done, _ in steps)] * len(steps) == [total for _, total in steps]
    assert len(steps) == 3
    assert json.loads((store / "inputs.jsonl").read_text().splitlines()[0])["file"] == "0.jsonl"
