"""What options that shape a build refuse, and how wrong values of them are reported."""

import json
from pathlib import Path

import pytest

import tokenstore
from tests.support.stores.building import Build, as_bytes, documents
from tokenstore.builder import BuildOptions, append_store, build_store, preview_build
from tokenstore.builder.documents.fields import Template
from tokenstore.errors import BadRecordsError, BuildError, ConfigError


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": "0%"}, "sample: expected a share such as 1%"),
        ({"sample": "101%"}, "sample: expected a share"),
        ({"sample": "x"}, "sample: expected a share"),
        ({"max_total_tokens": 0}, "max_total_tokens: expected 1 or more"),
        ({"text": "no field"}, "expected a field in each pair of braces"),
        ({"text": "{}"}, "expected a field in each pair of braces"),
        ({"text": "{a"}, "text: "),
        ({"text": "{a!r}"}, "found one with ! or :"),
        ({"text": "{a}", "text_field": "b"}, "text: expected no text_field beside it"),
        ({"text": "{a}", "records": "tokens"}, "text: only for records=text"),
        ({"keep": ("a", "a")}, "keep: expected names, each once"),
        ({"partition_by": ""}, "partition_by: expected a name"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildOptions(("a",), Path("s"), "bytes", **options)


def test_a_template_joins_fields() -> None:
    """Paths, numbers, escapes and braces; a missing or other field makes a bad record."""
    row = {"a": {"b": ["x", "y"]}, "n": 1.5, "t": "{n}"}
    assert Template(r"{a.b[1]}\t{n}\n\\n{{{t}}}").render(row) == "y\t1.5\n\\n{{n}}"
    for text, message in (
        ("{a}", "expected a string, found dict"),
        ("{x}", "no field 'x'"),
        ("{a.b[2]}", "has 2 items"),
    ):
        with pytest.raises(ValueError, match=message):
            Template(text).render(row)


def test_values_that_cannot_name_a_store_are_bad_records(build: Build, tmp_path: Path) -> None:
    """A value never leads outside of the output."""
    bad = ["", ".", "..", "../x", "a/b", "a b", "é", "x" * 101, "s.tokenstore", None, True, 1.5, ["a"], {}]
    path = write(
        tmp_path / "a.jsonl", {"text": "a", "k": "ok"}, *({"text": "b", "k": value} for value in bad), {"text": "c"}
    )
    result = tokenstore.build(path, tmp_path / "store", "bytes", partition_by="k", max_bad=99)
    assert [store.path.name for store in result.splits] == ["ok"]
    assert result.counts["bad"] == len(bad) + 1
    assert sorted(each.name for each in result.path.iterdir()) == ["ok"]
    with pytest.raises(BadRecordsError, match="expected a name of 1 to 100 letters"):
        build(path, output="b", partition_by="k")


def test_too_many_partitions_are_refused(build: Build, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"text": "a", "k": i} for i in range(101)))
    with pytest.raises(BuildError, match=r"partition_by: field 'k' has more than 100 values, such as 0, 1, 2"):
        build(path, partition_by="k")
    with pytest.raises(BuildError, match="more than 33 values"):
        build(path, output="b", partition_by="k", split="a=0.4,b=0.3,c=0.3")


@pytest.mark.parametrize("option", [{"dedup": "exact"}, {"max_total_tokens": 7}], ids=str)
def test_a_partition_without_documents_gets_no_store(build: Build, tmp_path: Path, option: dict) -> None:
    """All of its documents are duplicates, or come after the limit."""
    path = write(tmp_path / "in.jsonl", *({"text": "same", "k": k} for k in "bac"))
    notes: list[str] = []
    result = build_store(
        BuildOptions((str(path),), tmp_path / "s", "bytes", partition_by="k", **option), note=notes.append
    )
    assert [each.path.name for each in result.splits] == ["b"]
    assert any("no store for these values of 'k': a, c; all their documents are duplicates" in each for each in notes)
    again = build_store(BuildOptions((str(path),), tmp_path / "s", "bytes", partition_by="k", **option))
    assert again.was_there


