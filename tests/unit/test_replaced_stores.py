"""A store is pinned when it is opened (FMT-8): another store or file in its place is never read as the old one."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stores.forge import overwrite, replace
from tests.support.stores.grown import ALL, Document, documents_of, grow, write
from tokenstore import Plan, TokenLoader
from tokenstore.errors import CorruptionError
from tokenstore.store import Store, open_store, versions
from tokenstore.store.length_index import add_length_index
from tokenstore.store.pin import Pace

LENGTHS = [3, 40, 8, 17, 9, 30, 25, 12] * 4
REPLACED = r"store: expected the digest \w+, as when it was opened, found the digest \w+ \(.*\); it was replaced while"
CHANGED = r"file: expected the checksum \w+, found \w+ \(.*{}\); the file was damaged, or replaced while in use: run `tokenstore verify"


def documents(seed: int) -> list[Document]:
    """Documents of equal lengths, so that files have equal sizes: only the contents differ between two such stores."""
    return [
        document._replace(tokens=[1 + (token + seed) % 299 for token in document.tokens], id=f"{seed} {number:04}")
        for number, document in enumerate(documents_of(1, LENGTHS))
    ]


def store_of(path: Path, seed: int) -> Path:
    return write(path, documents(seed), shard_bytes=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_of(tmp_path / "s", 1)


@pytest.fixture
def other(tmp_path: Path, path: Path) -> Path:
    other = store_of(tmp_path / "other", 2)
    assert {file.name: file.stat().st_size for file in path.glob("*.bin")} == {
        file.name: file.stat().st_size for file in other.glob("*.bin")
    }
    return other


def by_folder(path: Path, other: Path) -> None:
    path.rename(path.with_name("old"))
    other.rename(path)


def by_removal(path: Path, other: Path) -> None:
    shutil.rmtree(path)
    other.rename(path)


def file_by_file(path: Path, other: Path, manifest_first: bool = False) -> None:
    for file in sorted(other.iterdir(), key=lambda file: (file.name == "manifest.json") != manifest_first):
        os.replace(file, path / file.name)


def manifest_first(path: Path, other: Path) -> None:
    file_by_file(path, other, manifest_first=True)


def in_place(path: Path, other: Path) -> None:
    for file in other.iterdir():
        overwrite(path / file.name, file.read_bytes())
        os.truncate(path / file.name, file.stat().st_size)


HOWS = [by_folder, by_removal, file_by_file, manifest_first, in_place]


def look(store: Store) -> None:
    """Let time pass, so that the next read checks the mapped files."""
    store._pace = Pace()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("check", ["sizes", "lazy"])
@pytest.mark.parametrize("mapped", [True, False])
def test_an_open_store_never_returns_data_of_another(
    path: Path, other: Path, how: Callable, check: str, mapped: bool
) -> None:
    """P9, FMT-8: whether or not its files were mapped before, and whatever else is opened and closed."""
    store, expected = open_store(path, check), [document.tokens for document in documents(1)]
    if mapped:
        assert [tokens.tolist() for tokens in store] == expected
    how(path, other)
    with open_store(path) as new:
        assert new[0].tolist() == documents(2)[0].tokens
        look(store)
        for i in range(len(store)):
            with pytest.raises(CorruptionError, match=REPLACED):
                store[i]
        assert new.digest != store.digest
    with pytest.raises(CorruptionError, match=REPLACED):
        store[0]


READS: dict[str, Callable[[Store], object]] = {
    "loss_mask": lambda store: store.loss_mask(0),
    "id": lambda store: store.id(0),
    "origin": lambda store: store.origin(0),
    "inputs": lambda store: store.inputs(),
    "tokenizer": lambda store: store.tokenizer,
    "decode": lambda store: store.decode(0),
    "length_index": lambda store: store.length_index(),
    "runs": lambda store: store.runs(),
    "boundaries": lambda store: store.boundaries(),
    "shard": lambda store: store.shard(1),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("how", [by_folder, in_place])
def test_all_files_of_a_store_are_pinned(path: Path, other: Path, how: Callable, read: Callable) -> None:
    """P9: not only tokens."""
    store = open_store(path)
    how(path, other)
    look(store)
    with pytest.raises(CorruptionError, match="replaced while in use"):
        read(store)


@pytest.mark.parametrize(
    "name", ["tokens-00001.bin", "mask-00001.bin", "boundaries.bin", "length_index.bin", "origins.bin", "ids.bin"]
)
@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_with_different_content_is_named(path: Path, name: str, mapped: bool) -> None:
    """P9, FMT-8: manifest and size are unchanged: the checksum is compared, once."""
    store = open_store(path)
    number = store.number_of(name) if name[0] in "bloi" else 1 if name[0] == "t" else store.mask_number(1)
    store.close()
    if mapped:
        store.array(number)
    data = (path / name).read_bytes()
    replace(path / name, bytes(byte ^ 1 for byte in data))
    look(store)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=CHANGED.format(name)):
            store.array(number)


def test_inputs_with_different_content_are_named(path: Path) -> None:
    """P9: files that are read but not mapped."""
    store = open_store(path)
    data = (path / "inputs.jsonl").read_bytes()
    replace(path / "inputs.jsonl", data.replace(b"part 1", b"part 2"))
    with pytest.raises(CorruptionError, match=CHANGED.format(r"inputs\.jsonl")):
        store.origin(0)
    replace(path / "inputs.jsonl", data)
    assert store.origin(0).file == "part 1-0.jsonl"
    replace(path / "inputs.jsonl", data.replace(b"part 1", b"part 2"))
    with pytest.raises(CorruptionError, match=CHANGED.format(r"inputs\.jsonl")):
        store.origin(len(store) - 1)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_copy_of_the_same_bytes_is_the_same_store(path: Path, mapped: bool) -> None:
    """FMT-8: restored, copied or touched files are read once more, and then accepted."""
    store = open_store(path)
    if mapped:
        assert len(list(store)) == len(LENGTHS)
    shutil.copytree(path, path.with_name("copy"))
    by_folder(path, path.with_name("copy"))
    look(store)
    assert [tokens.tolist() for tokens in store] == [document.tokens for document in documents(1)]
    for file in path.iterdir():
        os.utime(file, ns=(1, 1))
    look(store)
    assert [store.id(i) for i in range(3)] == [document.id for document in documents(1)][:3]
    read: list[int] = []
    store._pin.check_content = read.append
    look(store)
    assert len(list(store)) == len(LENGTHS)
    assert read == []


def test_a_removed_store_is_reported(path: Path) -> None:
    """P9: once it is restored, it can be read again."""
    store = open_store(path)
    path.rename(path.with_name("away"))
    with pytest.raises(CorruptionError, match=r"found no store at .*found nothing; .*replaced while"):
        store[0]
    path.with_name("away").rename(path)
    assert store[0].tolist() == documents(1)[0].tokens


def test_growing_and_indexing_change_nothing_for_an_open_store(path: Path) -> None:
    """`append` and `index` during a run are not replacements; each costs one more check of the manifest and the
    sizes.
    """
    kind = ALL._replace(length_index=False)
    path = write(path.with_name("plain"), documents(1), kind, shard_bytes=100)
    store, lazy = open_store(path), open_store(path, "lazy")
    pickled = pickle.dumps(store)
    expected = [document.tokens for document in documents(1)]
    assert add_length_index(path)
    grow(path, documents(3), kind, shard_bytes=100)
    old = open_store(path, version=1)
    grow(path, documents(4), kind, shard_bytes=100)
    assert versions(path) == [1, 2, 3]
    for each in (store, lazy, old, pickle.loads(pickled)):
        look(each)
        assert [tokens.tolist() for tokens in each] == expected
        assert (each.version, each.manifest_path.name) == (1, "manifest-v1.json")
    assert (store.has_length_index, old.has_length_index) == (False, True)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("how", HOWS)
def test_a_version_of_a_grown_store_is_pinned_too(path: Path, other: Path, version: int, how: Callable) -> None:
    """P9: a replacement is detected whether or not it has grown."""
    grow(path, documents(3), ALL, shard_bytes=100)
    store = open_store(path, version=version)
    if how is not in_place:
        grow(other, documents(4), ALL, shard_bytes=100)
    how(path, other)
    look(store)
    for i in range(len(store)):
        with pytest.raises(CorruptionError, match="replaced while in use"):
            store[i]


def test_a_pickle_knows_its_digest(path: Path, other: Path) -> None:
    """P9: a worker that opens another store than the one it was sent reports it."""
    store, plan = pickle.dumps(open_store(path)), pickle.dumps(Plan.of(path, 8, 4))
    assert pickle.loads(store).digest == pickle.loads(plan).stores["s"].digest
    by_folder(path, other)
    with pytest.raises(
        CorruptionError, match=r"expected the digest \w+, as when it was pickled, found \w+ \(.*replaced"
    ):
        pickle.loads(store)
    with pytest.raises(CorruptionError, match=r"source s: expected the store \w+, found \w+ \(.*replaced while a run"):
        pickle.loads(plan)


# ---- runs


def rows_until_refused(batches: Callable[[int], list], steps: int) -> tuple[list[list], str]:
    given = []
    for step in range(steps):
        try:
            given.append(batches(step))
        except CorruptionError as error:
            return given, str(error)
    return given, ""


# By default each way runs with each packing, and stops at one of the three places; the others are long tests
RUNS = [
    pytest.param(packing, how, before, marks=[pytest.mark.deep] * ((i + j + k) % 3 > 0))
    for i, packing in enumerate(("concat", "best_fit"))
    for j, how in enumerate(HOWS)
    for k, before in enumerate((0, 1, 3))
]


@pytest.mark.filterwarnings("ignore:.*epochs")
@pytest.mark.parametrize(("packing", "how", "before"), RUNS)
def test_a_run_gives_the_tokens_of_the_store_it_began_with(
    path: Path, other: Path, packing: str, how: Callable, before: int
) -> None:
    """P9: replaced before the first batch or during the run: right rows, then an error."""
    arguments = {"sequence_length": 16, "global_batch_size": 2, "packing": packing, "num_steps": 60}
    expected = [Plan.of(path, **arguments).batch(step)["input_ids"].tolist() for step in range(60)]
    plan = Plan.of(path, **arguments)
    loader = iter(TokenLoader(plan, prefetch=0))
    for step in range(before):
        assert next(loader)["input_ids"].tolist() == plan.batch(step)["input_ids"].tolist() == expected[step]
    how(path, other)
    if how is in_place:
        plan._sampler._tables.pace = Pace()  # a write into a file that is mapped is noticed at the next look
        plan.stores["s"]._pace = Pace()
    given, error = rows_until_refused(lambda step: plan.batch(step)["input_ids"].tolist(), 60)
    assert given == expected[: len(given)]
    assert "while in use" in error
    with pytest.raises(CorruptionError, match="while in use"):
        plan.sampler().fill(plan._sampler.locate(0, 0, 2), *plan.batch(0).values())


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_finding_documents_is_pinned(path: Path, other: Path, packing: str) -> None:
    """P9: `find` and `documents` read the boundaries and the length index."""
    plan = Plan.of(path, 16, 2, packing=packing)
    by_folder(path, other)
    for store in plan.stores.values():
        look(store)
    with pytest.raises(CorruptionError, match=REPLACED):
        next(plan.find("s", 1))
    with pytest.raises(CorruptionError, match=REPLACED):
        plan.documents(0)


def test_a_run_continues_during_append_and_index(path: Path) -> None:
    """Also when the version in use becomes an older one."""
    arguments = {"sequence_length": 16, "global_batch_size": 2, "packing": "best_fit", "num_steps": 20}
    expected = [Plan.of(path, **arguments).batch(step)["input_ids"].tolist() for step in range(20)]
    plan, given = Plan.of(path, **arguments), []
    for step in range(20):
        if step in (5, 10):
            grow(path, documents(step), ALL, shard_bytes=100)
        plan._sampler._tables.pace = Pace()
        given.append(plan.batch(step)["input_ids"].tolist())
    assert given == expected
