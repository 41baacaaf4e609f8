"""`build_store`: the user's own filter and map."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.stores.building import BAD, as_bytes, documents, left_behind
from tests.support.stores.written import all_files, build_stores, json_lines, rows_of, texts_of, write_records
from tokenstore.builder.documents import hooks
from tokenstore.errors import BadRecordsError, BuildError, ConfigError

Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Write a module into the working directory and return its name, a new one for each test, as Python caches modules."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    name = f"hooks_{abs(hash(str(tmp_path)))}"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(source: str) -> str:
        sys.modules.pop(name, None)
        hooks._loaded.clear()  # as a new process
        (folder / f"{name}.py").write_text(source)
        sys.path_importer_cache.clear()
        return name

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop(name, None)


def texts(*words: str) -> list[dict]:
    return [{"text": word, "n": i} for i, word in enumerate(words)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_filter_selects_and_a_map_changes_records(
    tmp_path: Path, module: Module, small_units: Callable[[int], None], workers: int
) -> None:
    """The filter sees the original record, the map those that are kept; the records both drop are counted by file."""
    name = module(
        "def keep(row):\n    return row['n'] % 3 != 0\n\n\n"
        "class Changes:\n    @staticmethod\n    def upper(row):\n"
        "        return None if row['n'] == 4 else {'text': row['text'].upper()}\n"
    )
    sources = [write_records(tmp_path / f"{f}.jsonl", texts(*"abcdefgh")) for f in (1, 2)]
    small_units(100)
    options = {"filter": f"{name}:keep", "map": f"{name}:Changes.upper"}
    result = build_stores(tmp_path / "store", *sources, workers=workers, **options)
    assert texts_of(result.path) == ["B", "C", "F", "H"] * 2
    assert [origin for *_, origin in rows_of(result.path)] == [(f"{f}.jsonl", n) for f in (1, 2) for n in (2, 3, 6, 8)]
    assert result.counts["filtered"] == 8
    assert [row["filtered"] for row in json_lines(result.path / "inputs.jsonl")] == [4, 4]


def test_a_hook_gets_every_field_of_a_record(tmp_path: Path, module: Module) -> None:
    """Also columns of a table that nothing else reads, of any type. A map can make ids and masks."""
    name = module(
        "def change(row):\n"
        "    return {'input_ids': [row['a']['b'], len(row['text'])], 'labels': [-100, len(row['text'])], 'id': str(row['when'])}\n"
    )
    columns = {"text": ["x", "yy"], "a": [{"b": 5}, {"b": 6}], "when": pa.array([0, 86_400_000], pa.timestamp("ms"))}
    parquet.write_table(pa.table(columns), tmp_path / "in.parquet")
    result = build_stores(
        tmp_path / "store", tmp_path / "in.parquet", map=f"{name}:change", records="tokens", mask_field="labels", id_field="id"
    )  # fmt: skip
    assert [row[:3] for row in rows_of(result.path)] == [
        ([5, 1, 256], [False, True, True], "1970-01-01 00:00:00"),
        ([6, 2, 256], [False, True, True], "1970-01-02 00:00:00"),
    ]


def test_a_value_that_python_cannot_represent_makes_only_its_row_bad(tmp_path: Path, module: Module) -> None:
    """P9: hooks get all columns, hence also times in nanoseconds or of the year 10^7."""
    name = module("def keep(row):\n    return True\n")
    columns = {"text": list("abcd"), "when": pa.array([0, 1, 2000, 3001], pa.timestamp("ns"))}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    columns = {"text": list("efgh"), "when": pa.array([0, 1 << 50, None, 7], pa.timestamp("s"))}
    parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    result = build_stores(tmp_path / "store", tmp_path, filter=f"{name}:keep", max_bad=3)
    assert texts_of(result.path) == list("acegh")
    rejects = json_lines(result.rejects)
    assert [(row["file"], row["record"]) for row in rejects] == [("a.parquet", 2), ("a.parquet", 4), ("b.parquet", 2)]
    assert all(row["reason"].startswith("a value that Python cannot represent: ") for row in rejects)


FAILING = {
    "raise ValueError('no ü')": "ValueError in the filter or map: no ü",
    "raise KeyError('a')": "KeyError in the filter or map: 'a'",
    "raise StopIteration": "StopIteration in the filter or map: ",
    "raise MemoryError": "MemoryError in the filter or map: ",
    "return (lambda f: f(f))(lambda f: f(f))": "RecursionError in the filter or map: maximum recursion",
    "raise ValueError('\\ud800 alone')": "ValueError in the filter or map: ",
    "raise ValueError('x' * 10**6)": "ValueError in the filter or map: xxx",
    "return row['text']": "map: expected a dict or None, found str",
    "return True": "map: expected a dict or None, found bool",
    "return [row]": "map: expected a dict or None, found list",
    "return {}": "no field 'text'",
    "return {'text': None}": "field 'text': expected a string, found null",
    "return {'text': 7}": "field 'text': expected a string, found int",
    "return {'text': b'\\xff'}": "not UTF-8: invalid start byte at byte 0",
    "return {'text': 'a\\ud800b'}": "field 'text': expected text, found surrogates not allowed at character 1",
    "return {1: object(), 'text': object()}": "field 'text': expected a string, found object",
    "row['self'] = row; row['text'] = 1; return row": "field 'text': expected a string, found int",
}


@pytest.mark.parametrize(("body", "reason"), FAILING.items(), ids=FAILING)
def test_a_map_that_fails_makes_the_record_bad(tmp_path: Path, module: Module, body: str, reason: str) -> None:
    """P9: the reason says where the exception of the user's code was raised; the other records are kept."""
    name = module(f"def change(row):\n    if row['n'] != 1:\n        return row\n    {body}\n")
    source = write_records(tmp_path / "in.jsonl", texts("a", "b", "c"))
    with pytest.raises(BadRecordsError, match=r"record 2 of in\.jsonl") as caught:
        build_stores(tmp_path / "store", source, map=f"{name}:change")
    str(caught.value).encode()  # can be printed
    result = build_stores(tmp_path / "store", source, map=f"{name}:change", max_bad=1)
    assert texts_of(result.path) == ["a", "c"]
    (reject,) = json_lines(result.rejects)
    assert reject["reason"].startswith(reason)
    assert len(reject["reason"]) <= 200
    assert len(reject["start"]) <= 200