def test_partitions_are_recognised_replaced_and_not_appended_to(build: Build, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"text": f"{i}", "k": "xy"[i % 2]} for i in range(20)))
    result = tokenstore.build(path, tmp_path / "s", "bytes", partition_by="k", split="a=0.5,b=0.5")
    assert [str(store.path.relative_to(result.path)) for store in result.splits] == ["x/a", "x/b", "y/a", "y/b"]
    for folder in (result.path, result.path / "x/a"):
        with pytest.raises(ConfigError, match="was built with --partition-by"):
            append_store(folder, [str(path)])
    with pytest.raises(ConfigError, match="built from other inputs or with other options"):
        tokenstore.build(path, tmp_path / "s", "bytes", partition_by="k", split="a=0.5,b=0.5", min_tokens=1)
    again = tokenstore.build(path, tmp_path / "s", "bytes", partition_by="k", overwrite=True)
    assert [store.path.name for store in again.splits] == ["x", "y"]
    (result.path / "x/mine").touch()
    with pytest.raises(ConfigError, match="not part of the store"):
        tokenstore.build(path, tmp_path / "s", "bytes", partition_by="k", overwrite=True, min_tokens=1)


def test_a_limit_stops_reading_and_counts_what_was_read(build: Build, tmp_path: Path, small_units: object) -> None:
    """Inputs that were not read have no checksum, and a repeated command still recognises the store."""
    small_units(100)
    for name in "abc":
        write(tmp_path / f"{name}.jsonl", *({"text": name * 9} for _ in range(10)))
    result = build(tmp_path / "*.jsonl", max_total_tokens=125)
    assert documents(result.path) == as_bytes(*["a" * 9] * 10, "b" * 9, "b" * 9)
    rows = [json.loads(line) for line in (result.path / "inputs.jsonl").read_text().splitlines()]
    assert [("checksum" in row, row["documents"]) for row in rows] == [(True, 10), (False, 2), (False, 0)]
    assert build(tmp_path / "*.jsonl", max_total_tokens=125).was_there
    for partition in (None, "text"):
        with pytest.raises(BuildError, match=r"found none.*would exceed max_total_tokens, 5: allow more; no store"):
            build(tmp_path / "*.jsonl", output=f"none-{partition}", max_total_tokens=5, partition_by=partition)
    assert (
        preview_build(
            BuildOptions((str(tmp_path / "*.jsonl"),), tmp_path / "p", "bytes", max_total_tokens=125)
        ).num_tokens
        == 125
    )


def test_the_limit_of_a_store_applies_to_an_append_alone(build: Build, tmp_path: Path) -> None:
    path = build(write(tmp_path / "a.jsonl", {"text": "aaaa"}), max_total_tokens=5).path
    result = append_store(path, [str(write(tmp_path / "b.jsonl", {"text": "bbb"}, {"text": "c"}))])
    assert documents(path) == as_bytes("aaaa", "bbb")
    assert result.new_tokens == 4
    with pytest.raises(BuildError, match=r"\(1 input file\); the next document would exceed max_total_tokens, 5"):
        append_store(path, [str(write(tmp_path / "c.jsonl", {"text": "ccccc"}))])


def test_a_field_that_no_document_has_is_noted(build: Build, tmp_path: Path, notes: list[str]) -> None:
    build(write(tmp_path / "a.jsonl", {"text": "a", "url": "u"}), keep=("ulr", "url"), note=notes.append)
    assert notes == ["no document has a value of 'ulr'; check the names after --keep"]


def test_appended_documents_are_shuffled_among_themselves(build: Build, tmp_path: Path) -> None:
    """They follow the old ones, which do not move; origins are right for both."""
    first = write(tmp_path / "a.jsonl", *({"text": f"a{i}"} for i in range(50)))
    more = write(tmp_path / "b.jsonl", *({"text": f"b{i}"} for i in range(50)))
    path = build(first, shuffle_documents=4).path
    before = documents(path)
    append_store(path, [str(more)])
    assert documents(path)[:50] == before
    assert tokenstore.verify(path) == []
    with tokenstore.open_store(path) as store:
        for i in range(100):
            text, origin = store.decode(i).removesuffix("<|endoftext|>"), store.origin(i)
            assert (origin.file, f"{origin.file[0]}{origin.record - 1}") == (f"{text[0]}.jsonl", text)
        assert [store.origin(i).record for i in range(50, 100)] != list(range(1, 51))
