"""tokenstore drop: the next version of a store without some documents (FMT-19)."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenstore
from tests.support.processes.command_lines import run_here
from tests.support.stores.building import left_behind
from tests.support.stores.grown import ALL, Document, Kind, check_documents, contents, documents_of, grow, write
from tokenstore.builder import append_store, drop, merge
from tokenstore.builder.drop import read_ids
from tokenstore.errors import ConfigError, FormatError
from tokenstore.store import next_version, open_store, verify


def numbered(count: int, seed: int = 1, longest: int = 30) -> list[Document]:
    lengths = np.random.default_rng(seed).integers(1, longest, count).tolist()
    return [each._replace(id=f"d{seed}-{i}") for i, each in enumerate(documents_of(seed, lengths))]


@settings(max_examples=30)
@given(
    dropped=st.sets(st.integers(0, 39), min_size=1, max_size=39),
    shard_bytes=st.sampled_from([1, 60, 200, 1 << 20]),
    kind=st.sampled_from([ALL, Kind(masks=False), Kind(origins=False, length_index=False)]),
)
def test_the_other_documents_stay_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, dropped: set[int], shard_bytes: int, kind: Kind
) -> None:
    """FMT-19: tokens, masks, origins, ids and the length index of the rest; the old version is unchanged, byte for byte."""
    documents, folder = numbered(40), tmp_path_factory.mktemp("drop")
    path = write(folder / "s", documents, kind, shard_bytes)
    before = contents(path)
    (result,), unknown = drop(path, [f"d1-{i}" for i in dropped] + ["none"])
    rest = [each for i, each in enumerate(documents) if i not in dropped]
    assert (result.dropped_documents, result.version, result.affected_versions, unknown) == (
        len(dropped),
        2,
        (1,),
        ["none"],
    )
    assert result.dropped_tokens == sum(len(documents[i].tokens) for i in dropped)
    assert verify(path) == []
    with open_store(path) as store, open_store(path, version=1) as old:
        check_documents(store, rest, kind)
        check_documents(old, documents, kind)
    after = contents(path)
    assert {name: after[name] for name in before if name != "manifest.json"} == {n: d for n, d in before.items() if n != "manifest.json"}  # fmt: skip
    assert after["manifest-v1.json"] == before["manifest.json"]
    assert left_behind(path) == []
    (again,), _ = drop(path, [f"d1-{i}" for i in dropped])
    assert (again.dropped_documents, again.version, again.affected_versions) == (0, 2, ())
    assert contents(path) == after


def test_only_shards_with_dropped_documents_are_written(tmp_path: Path) -> None:
    """Shards before them are shared; those whose number changes are links, and those left without documents are gone."""
    documents = [each._replace(id=f"{i}") for i, each in enumerate(documents_of(1, [10] * 6))]
    path = write(tmp_path / "s", documents, shard_bytes=40)
    drop(path, ["2", "3", "5"])
    with open_store(path) as store:
        assert [shard.file for shard in store.shards()] == ["tokens-00000.bin", "tokens-00001-v2.bin"]
    drop(path, ["0", "1"])
    with open_store(path) as store:
        assert [shard.file for shard in store.shards()] == ["tokens-00000-v3.bin"]
        assert os.path.samefile(path / "tokens-00000-v3.bin", path / "tokens-00001-v2.bin")
        assert os.path.samefile(path / "mask-00000-v3.bin", path / "mask-00001-v2.bin")
        check_documents(store, documents[4:5])
    assert verify(path) == []


def test_a_store_grows_after_a_drop_and_loses_documents_after_that(tmp_path: Path) -> None:
    """Numbers of shards that are free again get names that no version has. Every version stays readable."""
    first, second = numbered(6, 1), numbered(6, 2)
    path = write(tmp_path / "s", first, shard_bytes=1)
    drop(path, ["d1-4", "d1-5"])
    grow(path, second)
    drop(path, ["d1-0", "d2-3"])
    wanted = [first, first[:4], first[:4] + second, first[1:4] + second[:3] + second[4:]]
    for version, documents in enumerate(wanted, 1):
        with open_store(path, version=version) as store:
            check_documents(store, documents)
        assert verify(path, version=version) == []
    merged = merge([path, write(tmp_path / "t", first)], tmp_path / "m")
    with open_store(merged.path) as store:
        check_documents(store, wanted[-1] + first)


def test_purge_removes_older_versions_and_their_tokens(tmp_path: Path) -> None:
    """Nothing of the dropped documents is left on the disk; files of others in the folder stay."""
    documents = [Document([7, 8, 9] * 5, [True] * 15, "f", i + 1, f"{i}") for i in range(3)]
    documents[1] = documents[1]._replace(tokens=[211, 212, 213] * 5)
    path = write(tmp_path / "s", documents)
    (path / "notes.txt").write_text("mine")
    drop(path, ["1"], purge=True)
    assert not any(np.array([211, 212, 213], "<u2").tobytes() in data for data in contents(path).values())
    assert (path / "notes.txt").read_text() == "mine"
    with pytest.raises(FormatError, match="expected one of 2, found 1"):
        open_store(path, version=1)
    assert verify(path) == []
    append_after = grow(path, numbered(2, 3))
    assert append_after.num_documents == 4


def test_a_killed_drop_leaves_one_version_or_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before each step of the commit: the store is whole, and the same call finishes."""
    documents = numbered(20)
    whole = write(tmp_path / "whole", documents, shard_bytes=100)
    drop(whole, ["d1-3", "d1-17"])
    for step in ("move_files", "write_atomically"):
        path = write(tmp_path / step, documents, shard_bytes=100)
        with monkeypatch.context() as patched:
            patched.setattr(next_version, step, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                drop(path, ["d1-3", "d1-17"])
        with open_store(path) as store:
            check_documents(store, documents)
        drop(path, ["d1-3", "d1-17"])
        assert contents(path) == contents(whole)


def test_damage_is_not_copied_under_a_new_checksum(tmp_path: Path) -> None:
    path = write(tmp_path / "s", numbered(5))
    (path / "tokens-00000.bin").chmod(0o644)
    data = bytearray((path / "tokens-00000.bin").read_bytes())
    data[0] ^= 1
    (path / "tokens-00000.bin").write_bytes(data)
    with pytest.raises(tokenstore.TokenStoreError, match="checksum"):
        drop(path, ["d1-4"])
    assert not (path / "manifest-v1.json").exists()


def test_what_cannot_be_dropped_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s", numbered(3))
    plain = write(tmp_path / "plain", numbered(3), Kind(ids=False))
    for store, ids, message in (
        (path, ["d1-0", "d1-1", "d1-2"], "would lose all its 3 documents"),
        (plain, ["d1-0"], "has no ids"),
        (tmp_path, [], "has no ids"),
        (tmp_path / "none", [], "no store at"),
    ):
        with pytest.raises(tokenstore.TokenStoreError, match=message):
            drop(store, ids)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ids(tmp_path / "none")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_ids(tmp_path / "bad.txt")


def test_all_stores_of_a_build_are_searched(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    """Of splits and partitions; metadata and shuffled origins stay with their documents."""
    rows = [{"text": f"text {i}", "id": str(i), "k": "ab"[i % 2]} for i in range(60)]
    options = {
        "id_field": "id",
        "keep": ("k",),
        "shuffle_documents": 3,
        "partition_by": "k",
        "split": "x=0.5,y=0.5",
        "dedup": "exact",
    }
    built = tokenstore.build(jsonl("in.jsonl", rows), tmp_path / "s", "bytes", **options)
    results, unknown = drop(tmp_path / "s", [str(i) for i in range(0, 60, 5)])
    assert (sum(each.dropped_documents for each in results), unknown) == (12, [])
    seen = set()
    for each in built.splits:
        assert verify(each.path) == []
        with open_store(each.path) as store:
            for i in range(len(store)):
                name = store.id(i)
                seen.add(int(name))
                assert (store.decode(i), store.origin(i).record) == (f"text {name}<|endoftext|>", int(name) + 1)
                assert store.metadata(i) == {"k": "ab"[int(name) % 2]}
    assert seen == {i for i in range(60) if i % 5}
    store = tokenstore.build(jsonl("more.jsonl", rows), tmp_path / "t", "bytes", id_field="id").path
    drop(store, ["7"])
    assert append_store(store, [str(jsonl("new.jsonl", [{"text": "n", "id": "new"}]))]).num_documents == 60
    assert append_store(store, [str(tmp_path / "more.jsonl")]).was_there


def test_the_command_names_versions_and_plans_that_are_affected(tmp_path: Path) -> None:
    path = write(tmp_path / "s", numbered(5))
    (tmp_path / "ids.txt").write_text("d1-1\r\nunknown\n\n")
    for name, version in (("old", "version: 1"), ("new", "weight: 1")):
        (tmp_path / f"{name}.yaml").write_text(
            f"sources:\n  web: {{path: s, {version}}}\nsequence_length: 8\nglobal_batch_size: 1\n"
        )
    plans = [tmp_path / "old.yaml", tmp_path / "new.yaml"]
    done = run_here("drop", path, "--ids", tmp_path / "ids.txt", "--plans", *plans)
    assert done.returncode == 0, done.stderr
    assert "1 document of" in done.stdout
    assert "1 id not found: unknown" in done.stdout
    assert "older versions still hold the documents (s: 1)" in done.stdout
    assert f"plan {plans[0]}, source web: reads version 1, which still holds the documents" in done.stdout
    assert f"plan {plans[1]}, source web: reads the newest version from its next start" in done.stdout
    found = json.loads(run_here("drop", path, "--ids", tmp_path / "ids.txt", "--json").stdout)
    assert (found["stores"][0]["dropped_documents"], found["unknown_ids"]) == (0, ["d1-1", "unknown"])
    purged = run_here("drop", path, "--ids", tmp_path / "ids.txt", "--purge").stdout
    assert "nothing to remove" in purged
    assert "older versions: removed, with their files" in purged
