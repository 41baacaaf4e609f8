"""Sample, limit, partitions, templates, metadata and shuffled order: any combination equals a plain model of it.

With records of texts, of token ids and of token ids with loss masks, made by one process or by tasks.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenstore
from tests.support.stores.written import all_files
from tokenstore.builder import BuildOptions, build_store, build_task, making, pipeline, shuffle
from tokenstore.builder.reading.units import cut_units
from tokenstore.builder.schedule import Task
from tokenstore.builder.shuffle import keys_of
from tokenstore.errors import BuildError

RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "title": st.sampled_from(["", "a", "é☃", "the"]),
            "body": st.sampled_from(["", "b", "some words", "x" * 30]),
            "lang": st.sampled_from(["en", "de", 7]),
            "score": st.sampled_from([None, 1, 0.5, "high", [1]]),
        }
    ),
    min_size=1,
    max_size=40,
)
OPTIONS = st.fixed_dictionaries(
    {
        "text": st.sampled_from([None, "{title}\\n{body}", "{{{title}}}"]),
        "sample": st.sampled_from([None, "50%", "0.3"]),
        "max_total_tokens": st.sampled_from([None, 40, 400]),
        "partition_by": st.sampled_from([None, "lang"]),
        "keep": st.sampled_from([(), ("score",), ("lang", "score", "none")]),
        "shuffle_documents": st.sampled_from([None, 0, 5]),
        "dedup": st.sampled_from(["none", "exact"]),
        "split": st.sampled_from([None, "a=0.5,b=0.5"]),
        "origins": st.booleans(),
        "shard_bytes": st.sampled_from([60, 1 << 20]),
    }
)
KINDS = st.sampled_from(["text", "text", "tokens", "masks"])


def text_of(record: dict, template: str | None) -> str:
    if template is None:
        return record["body"]
    return template.replace("\\n", "\n").replace("{{", "{").replace("}}", "}").replace("{title}", record["title"]).replace("{body}", record["body"])  # fmt: skip


def mask_of(record: dict) -> list[bool]:
    """The loss mask of a record of token ids; its first token is in the loss."""
    return [(i * len(record["title"])) % 2 == 0 for i in range(len(record["body"].encode()))]


def hashed(record: dict, text: str, kind: str) -> bytes:
    """What decides about samples, splits and duplicates."""
    if kind == "text":
        return text.encode()
    mask = bytes(mask_of(record)) if kind == "masks" else b""
    return np.array(list(text.encode()), np.int64).tobytes() + mask


def model(records: list[dict], options: dict[str, Any], kind: str) -> dict[str, list[tuple]]:
    """(id, text, mask, metadata) of the documents of each store, by its path below the output."""
    keys, found, seen = keys_of(options["shuffle_documents"] or 0, 0, len(records)).tolist(), [], set()
    number = 0
    for i, record in enumerate(records):
        text = text_of(record, options["text"])
        whole = hashed(record, text, kind)
        content = xxhash.xxh3_128_intdigest(whole)
        share = {None: 1.0, "50%": 0.5, "0.3": 0.3}[options["sample"]]
        if (content >> 64) >= int(share * 2**64) or not text:
            continue
        key, number = keys[number], number + 1
        if options["dedup"] == "exact" and whole in seen:
            continue
        seen.add(whole)
        place = [str(record["lang"])] if options["partition_by"] else []
        place += ["a" if content % 2**64 < 2**63 else "b"] if options["split"] else []
        mask = mask_of(record) if kind == "masks" else [True] * len(text.encode())
        metadata = {name: record.get(name) for name in options["keep"]} or None
        found.append((key, "/".join(place), (str(i), text, [*mask, mask[-1]], metadata)))
    if options["shuffle_documents"] is not None:
        found.sort(key=lambda each: each[0])
    stores, total = defaultdict(list), 0
    for _, place, document in found:
        total += len(document[1].encode()) + 1
        if options["max_total_tokens"] is not None and total > options["max_total_tokens"]:
            break
        stores[place].append(document)
    return stores


def documents_of(path: Path) -> list[tuple]:
    with tokenstore.open_store(path) as store:
        return [
            (store.id(i), bytes(store[i][:-1].tolist()).decode(), store.loss_mask(i).tolist(), store.metadata(i))
            for i in range(len(store))
        ]


def same_json(value: object) -> str:
    """Numbers compare by value: a column of integers and fractions holds fractions."""
    return json.dumps(value).replace("1.0", "1")


def write(folder: Path, records: list[dict], kind: str = "text") -> Path:
    folder.mkdir()
    if kind != "text":
        records = [{**record, "input_ids": [*record["body"].encode()]} for record in records]
    if kind == "masks":
        records = [{**record, "loss_mask": [int(x) for x in mask_of(record)]} for record in records]
    half = len(records) // 2
    for name, some, first in (("a.jsonl", records[:half], 0), ("b.jsonl", records[half:], half)):
        (folder / name).write_text("".join(json.dumps({**r, "id": first + i}) + "\n" for i, r in enumerate(some)))
    return folder


def build(inputs: Path, output: Path, options: dict, tasks: int = 0, kind: str = "text", **more: Any) -> Any:
    """Build with one command, or with `tasks` tasks and a finish."""
    fields: dict[str, Any] = {"text_field": "body"} if options["text"] is None else {}
    fields = fields if kind == "text" else {"records": "tokens"}
    wanted = BuildOptions((str(inputs),), output, "bytes", id_field="id", **fields, **options, **more)
    for number in range(tasks):
        build_task(wanted, Task(number, tasks))
    return build_store(wanted, complete=tasks > 0)


@settings(max_examples=40)
@given(
    records=RECORDS,
    options=OPTIONS,
    unit=st.sampled_from([150, 1 << 20]),
    bucket=st.sampled_from([200, 1 << 26]),
    tasks=st.sampled_from([0, 0, 1, 3, 7]),
    kind=KINDS,
)
def test_a_shaped_build_equals_its_model(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict],
    options: dict,
    unit: int,
    bucket: int,
    tasks: int,
    kind: str,
) -> None:
    """Whatever the units, the tasks and the buckets of the shuffle; every store is sound, and its origins are right."""
    folder = tmp_path_factory.mktemp("shaped")
    options = options if kind == "text" else {**options, "text": None}
    expected = model(records, options, kind)
    inputs = write(folder / "in", records, kind)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=unit))
        patched.setattr(shuffle, "_BUCKET_BYTES", bucket)
        patched.setattr(shuffle, "_MOST_BITS", 2)
        patched.setattr(shuffle, "_BLOCK_TOKENS", 50)
        places = {*expected} | {f"{p.split('/')[0]}/{s}" for p in expected for s in "ab" if options["split"] and options["partition_by"]}  # fmt: skip
        if options["split"] and not options["partition_by"]:
            places |= {"a", "b"}
        if not expected or any(not expected.get(place) for place in places):
            with pytest.raises(BuildError, match="expected at least one, found none"):
                build(inputs, folder / "s", options, tasks, kind)
            return
        result = build(inputs, folder / "s", options, tasks, kind)
    stores = result.splits or (result,)
    assert {str(each.path.relative_to(result.path)).removeprefix(".") for each in stores} == {*expected}
    for each in stores:
        assert tokenstore.verify(each.path) == []
        wanted = expected[str(each.path.relative_to(result.path)).removeprefix(".")]
        assert [same_json(d) for d in documents_of(each.path)] == [same_json(d) for d in wanted]
        with tokenstore.open_store(each.path) as store:
            for i in range(len(store) if options["origins"] else 0):
                half, number = len(records) // 2, int(store.id(i))
                origin = store.origin(i)
                assert (origin.file, origin.record) == (
                    ("a.jsonl", number + 1) if number < half else ("b.jsonl", number - half + 1)
                )
    assert build(inputs, folder / "s", options, kind=kind).was_there


MANY = [{"title": f"{i}", "body": "word " * (i % 9), "lang": "en", "score": i} for i in range(400)]
SHUFFLED = {"text": "{title} {body}", "shuffle_documents": 1, "keep": ("score",), "dedup": "exact"}


@pytest.mark.parametrize("workers", [1, 3, pytest.param(7, marks=pytest.mark.deep)])
def test_the_shuffled_order_does_not_depend_on_workers_units_or_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """P8: the same files byte for byte, also when a build was stopped after some parts."""
    inputs = write(tmp_path / "in", MANY)
    whole = build(inputs, tmp_path / "whole", SHUFFLED)
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=2000))
    real, made = making.write_atomically, []

    def die(path: Path, data: bytes) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(path)
        real(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(making, "write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            build(inputs, tmp_path / "s", SHUFFLED)
    result = build(inputs, tmp_path / "s", SHUFFLED, workers=workers)
    assert all_files(result.path) == all_files(whole.path)


def test_places_of_a_shuffled_build_are_at_chance(tmp_path: Path) -> None:
    """The same documents; another seed, another order; no trace of the order of the inputs, near or far."""
    inputs = write(tmp_path / "in", MANY)
    orders = []
    for seed in range(8):
        result = build(inputs, tmp_path / f"{seed}", {**SHUFFLED, "shuffle_documents": seed})
        orders.append([int(each[0]) for each in documents_of(result.path)])
    assert all(sorted(order) == list(range(400)) for order in orders)
    places = np.array([np.argsort(order) for order in orders])
    count = places.size
    ranks = np.tile(np.arange(400), 8)
    assert abs(np.corrcoef(ranks, places.ravel())[0, 1]) < 4 / count**0.5
    near = np.mean(np.abs(np.diff(places, axis=1)))  # of neighbours in the inputs: a third of the length
    assert abs(near - 400 / 3) < 4 * 95 / count**0.5
    quarters = np.histogram2d(ranks // 100, places.ravel() // 100, bins=4)[0]
    assert ((quarters - 200) ** 2 / 200).sum() < 35  # chi-squared with 9 to 16 degrees of freedom, p < 0.005
    assert len({tuple(order) for order in orders}) == 8


def test_the_order_of_a_seed_is_frozen() -> None:
    """The keys of the first documents, computed with the integers of Python."""

    def key(seed: int, i: int) -> int:
        import hashlib

        mask = 2**64 - 1
        z = int.from_bytes(hashlib.sha256(f"tokenstore shuffle {seed}".encode()).digest()[:8], "little")
        z = (z + (i + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    for seed in (0, 1, -5, 2**70):
        assert keys_of(seed, 0, 5).tolist() == [key(seed, i) for i in range(5)]
        assert keys_of(seed, 3, 2).tolist() == [key(seed, i) for i in (3, 4)]
    assert len(set(keys_of(7, 0, 100_000).tolist())) == 100_000


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[list[dict]], Path]:
    def write_lines(records: list[dict]) -> Path:
        path = tmp_path / "in.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write_lines


def test_a_larger_sample_contains_a_smaller_one_and_has_the_share(tmp_path: Path, lines: Callable) -> None:
    path = lines([{"text": f"document {i}"} for i in range(4000)])
    found = []
    for share in ("5%", "10%", "0.5", "100%"):
        result = tokenstore.build(path, tmp_path / share, "bytes", sample=share)
        with tokenstore.open_store(result.path) as store:
            found.append({store.origin(i).record for i in range(len(store))})
    assert found[0] < found[1] < found[2] < found[3] == set(range(1, 4001))
    for some, share in zip(found, (0.05, 0.1, 0.5, 1), strict=True):
        assert abs(len(some) - 4000 * share) <= 4 * (4000 * share * (1 - share)) ** 0.5
