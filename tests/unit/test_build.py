"""`build_store`: what is in a store, what is refused, what a second run does. All in this process, on small corpora."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import processors

import tokenstore
from tests.data.texts import TEXTS
from tokenstore.build import BuildOptions, BuildProgress, BuildResult, build_store, part, pipeline
from tokenstore.build.units import cut_units
from tokenstore.errors import BadRecordsError, BuildError, ConfigError, TokenStoreError
from tokenstore.store.files import exclusive_lock

Build = Callable[..., BuildResult]
BAD = b'{"text": 7}'


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build inputs into a store that verifies, with the bytes tokenizer unless told otherwise."""

    def run(*inputs: object, output: str | Path = "store", note: Callable = print, **options: object) -> BuildResult:
        wanted = BuildOptions(tuple(map(str, inputs)), tmp_path / output, **{"tokenizer": "bytes", **options})
        result = build_store(wanted, note=note)
        assert tokenstore.verify(result.path) == []
        return result

    return run


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Cut the inputs of the builds that follow into units of so many bytes."""
    return lambda unit_bytes: monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=unit_bytes))


@pytest.fixture
def notes() -> list[str]:
    """A list to collect notes in: build(..., note=notes.append)."""
    return []


def documents(path: Path) -> list[list[int]]:
    """Ids of all documents of a store."""
    with tokenstore.open_store(path) as store:
        return [document.tolist() for document in store]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def left_behind(output: Path) -> list[str]:
    """Names of everything of a build that is not its store."""
    return sorted(path.name for path in output.parent.glob(f"{output.name}.*"))


def as_bytes(*texts: str) -> list[list[int]]:
    """Documents the bytes tokenizer makes of texts, end of text appended."""
    return [[*text.encode(), 256] for text in texts]


def exit_job(job: tuple) -> None:
    """A worker's job that kills the worker: by its name, it can be sent to one."""
    os._exit(9)


def die(*_: object) -> None:
    """In place of a function of the build: it ends there."""
    raise KeyboardInterrupt