def test_a_filter_that_fails_makes_the_record_bad(tmp_path: Path, module: Module) -> None:
    """Also if the truth value of its result cannot be determined."""
    name = module(
        "import numpy\n\n\ndef keep(row):\n"
        "    return {0: True, 1: numpy.array([1, 2]), 2: 'yes', 3: 0, 4: None}.get(row['n']) if row['n'] < 5 else 1 / 0\n"
    )
    source = write_records(tmp_path / "in.jsonl", texts(*"abcdef"))
    result = build_stores(tmp_path / "store", source, filter=f"{name}:keep", max_bad=2)
    assert texts_of(result.path) == ["a", "c"]
    assert (result.counts["bad"], result.counts["filtered"]) == (2, 2)
    reasons = [row["reason"] for row in json_lines(result.rejects)]
    assert [reason.split(" in the filter")[0] for reason in reasons] == ["ValueError", "ZeroDivisionError"]


def test_hooks_do_not_get_bad_records_and_filtered_ones_are_not_bad(tmp_path: Path, module: Module) -> None:
    """A filter may drop records that would be bad; lines that are no records are bad anyway."""
    name = module("def keep(row):\n    assert isinstance(row, dict)\n    return isinstance(row['text'], str)\n")
    source = write_records(tmp_path / "in.jsonl", [*texts("a"), BAD, b"{", b"[1]", b"", *texts("b")])
    result = build_stores(tmp_path / "store", source, filter=f"{name}:keep", max_bad=2)
    assert documents(result.path) == as_bytes("a", "b")
    assert (result.counts["bad"], result.counts["filtered"]) == (2, 1)


def test_a_hook_that_modifies_its_record_changes_no_other(tmp_path: Path, module: Module) -> None:
    """Every record is a separate dict; the map and the store see the filter's changes."""
    name = module(
        "def keep(row):\n    row['text'] += '!'\n    row.setdefault('seen', []).append(1)\n    return True\n\n\n"
        "def change(row):\n    assert row.pop('seen') == [1]\n    row['text'] *= 2\n    return row\n"
    )
    for ending in (".jsonl", ".parquet"):
        source = write_records(tmp_path / f"in{ending}", texts("a", "a", "b"))
        options = {"filter": f"{name}:keep", "map": f"{name}:change"}
        result = build_stores(tmp_path / f"store{ending}", source, **options)
        assert texts_of(result.path) == ["a!a!", "a!a!", "b!b!"]


def test_only_errors_are_caught(tmp_path: Path, module: Module) -> None:
    """An interrupt inside a hook ends the build, and the same command resumes it."""
    name = module("def keep(row):\n    raise KeyboardInterrupt\n")
    source = write_records(tmp_path / "in.jsonl", texts("a"))
    with pytest.raises(KeyboardInterrupt):
        build_stores(tmp_path / "store", source, filter=f"{name}:keep", max_bad=10)
    assert not (tmp_path / "store").exists()


