"""tokenstore merge: one store with the documents of several, whose shards are hard links."""

import errno
import os
import shutil
from pathlib import Path

import pytest

import tokenstore
from tests.support.stores.building import contents, left_behind
from tests.support.stores.grown import ALL, Kind, check_documents, documents_of, grow, write
from tokenstore.builder import BuildOptions, append_store, build_store, merge
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.store import open_store, verify

FIRST, SECOND, THIRD = documents_of(1, [3, 1, 40, 7]), documents_of(2, [2, 9, 30]), documents_of(3, [5, 5, 9000])


@pytest.mark.parametrize("shard_bytes", [20, 1 << 20])
def test_a_merged_store_has_all_documents_and_copies_no_token(tmp_path: Path, shard_bytes: int) -> None:
    """FMT-2, FMT-3, FMT-10..12: tokens, masks, origins and ids, also of a store that has grown."""
    grow(write(tmp_path / "a", FIRST, shard_bytes=shard_bytes), SECOND)
    write(tmp_path / "b", THIRD)
    result = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    assert verify(result.path) == []
    with open_store(result.path) as store:
        check_documents(store, FIRST + SECOND + THIRD)
        for shard, name in ((0, "a/tokens-00000.bin"), (-1, "b/tokens-00000.bin")):
            assert os.path.samefile(result.path / store.shards()[shard].file, tmp_path / name)
    assert left_behind(result.path) == []


def test_the_digest_is_that_of_a_store_with_the_same_shards(tmp_path: Path) -> None:
    """FMT-5: merging and growing give the same identity."""
    write(tmp_path / "a", FIRST)
    write(tmp_path / "b", SECOND)
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    grow(write(tmp_path / "c", FIRST), SECOND)
    assert merged.digest == open_store(tmp_path / "c").digest


@pytest.mark.parametrize("without", ["masks", "ids", "origins"])
@pytest.mark.parametrize("first", [True, False])
def test_what_one_store_lacks_is_filled(tmp_path: Path, without: str, first: bool) -> None:
    """FMT-10, FMT-12: all tokens are in the loss, ids are empty; origins are dropped, with a note."""
    kinds = [Kind(**{without: False}), ALL] if first else [ALL, Kind(**{without: False})]
    for name, documents, kind in zip("ab", (FIRST, SECOND), kinds, strict=True):
        write(tmp_path / name, documents, kind)
    notes: list[str] = []
    result = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m", note=notes.append)
    filled = {"masks": lambda d: d._replace(mask=[True] * len(d.tokens)), "ids": lambda d: d._replace(id="")}
    change = filled.get(without, lambda d: d)
    parts = [
        list(map(change, documents)) if not getattr(kind, without) else documents
        for documents, kind in zip((FIRST, SECOND), kinds, strict=True)
    ]
    with open_store(result.path) as store:
        check_documents(store, parts[0] + parts[1], Kind(origins=without != "origins"))
    assert verify(result.path) == []
    assert bool(notes) == (without == "origins")


def test_metadata_have_the_columns_of_all_stores(tmp_path: Path) -> None:
    """FMT-14: a column that a store lacks has no value there; types are widened."""
    for name, columns in (("a", {"x": 1, "y": "u"}), ("b", {"x": 0.5, "z": [1]}), ("c", {})):
        with tokenstore.StoreWriter(tmp_path / name, tokenizer="bytes", metadata=tuple(columns)) as writer:
            writer.write("text", metadata=columns)
    merge([tmp_path / name for name in "abc"], tmp_path / "m")
    with open_store(tmp_path / "m") as store:
        assert [store.metadata(i) for i in range(3)] == [
            {"x": 1.0, "y": "u", "z": None},
            {"x": 0.5, "y": None, "z": [1]},
            {"x": None, "y": None, "z": None},
        ]
    assert verify(tmp_path / "m") == []


def test_stores_that_do_not_fit_are_refused(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "in.txt").write_text("text")
    for name, options in (("a", {}), ("b", {"eos": False}), ("c", {"tokenizer": str(tokenizer_file)})):
        build_store(BuildOptions((str(tmp_path / "in.txt"),), tmp_path / name, **{"tokenizer": "bytes", **options}))
    for names, message in (
        ("ab", "the same end of documents, found True in .*a and False in .*b"),
        ("ac", "the same tokenizer kind, found 'bytes' .* and 'huggingface'"),
        ("aa", "two or more stores, each once"),
        ("a", "two or more stores"),
    ):
        with pytest.raises(ConfigError, match=message):
            merge([tmp_path / name for name in names], tmp_path / "m")
    for output in ("a", "in.txt"):
        with pytest.raises(ConfigError, match="output: "):
            merge([tmp_path / "a", shutil.copytree(tmp_path / "a", tmp_path / f"copy-{output}")], tmp_path / output)
    assert not (tmp_path / "m").exists()


def test_options_are_recorded_by_range_where_they_differ(tmp_path: Path) -> None:
    """Such a store is not appended to; one whose parts had the same options is."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
        options = BuildOptions(
            (str(tmp_path / f"{number}.txt"),), tmp_path / f"s{number}", "bytes", min_tokens=number // 2
        )
        build_store(options)
    same = merge([tmp_path / "s0", tmp_path / "s1"], tmp_path / "same").path
    other = merge([same, tmp_path / "s2"], tmp_path / "other").path
    assert append_store(same, [str(tmp_path / "2.txt")]).num_documents == 3
    with pytest.raises(ConfigError, match="merged from stores that were built with different options"):
        append_store(other, [str(tmp_path / "2.txt")])
    ranges = open_store(other).manifest.options["merged"]
    assert [(each["documents"], each["options"]["min_tokens"]) for each in ranges] == [(2, 0), (1, 1)]


def test_files_are_copied_where_they_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "other device")

    write(tmp_path / "a", FIRST)
    write(tmp_path / "b", SECOND)
    linked = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "linked")
    monkeypatch.setattr(os, "link", refuse)
    notes: list[str] = []
    copied = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "copied", note=notes.append)
    assert contents(copied.path) == contents(linked.path)
    assert len(notes) == 1
    (tmp_path / "a/tokens-00000.bin").chmod(0o644)
    data = bytearray((tmp_path / "a/tokens-00000.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "a/tokens-00000.bin").write_bytes(data)
    with pytest.raises(CorruptionError, match="checksum"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", FIRST)
    write(tmp_path / "b", SECOND)
    (tmp_path / "b/inputs.jsonl").chmod(0o644)
    data = (tmp_path / "b/inputs.jsonl").read_bytes()
    (tmp_path / "b/inputs.jsonl").write_bytes(data.replace(b"part", b"port"))
    with pytest.raises(CorruptionError):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("masks", [(True, True), (False, True), (False, False)])
def test_block_checksums_are_joined(tmp_path: Path, masks: tuple[bool, bool]) -> None:
    """FMT-15: those of the shards and masks, in order; not if a store has none."""
    for name, with_masks in zip("ab", masks, strict=True):
        with tokenstore.StoreWriter(
            tmp_path / name, tokenizer="bytes", masks=with_masks, shard_bytes=400_000
        ) as writer:
            for number in range(5):
                writer.write([number] * 90_000)
    result = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    with open_store(result.path) as store:
        assert store.has_block_checksums
    assert verify(result.path) == []  # which compares them with the shards and masks
    write(tmp_path / "plain", FIRST)
    plain = merge([tmp_path / "plain", write(tmp_path / "plain2", SECOND)], tmp_path / "m2")
    assert not open_store(plain.path).has_block_checksums