def mixed_corpus(folder: Path) -> Path:
    """Files of every format, small and large, with empty texts, blank lines and bad records."""

    def lines(*records: object) -> bytes:
        return b"".join(
            r + b"\n" if isinstance(r, bytes) else json.dumps({"text": r}).encode() + b"\n" for r in records
        )

    files = {
        "a.jsonl": lines(*TEXTS, "", *TEXTS, BAD, b"", *TEXTS),
        "b/one.txt": TEXTS[2].encode(),
        "b/two.txt": b"",
        "b/three.txt": b"\xff not text",
        "c.jsonl.gz": gzip.compress(lines(*TEXTS[:5], b"{", TEXTS[5])),
        "d.txt.gz": gzip.compress(TEXTS[3].encode() * 20),
        "e.jsonl": lines("the last"),
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


# ---- what is in a store


@pytest.mark.parametrize("special_text", ["plain", "special"])
@pytest.mark.parametrize(("start", "eos"), [("none", True), ("none", False), ("eos", True), ("eos", False), ("bos", True), ("bos", False)])  # fmt: skip
def test_documents_are_the_tokens_of_the_reference_library_and_the_special_tokens_asked_for(
    build: Build,
    jsonl: Callable[..., Path],
    tokenizer_file: Path,
    tmp_path: Path,
    start: str,
    eos: bool,
    special_text: str,
) -> None:
    """Each document is what the tokenizers library makes of its text, one by one, begun and ended as asked for."""
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
    """A tokenizer that by itself puts tokens around a text does not do so in a store."""
    templated = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    templated.post_processor = processors.TemplateProcessing("<|user|> $A <|user|>", None, [("<|user|>", 1)])
    templated.save(str(tmp_path / "tokenizer.json"))
    result = build(jsonl("in.jsonl", ["a"]), tokenizer=str(tmp_path / "tokenizer.json"))
    assert documents(result.path) == [[*templated.encode("a", add_special_tokens=False).ids, 0]]


def test_documents_come_in_the_order_of_the_files_and_their_lines(build: Build, tmp_path: Path) -> None:
    """The order of documents is that of arguments, sorted paths and lines."""
    corpus = mixed_corpus(tmp_path / "in")
    result = build(corpus / "e.jsonl", corpus, max_bad=3)
    texts = ["the last", *TEXTS * 3, TEXTS[2], *TEXTS[:6], TEXTS[3] * 20]
    assert documents(result.path) == as_bytes(*texts)


def test_documents_without_text_are_dropped_and_counted(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """An empty text is no document unless asked for, and never gone without a trace."""
    (tmp_path / "empty.txt").touch()
    inputs = (jsonl("in.jsonl", ["a", "", "b", "", " "]), tmp_path / "empty.txt")
    result = build(*inputs)
    assert documents(result.path) == as_bytes("a", "b", " ")
    assert result.counts == {"input files": 2, "documents": 3, "empty": 3, "bad": 0}
    kept = build(*inputs, output="kept", keep_empty=True)
    assert documents(kept.path) == as_bytes("a", "", "b", "", " ", "")
    assert kept.counts == {"input files": 2, "documents": 6, "empty": 0, "bad": 0}


def test_a_document_without_any_token_cannot_be_kept(build: Build, jsonl: Callable[..., Path]) -> None:
    """Without special tokens an empty text has nothing to keep: it is dropped and counted also with keep_empty."""
    result = build(jsonl("in.jsonl", ["a", "", "b"]), keep_empty=True, eos=False)
    assert documents(result.path) == [[97], [98]]
    assert result.counts["empty"] == 1


def test_a_text_in_which_the_tokenizer_finds_nothing_counts_as_empty(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """A text can be all spaces to a tokenizer that drops them: no document of an end of text alone comes of it."""
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


def test_text_comes_from_the_field_asked_for(build: Build, jsonl: Callable[..., Path]) -> None:
    """`a.b` is field b of object a."""
    result = build(jsonl("in.jsonl", [{"a": {"b": "x"}, "text": "y"}]), text_field="a.b")
    assert documents(result.path) == as_bytes("x")


def test_special_tokens_in_a_text_make_the_record_bad_when_asked_for(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path
) -> None:
    """With special_text "error" a special string is a bad record that names it, and the other documents stay."""
    source = jsonl("in.jsonl", ["a", "b<|user|>c", "d"])
    options = {"tokenizer": str(tokenizer_file), "special_text": "error"}
    with pytest.raises(BadRecordsError, match=r"record 2 of in\.jsonl: special token '<\|user\|>' in the text"):
        build(source, **options)
    assert build(source, max_bad=1, **options).num_documents == 2


@pytest.mark.parametrize("shard_bytes", [4, 100, 1000])
def test_a_small_shard_size_gives_many_shards_and_no_document_straddles(
    build: Build, jsonl: Callable[..., Path], shard_bytes: int
) -> None:
    """A new shard begins before the document that would pass the target size; one larger than that is alone."""
    source = jsonl("in.jsonl", TEXTS)
    result = build(source, shard_bytes=shard_bytes)
    assert documents(result.path) == as_bytes(*TEXTS)
    shards = tokenstore.open_store(result.path).shards()
    assert result.num_shards == len(shards) > 1
    assert all(shard.num_bytes <= shard_bytes or shard.num_documents == 1 for shard in shards)
    sizes = [2 * len(document) for document in documents(result.path)]
    for before, after in pairwise(shards):
        assert before.num_bytes + sizes[after.first_document] > shard_bytes


def test_a_store_tells_what_was_in_each_input(build: Build, tmp_path: Path) -> None:
    """inputs.jsonl has a line for every file in order: size, lines, documents, empty and bad ones."""
    result = build(mixed_corpus(tmp_path / "in"), max_bad=3)
    rows = [json.loads(line) for line in (result.path / "inputs.jsonl").read_text().splitlines()]
    assert [(r["file"], r["lines"], r["documents"], r["empty"], r["bad"]) for r in rows] == [
        ("a.jsonl", 51, 48, 1, 1),
        ("b/one.txt", 1, 1, 0, 0),
        ("b/three.txt", 1, 0, 0, 1),
        ("b/two.txt", 1, 0, 1, 0),
        ("c.jsonl.gz", 7, 6, 0, 1),
        ("d.txt.gz", 1, 1, 0, 0),
        ("e.jsonl", 1, 1, 0, 0),
    ]
    assert [r["num_bytes"] for r in rows] == [(tmp_path / "in" / r["file"]).stat().st_size for r in rows]
    assert result.counts == {"input files": 7, "documents": 57, "empty": 2, "bad": 3}


def test_files_of_other_endings_in_a_folder_are_noted(build: Build, tmp_path: Path, notes: list[str]) -> None:
    """A folder's other files are left out and told."""
    mixed_corpus(tmp_path / "in")
    (tmp_path / "in" / "c.py").write_text("pass")
    build(tmp_path / "in", max_bad=3, note=notes.append)
    assert notes == ["passed over 1 files with other endings (1 .py)"]


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_goes_up_to_all_bytes_documents_and_tokens(
    jsonl: Callable[..., Path], tmp_path: Path, small_units: Callable[[int], None], workers: int
) -> None:
    """Progress never goes back and ends with what the store holds."""
    small_units(1000)
    source = jsonl("in.jsonl", TEXTS * 4)
    seen: list[BuildProgress] = []
    result = build_store(BuildOptions((str(source),), tmp_path / "store", "bytes", workers=workers), seen.append)
    size = source.stat().st_size
    assert seen[-1] == BuildProgress(size, size, result.num_documents, result.num_tokens)
    for before, after in pairwise(seen):
        assert before.num_bytes <= after.num_bytes
        assert before.num_tokens <= after.num_tokens


# ---- bad records


def test_more_bad_records_than_allowed_are_listed_and_leave_no_store(
    build: Build, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P9: the build stops, names the first bad record, lists all so far with file, line and reason, and writes no store."""
    small_units(3000)
    corpus = mixed_corpus(tmp_path / "in")
    with pytest.raises(
        BadRecordsError, match=r"at most 2, found 3 so far; the first is record 34 of a\.jsonl: field"
    ) as caught:
        build(corpus, max_bad=2)
    rejects = tmp_path / "store.rejects.jsonl"
    assert str(rejects) in str(caught.value)
    assert "--max-bad" in str(caught.value)
    assert not (tmp_path / "store").exists()
    rows = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(row["file"], row["record"], row["reason"][:12]) for row in rows] == [
        ("a.jsonl", 34, "field 'text'"),
        ("b/three.txt", 1, "not UTF-8: i"),
        ("c.jsonl.gz", 6, "not JSON: un"),
    ]
    assert [row["start"] for row in rows] == ['{"text": 7}', "\ufffd not text", "{"]


def test_allowing_more_bad_records_and_running_again_works(
    build: Build, tmp_path: Path, small_units: Callable[[int], None], notes: list[str]
) -> None:
    """max_bad is no part of the recipe: raised, the same build goes on from the parts it has, and lists what it left out."""
    small_units(1000)
    corpus = mixed_corpus(tmp_path / "in")
    with pytest.raises(BadRecordsError):
        build(corpus, max_bad=2)
    result = build(corpus, max_bad=3, note=notes.append)
    assert any(note.startswith("resuming: ") for note in notes)
    assert result.rejects == tmp_path / "store.rejects.jsonl"
    assert len(result.rejects.read_text().splitlines()) == 3
    assert contents(result.path) == contents(build(corpus, max_bad=9, output="fresh").path)
    assert left_behind(result.path) == ["store.rejects.jsonl"]


@pytest.mark.parametrize("max_bad", [0, 1, 4, 5])
def test_exactly_the_allowed_number_of_bad_records_passes(
    build: Build, jsonl: Callable[..., Path], max_bad: int
) -> None:
    """`max_bad` bad records are a store, one more is none."""
    source = jsonl("in.jsonl", ["a", *[BAD] * max_bad])
    assert build(source, max_bad=max_bad).counts["bad"] == max_bad
    if max_bad:
        with pytest.raises(BadRecordsError):
            build(source, max_bad=max_bad - 1, output="other")


def test_without_bad_records_there_is_no_list_of_them(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """The list of a run that failed goes when the records are mended."""
    source = jsonl("in.jsonl", ["a", BAD])
    with pytest.raises(BadRecordsError):
        build(source)
    assert (tmp_path / "store.rejects.jsonl").exists()
    result = build(jsonl("in.jsonl", ["a", "b"]))
    assert result.rejects is None
    assert left_behind(result.path) == []


@pytest.mark.parametrize("inputs", [[""], [BAD], []], ids=["empty", "bad", "no lines"])
def test_nothing_to_write_is_an_error_and_no_store(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, inputs: list
) -> None:
    """P9: a store holds at least one document; a build that finds none says what it found and leaves none."""
    with pytest.raises(
        BuildError, match=r"expected at least one, found none \(1 input files, 0 documents, .*nothing was"
    ):
        build(jsonl("in.jsonl", inputs), max_bad=1)
    assert not (tmp_path / "store").exists()


def test_a_damaged_input_is_an_error_and_no_store(build: Build, tmp_path: Path) -> None:
    """P9: half a compressed file never becomes a store, and whole again it does."""
    corpus = mixed_corpus(tmp_path / "in")
    whole = (corpus / "d.txt.gz").read_bytes()
    (corpus / "d.txt.gz").write_bytes(whole[:-9])
    with pytest.raises(BuildError, match=r"expected a whole \.gz file.*d\.txt\.gz"):
        build(corpus, max_bad=3)
    assert not (tmp_path / "store").exists()
    (corpus / "d.txt.gz").write_bytes(whole)
    assert contents(build(corpus, max_bad=3).path) == contents(build(corpus, max_bad=3, output="fresh").path)


# ---- a store or an unfinished build is there


def test_a_finished_store_is_left_alone(build: Build, jsonl: Callable[..., Path]) -> None:
    """P8: the same command again does nothing: not a file is written anew, and it tells so."""
    source = jsonl("in.jsonl", [*TEXTS, BAD])
    first = build(source, max_bad=1)
    before = {path: path.stat() for path in first.path.iterdir()}
    again = build(source, max_bad=1, workers=3)
    assert {path: path.stat() for path in first.path.iterdir()} == before
    assert again == BuildResult(**{**vars(first), "was_there": True})


OTHER = [
    ({"eos": False}, r"options\.eos was True, is False"),
    ({"document_start": "eos"}, r"options\.document_start was 'none', is 'eos'"),
    ({"special_text": "special"}, r"options\.special_text was 'plain', is 'special'"),
    ({"text_field": "a.text"}, r"options\.text_field was 'text', is 'a\.text'"),
    ({"text_endings": (".md",)}, r"options\.text_endings\[0\] was nothing, is \.md"),
    ({"keep_empty": True}, r"options\.keep_empty was False, is True"),
    ({"shard_bytes": 4096}, r"options\.shard_bytes was 1073741824, is 4096"),
    ({"tokenizer": "a file"}, r"tokenizer\.kind was 'bytes', is 'huggingface'"),
]


@pytest.mark.parametrize(("options", "message"), OTHER, ids=[next(iter(options)) for options, _ in OTHER])
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_other_options_than_those_of_what_is_there_are_refused_by_name(
    build: Build,
    jsonl: Callable[..., Path],
    tokenizer_file: Path,
    tmp_path: Path,
    state: str,
    options: dict,
    message: str,
) -> None:
    """P8: a store, or an unfinished build, made with other options is neither mixed with nor replaced unasked."""
    options = {name: str(tokenizer_file) if value == "a file" else value for name, value in options.items()}
    source = jsonl("in.jsonl", [*TEXTS, {"text": "x", "a": {"text": "y"}}, *([BAD] if state == "unfinished" else [])])
    if state == "finished":
        build(source)
    else:
        with pytest.raises(BadRecordsError):
            build(source)
    before = {path: path.read_bytes() for path in tmp_path.glob("store*/**/*") if path.is_file()}
    with pytest.raises(ConfigError, match=message) as caught:
        build(source, **options)
    assert "--overwrite" in str(caught.value)
    assert str(tmp_path / "store") in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.glob("store*/**/*") if path.is_file()} == before
    replaced = build(source, overwrite=True, max_bad=100, **options)
    assert contents(replaced.path) == contents(build(source, output="fresh", max_bad=100, **options).path)
    assert "store.replaced" not in left_behind(replaced.path)
    assert "store.building" not in left_behind(replaced.path)


def test_other_inputs_than_those_of_the_store_are_refused_by_name(build: Build, jsonl: Callable[..., Path]) -> None:
    """P8: a finished store is that of its inputs: one more, one less or one of another size is another command."""
    a, b = jsonl("a.jsonl", TEXTS), jsonl("b.jsonl", ["b"])
    build(a, b)
    for inputs in ((a,), (b, a), (a, b, jsonl("c.jsonl", ["c"])), (a, jsonl("b.jsonl", ["bb"]))):
        with pytest.raises(ConfigError, match=r"inputs\["):
            build(*inputs)
    assert documents(build(b, a, overwrite=True).path) == as_bytes("bb", *TEXTS)


@pytest.mark.parametrize("library", ["tokenstore", "orjson", "zstandard"])
def test_other_versions_than_those_of_the_store_are_refused_by_name(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """P8: the bytes are promised for the same library versions only, so they are recorded and compared."""
    source = jsonl("in.jsonl", ["a"])
    build(source)
    monkeypatch.setattr(f"{library}.__version__", "0.0.7")
    with pytest.raises(ConfigError, match=rf"versions\.{library} was '.*', is '0\.0\.7'"):
        build(source)


def test_a_changed_tokenizer_file_is_another_tokenizer(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path, tmp_path: Path
) -> None:
    """P8: a tokenizer is its file's content, not its path."""
    source, mine = jsonl("in.jsonl", ["a"]), tmp_path / "mine.json"
    shutil.copy(tokenizer_file, mine)
    build(source, tokenizer=str(tokenizer_file))
    assert build(source, tokenizer=str(mine)).was_there
    mine.write_bytes(mine.read_bytes() + b"\n")
    with pytest.raises(ConfigError, match=r"tokenizer\.sha256 was"):
        build(source, tokenizer=str(mine))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "other manifest", "no manifest"])
def test_an_output_that_is_no_store_is_refused_and_left_as_it_is(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, kind: str, overwrite: bool
) -> None:
    """P9: only a store is ever replaced: a folder or file of the user's is not, not even with overwrite."""
    output = tmp_path / "store"
    if kind != "file":
        output.mkdir()
    files = {
        "file": output,
        "folder": output / "thesis.txt",
        "other manifest": output / "manifest.json",
        "no manifest": output / "tokens-00000.bin",
    }
    files[kind].write_text('{"name": "an app of mine"}')
    with pytest.raises(TokenStoreError, match=str(output)) as caught:
        build(jsonl("in.jsonl", ["a"]), overwrite=overwrite)
    assert isinstance(caught.value, ConfigError) or kind == "other manifest"
    assert files[kind].read_text() == '{"name": "an app of mine"}'
    assert left_behind(output) == []


def test_an_empty_folder_may_become_the_store(build: Build, jsonl: Callable[..., Path], tmp_path: Path) -> None:
    """A folder made for the store, and parents that are not there yet, are no obstacle."""
    (tmp_path / "store").mkdir()
    assert build(jsonl("in.jsonl", ["a"])).num_documents == 1
    assert build(jsonl("in.jsonl", ["a"]), output="deep/down/store").num_documents == 1


@pytest.mark.parametrize("target", ["nothing", "empty folder", "store"])
def test_an_output_that_is_a_link_stands_for_what_it_points_to(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, target: str
) -> None:
    """A link to another disk stays a link: the store, and the work for it, lie at the other end."""
    source, there = jsonl("in.jsonl", ["a"]), tmp_path / "big disk/store"
    there.parent.mkdir()
    (tmp_path / "store").symlink_to(there)
    if target == "empty folder":
        there.mkdir()
    if target == "store":
        build(source, eos=False)
    assert build(source, overwrite=True).path == there
    assert build(source).was_there
    assert (tmp_path / "store").is_symlink()
    assert os.listdir(there.parent) == ["store"]


@pytest.mark.parametrize("name", ["manifest.json", "inputs.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"\x00", b"{}\n[]\n", b"\xff\xfe"])
def test_a_damaged_store_is_not_taken_for_a_finished_one(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, name: str, damage: bytes
) -> None:
    """P9: damage in what a second run reads is an error that names the file; overwrite makes the store anew."""
    source = jsonl("in.jsonl", ["a"])
    build(source)
    path = tmp_path / "store" / name
    size = path.stat().st_size
    path.chmod(0o644)
    path.write_bytes(damage.ljust(size, b" "))
    with pytest.raises(TokenStoreError, match=name):
        build(source)
    if name == "inputs.jsonl":  # with a manifest that is none, nobody can tell that it is a store
        assert not build(source, overwrite=True).was_there


def test_a_second_builder_of_the_same_output_is_refused(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """P8: two builds never write to one place; the message names the process to wait for."""
    with exclusive_lock(tmp_path / "store.lock"):
        with pytest.raises(tokenstore.errors.StoreBusyError, match=f"found process {os.getpid()} at work on it"):
            build(jsonl("in.jsonl", ["a"]))
    assert build(jsonl("in.jsonl", ["a"])).num_documents == 1


# ---- the same bytes, however they come about


def test_the_bytes_do_not_depend_on_workers_or_on_where_the_inputs_lie(
    build: Build, tokenizer_file: Path, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P8: every file of the store is the same for 1, 2 and 3 workers, other paths, and other times of the inputs."""
    small_units(500)
    here, there = mixed_corpus(tmp_path / "here"), mixed_corpus(tmp_path / "some/other/place")
    for path in there.rglob("*.*"):
        os.utime(path, (1, 1))
    options = {"tokenizer": str(tokenizer_file), "max_bad": 3, "shard_bytes": 2000}
    results = [
        build(here, output="one", workers=1, **options),
        build(here, output="two", workers=2, **options),
        build(there, output="three", workers=3, **options),
        build(there / "a.jsonl", there / "b", there / "[cde]*", output="four", **options),
    ]
    stores = [contents(result.path) for result in results]
    assert results[0].num_shards > 3
    assert stores[0] == stores[1] == stores[2] == stores[3]
    assert len({result.rejects.read_bytes() for result in results}) == 1


def test_the_bytes_do_not_depend_on_how_the_inputs_are_cut_into_units(
    build: Build, tmp_path: Path, small_units: Callable[[int], None]
) -> None:
    """P8: the size of a unit of work is no part of what a store is."""
    corpus = mixed_corpus(tmp_path / "in")
    whole = build(corpus, output="whole", max_bad=3, shard_bytes=600)
    for unit_bytes in (97, 5000):
        small_units(unit_bytes)
        cut = build(corpus, output=f"cut{unit_bytes}", max_bad=3, shard_bytes=600)
        assert contents(cut.path) == contents(whole.path)
        assert cut.rejects.read_bytes() == whole.rejects.read_bytes()


def test_large_texts_and_many_texts_are_tokenized_in_batches(
    build: Build, jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches bound memory and change nothing: not where they end, not what is read back at once."""
    source = jsonl("in.jsonl", TEXTS * 3)
    expected = contents(build(source, output="whole").path)
    for chars, count, read in ((1, 1024, 1), (300, 1024, 5), (1 << 20, 1, 7), (1 << 20, 5, 1 << 16)):
        monkeypatch.setattr(part, "_BATCH_CHARS", chars)
        monkeypatch.setattr(part, "_BATCH_DOCUMENTS", count)
        monkeypatch.setattr(part, "_READ_DOCUMENTS", read)
        assert contents(build(source, output=f"{chars} {count} {read}").path) == expected


# ---- resuming


@pytest.fixture
def two_units(jsonl: Callable[..., Path], small_units: Callable[[int], None]) -> tuple[Path, Path]:
    """Two inputs, each a unit of its own; the second holds a bad record, so a build fails after the first."""
    small_units(3000)
    return jsonl("in/a.jsonl", TEXTS), jsonl("in/b.jsonl", [*TEXTS, BAD])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_build_goes_on_from_the_parts_it_made(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], notes: list[str], workers: int
) -> None:
    """P8: with the cause mended, the same command takes up the finished parts and gives the bytes of one run."""
    with pytest.raises(BadRecordsError):
        build(*two_units, workers=workers)
    jsonl("in/b.jsonl", [*TEXTS, "mended"])
    result = build(*two_units, note=notes.append)
    assert notes == ["resuming: 1 of 2 parts are done"]
    assert contents(result.path) == contents(build(*two_units, output="fresh").path)
    assert documents(result.path) == as_bytes(*TEXTS, *TEXTS, "mended")
    assert left_behind(result.path) == []


@pytest.mark.parametrize("change", ["content", "size", "name"])
def test_a_changed_input_is_tokenized_anew(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], notes: list[str], change: str
) -> None:
    """P8: a part made from an input that has changed since is thrown away, not believed."""
    with pytest.raises(BadRecordsError):
        build(*two_units)
    first, second = two_units
    jsonl("in/b.jsonl", [*TEXTS, "mended"])
    if change == "name":
        first = first.rename(first.with_name("c.jsonl"))
    else:
        old = first.stat()
        jsonl("in/a.jsonl", [*reversed(TEXTS)] if change == "content" else TEXTS[1:])
        os.utime(first, ns=(old.st_mtime_ns, old.st_mtime_ns + 1000 * (change == "content")))
    result = build(first, second, note=notes.append)
    assert notes == []
    assert contents(result.path) == contents(build(first, second, output="fresh").path)


def test_a_part_half_overwritten_by_a_build_of_other_inputs_is_not_believed(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: inputs a, then b killed before its first part counted, then a again: the store holds a, not b's tokens.

    Inputs are no part of the recipe, so one work folder may see both; the texts of b have the lengths of those of a.
    """
    first, second = two_units
    other = jsonl("in/other.jsonl", [text[::-1] for text in TEXTS])
    with pytest.raises(BadRecordsError):
        build(first, second)
    with monkeypatch.context() as patched:
        patched.setattr(part, "write_atomically", die)
        with pytest.raises(KeyboardInterrupt):
            build(other, second)
    jsonl("in/b.jsonl", [*TEXTS, "mended"])
    assert documents(build(first, second).path) == as_bytes(*TEXTS, *TEXTS, "mended")


@pytest.mark.parametrize("damage", ["no tokens", "short tokens", "no lengths", "long lengths", "no json", "other json"])
def test_a_part_whose_files_are_not_whole_is_made_again(
    build: Build, jsonl: Callable[..., Path], two_units: tuple[Path, Path], tmp_path: Path, damage: str
) -> None:
    """P8: a work folder that was tidied or copied in part still resumes to the same bytes."""
    with pytest.raises(BadRecordsError):
        build(*two_units)
    how, what = damage.split()
    (summary,) = (tmp_path / "store.building/parts").glob("*.json")
    path = summary.with_suffix("." + what)
    data = path.read_bytes()
    path.write_bytes({"no": b"", "short": data[:-2], "long": data + bytes(8), "other": b"[]"}[how])
    if how == "no":
        path.unlink()
    jsonl("in/b.jsonl", [*TEXTS, "mended"])
    assert documents(build(*two_units).path) == as_bytes(*TEXTS, *TEXTS, "mended")


def test_a_build_that_died_while_it_replaced_a_store_gives_the_new_one(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: dead between putting the old store aside and naming the new one, the command leaves no store and resumes."""
    old, new = jsonl("old.jsonl", ["old"]), jsonl("new.jsonl", ["new"])
    build(old)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "commit_directory", die)
        with pytest.raises(KeyboardInterrupt):
            build(new, overwrite=True)
    assert not (tmp_path / "store").exists()
    result = build(new)
    assert documents(result.path) == as_bytes("new")
    assert left_behind(result.path) == []


def test_a_build_that_died_right_after_its_store_appeared_is_finished(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: the store's name is given last: the list of bad records is there already, and what is left over is tidied."""
    source = jsonl("in.jsonl", ["a", BAD])

    def commit(working: Path, output: Path) -> None:
        os.rename(working, output)
        die()

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "commit_directory", commit)
        with pytest.raises(KeyboardInterrupt):
            build(source, max_bad=1)
    assert left_behind(tmp_path / "store") == ["store.building", "store.rejects.jsonl"]
    result = build(source, max_bad=1)
    assert result.was_there
    assert result.rejects == tmp_path / "store.rejects.jsonl"
    assert left_behind(tmp_path / "store") == ["store.rejects.jsonl"]


def test_a_damaged_recipe_of_an_unfinished_build_is_refused_by_name(
    build: Build, two_units: tuple[Path, Path], tmp_path: Path
) -> None:
    """P9: what the parts of an unfinished build were made with must be readable; overwrite begins anew."""
    with pytest.raises(BadRecordsError):
        build(*two_units)
    (tmp_path / "store.building/recipe.json").write_bytes(b"\x00\xff{")
    with pytest.raises(TokenStoreError, match=r"recipe\.json"):
        build(*two_units, max_bad=1)
    assert build(*two_units, max_bad=1, overwrite=True).num_documents == 2 * len(TEXTS)


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_store_inside_its_input_folder_is_not_read_by_the_same_command_again(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, state: str
) -> None:
    """P8: what a build writes (inputs.jsonl, the list of bad records) is never its own input."""
    source = jsonl("data/in.jsonl", [*TEXTS, BAD])
    if state == "failed":
        with pytest.raises(BadRecordsError):
            build(source.parent, output="data/store")
    else:
        build(source.parent, output="data/store", max_bad=1)
    again = build(source.parent, output="data/store", max_bad=1)
    assert again.was_there is (state == "finished")
    assert again.counts == {"input files": 1, "documents": len(TEXTS), "empty": 0, "bad": 1}
    assert build(f"{source.parent}/**/*.jsonl", output="data/store", max_bad=1).was_there
    with pytest.raises(ConfigError, match="found none"):
        build(source.with_name("store.rejects.jsonl"), output="data/store")


def test_a_worker_that_dies_is_told_and_the_build_resumes(
    build: Build, two_units: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: a worker killed from outside (out of memory) is a BuildError that says what to do, and nothing is lost by it."""
    monkeypatch.setattr("tokenstore.build.workers._work", exit_job)
    with pytest.raises(BuildError, match=r"worker: expected it to finish, found it killed.*--workers"):
        build(*two_units, max_bad=1, workers=2)
    monkeypatch.undo()
    assert not (tmp_path / "store").exists()
    assert build(*two_units, max_bad=1).num_documents == 2 * len(TEXTS)


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: expected 1 or more, found 0"),
        ({"max_bad": -1}, "max_bad: expected 0 or more, found -1"),
        ({"shard_bytes": 3}, "shard_bytes: expected 4 or more, found 3"),
        ({"inputs": ()}, "inputs: expected at least one"),
        ({"text_endings": ("md", "")}, r"found 'md'; .*found ''"),
        ({"text_field": ""}, "text_field: expected a name"),
        ({"document_start": "begin"}, "document_start: expected .*, found 'begin'"),
        ({"special_text": "refuse"}, "special_text: expected .*, found 'refuse'"),
        ({"workers": 0, "max_bad": -1, "text_field": ""}, "workers: .*max_bad: .*text_field: "),
    ],
)
def test_impossible_options_are_refused_all_at_once(options: dict, message: str) -> None:
    """A wrong option is a ConfigError by name before anything is read, and all mistakes stand in one message."""
    with pytest.raises(ConfigError, match=message):
        BuildOptions(**{"inputs": ("a",), "output": Path("b"), "tokenizer": "bytes", **options})


def test_a_start_token_the_tokenizer_has_not_is_refused(
    build: Build, jsonl: Callable[..., Path], tokenizer_file: Path, tmp_path: Path
) -> None:
    """A beginning-of-text token nobody named is a ConfigError before anything is written."""
    with pytest.raises(ConfigError, match=r"document start: expected a bos token, found none"):
        build(jsonl("in.jsonl", ["a"]), tokenizer=str(tokenizer_file), document_start="bos")
    assert left_behind(tmp_path / "store") == []


def test_an_id_outside_the_vocabulary_is_refused_and_never_wrapped(
    build: Build, jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: an engine whose ids pass the vocabulary it declared gives an error, not a smaller number in a store."""
    wrong = (np.array([97, 65_536 + 97], np.uint32), np.array([2]))
    monkeypatch.setattr("tokenstore.tokenizer.raw_bytes.ByteTokenizer.encode_batch", lambda self, texts: wrong)
    with pytest.raises(BuildError, match="expected ids below 259, found 65633"):
        build(jsonl("in.jsonl", ["a"]))
    assert not (tmp_path / "store").exists()