WRONG_NAMES = {
    "keep": "expected module:function, found 'keep'",
    ":keep": "expected module:function",
    "{}:": "expected module:function",
    "{}:missing": ": AttributeError: ",
    "{}:number": r"expected a function, found int",
    "no_such_module_at_all:keep": ": ModuleNotFoundError: ",
    "no such:keep": ": ModuleNotFoundError: ",
    "..{}:keep": "cannot import",
    "{}.keep:keep": ": ModuleNotFoundError: ",
    "builtins:bool": "module builtins has no source file",
}


@pytest.mark.parametrize("option", ["filter", "map"])
@pytest.mark.parametrize(("hook", "message"), WRONG_NAMES.items(), ids=WRONG_NAMES)
def test_an_invalid_hook_is_refused_before_any_work(
    tmp_path: Path, module: Module, option: str, hook: str, message: str
) -> None:
    """ConfigError names it, and no files remain."""
    name = module("number = 5\n\n\ndef keep(row):\n    return True\n")
    source = write_records(tmp_path / "in.jsonl", texts("a"))
    with pytest.raises(ConfigError, match=message):
        build_stores(tmp_path / "store", source, **{option: hook.format(name)})
    assert left_behind(tmp_path / "store") == []


@pytest.mark.parametrize("source", ["def keep(row:\n", "raise RuntimeError('at import')\n", "import no_such_module\n"])
def test_a_module_that_cannot_be_imported_is_refused(tmp_path: Path, module: Module, source: str) -> None:
    """The message includes what the import raised."""
    records = write_records(tmp_path / "in.jsonl", texts("a"))
    with pytest.raises(ConfigError, match=r"cannot import .*(SyntaxError|at import|no_such_module)"):
        build_stores(tmp_path / "store", records, filter=f"{module(source)}:keep")


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_hook_with_changed_source_is_another_build(
    tmp_path: Path, module: Module, small_units: Callable[[int], None], state: str
) -> None:
    """P8: neither a finished store nor the parts of an unfinished build are reused with other code."""
    name = module("def keep(row):\n    return row['n'] < 3\n")
    small_units(30)
    source = write_records(tmp_path / "in.jsonl", [*texts(*"abcd"), *([BAD] if state == "unfinished" else [])])
    if state == "finished":
        build_stores(tmp_path / "store", source, filter=f"{name}:keep")
        assert build_stores(tmp_path / "store", source, filter=f"{name}:keep").was_there
    else:
        with pytest.raises(BadRecordsError):
            build_stores(tmp_path / "store", source, filter=f"{name}:keep")
    before = all_files(tmp_path)
    module("def keep(row):\n    return row.get('n', 2) < 2\n")
    del before[f"cwd/{name}.py"]
    with pytest.raises(ConfigError, match=r"options\.filter_sha256 was"):
        build_stores(tmp_path / "store", source, filter=f"{name}:keep")
    assert {path: data for path, data in all_files(tmp_path).items() if path in before} == before
    replaced = build_stores(tmp_path / "store", source, filter=f"{name}:keep", overwrite=True, max_bad=1)
    assert texts_of(replaced.path) == ["a", "b"]


def test_a_module_changed_since_it_was_loaded_is_refused(tmp_path: Path, module: Module) -> None:
    """P8: this process would run the old code under the hash of the new, and new workers the new code."""
    name = module("def keep(row):\n    return True\n")
    source = write_records(tmp_path / "in.jsonl", texts("a"))
    build_stores(tmp_path / "store", source, filter=f"{name}:keep")
    (tmp_path / "cwd" / f"{name}.py").write_text("def keep(row):\n    return False\n")
    with pytest.raises(ConfigError, match=r"changed since it was loaded; restart Python"):
        build_stores(tmp_path / "other", source, filter=f"{name}:keep")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("option", ["filter", "map"])
def test_a_function_that_ends_the_program_is_named(
    tmp_path: Path, module: Module, small_units: Callable[[int], None], option: str, workers: int
) -> None:
    """`sys.exit(0)` in a user's function must not end the build with exit code 0, no store and no message."""
    name = module("import sys\n\n\ndef leave(row):\n    sys.exit(0)\n")
    sources = [write_records(tmp_path / f"{f}.jsonl", texts(*"abcdefgh")) for f in (1, 2)]
    small_units(100)
    with pytest.raises(BuildError, match=rf"--{option} {name}:leave: the function raised SystemExit\(0\)") as error:
        build_stores(tmp_path / "store", *sources, workers=workers, **{option: f"{name}:leave"})
    assert '"text":"a"' in str(error.value)
    assert not (tmp_path / "store").exists()


def test_a_module_that_ends_the_program_is_named(tmp_path: Path, module: Module) -> None:
    """The same during its import."""
    name = module("import sys\n\nsys.exit(0)\n")
    source = write_records(tmp_path / "a.jsonl", texts("a"))
    with pytest.raises(ConfigError, match=rf"cannot import '{name}:keep': SystemExit"):
        build_stores(tmp_path / "store", source, filter=f"{name}:keep")
