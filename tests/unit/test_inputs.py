"""Input files: which are read, in which order, under which names, and how they are cut into units of work."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenstore.builder import BuildOptions, build_store
from tokenstore.builder.reading.inputs import InputFile, find_inputs
from tokenstore.builder.reading.units import UNIT_FILES, Unit, cut_units, slice_bytes, unit_size
from tokenstore.errors import ConfigError


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Make files of one byte with the given names below a folder; return the folder."""

    def make(*names: str, folder: str = "data") -> Path:
        for name in names:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return tmp_path / folder

    return make


def names(*arguments: object, endings: tuple[str, ...] = ()) -> list[str]:
    """Names of the input files found, in order."""
    return [file.name for file in find_inputs(tuple(map(str, arguments)), endings).files]


def test_files_are_in_the_order_of_the_arguments(tree: Callable[..., Path]) -> None:
    """Arguments are not sorted."""
    data = tree("a.txt", "b.jsonl", "c.txt.gz", "d.jsonl.zst")
    given_names = ["c.txt.gz", "a.txt", "d.jsonl.zst", "b.jsonl"]
    found = find_inputs(tuple(str(data / name) for name in given_names))
    assert [(f.name, f.format, f.compression) for f in found.files] == [
        ("c.txt.gz", ".txt", ".gz"),
        ("a.txt", ".txt", ""),
        ("d.jsonl.zst", ".jsonl", ".zst"),
        ("b.jsonl", ".jsonl", ""),
    ]
    assert all(f.path == data / f.name and f.num_bytes == 1 for f in found.files)
    assert all(f.modified_ns == f.path.stat().st_mtime_ns for f in found.files)


def test_files_of_a_folder_are_sorted_by_the_parts_of_their_paths(tree: Callable[..., Path]) -> None:
    """`a/z` is before `a-b/a`, though "-" sorts before "/", and capitals are before small letters."""
    data = tree("a/z.txt", "a-b/a.txt", "a/b/c.txt", "a.txt", "B.txt", "ä.txt", "10.txt", "9.txt")
    assert names(data) == ["10.txt", "9.txt", "B.txt", "a/b/c.txt", "a/z.txt", "a-b/a.txt", "a.txt", "ä.txt"]


def test_files_of_a_glob_are_sorted_by_the_parts_of_their_paths(tree: Callable[..., Path]) -> None:
    """A quoted glob is expanded and sorted like a folder, at any depth with **."""
    data = tree("a/z.txt", "a-b/a.txt", "a/b/c.txt", "b.txt")
    assert names(data / "*" / "*.txt") == ["a/z.txt", "a-b/a.txt"]
    assert names(f"{data}/**/*.txt") == ["a/b/c.txt", "a/z.txt", "a-b/a.txt", "b.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tree: Callable[..., Path]) -> None:
    """An argument that exists is a path, even if it could be a pattern."""
    data = tree("part[1].txt", "part1.txt")
    assert names(data / "part[1].txt") == ["part[1].txt"]


def test_a_file_named_twice_is_read_once_at_its_first_place(
    tree: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overlapping files, folders and globs, and other spellings of a path, do not repeat documents."""
    data = tree("a.txt", "b.txt", "sub/c.txt")
    assert names(data / "b.txt", data, data / "*.txt", data / "b.txt") == ["b.txt", "a.txt", "sub/c.txt"]
    monkeypatch.chdir(data)
    assert names("sub/c.txt", "./sub/c.txt", "sub/../sub/c.txt", data, ".") == ["sub/c.txt", "a.txt", "b.txt"]


def test_hidden_files_and_folders_are_skipped(tree: Callable[..., Path]) -> None:
    """Hidden files in a folder (.git, copies of editors) are no inputs, unless named or inside a hidden folder that is
    named.
    """
    data = tree("a.txt", ".b.txt", ".git/c.txt", "d/.e/f.txt", folder=".home/data")
    assert names(data) == ["a.txt"]
    assert find_inputs((str(data),)).num_hidden == 3
    assert names(data / "*.txt") == ["a.txt"]
    assert names(data / ".b.txt", data / ".git") == [".b.txt", ".git/c.txt"]


def test_other_endings_in_a_folder_are_skipped_and_counted(tree: Callable[..., Path]) -> None:
    """They are reported by ending, never skipped silently."""
    data = tree("a.txt", "b.py", "c.py", "LICENSE", "d.gz", "e.zip.gz", "f.txt.bz2", "g.TXT.GZ")
    found = find_inputs((str(data),))
    assert [f.name for f in found.files] == ["a.txt", "f.txt.bz2", "g.TXT.GZ"]
    assert found.skipped == {".py": 2, "no ending": 1, ".gz": 2}


def test_text_endings_are_read_like_txt(tree: Callable[..., Path]) -> None:
    """Also compressed ones, whatever the case of their ending."""
    data = tree("a.py", "b.PY", "c.py.gz", "d.md", "e.txt")
    found = find_inputs((str(data),), (".Py",))
    assert [(f.name, f.format) for f in found.files] == [(n, ".txt") for n in ("a.py", "b.PY", "c.py.gz", "e.txt")]
    assert found.skipped == {".md": 1}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("none", "none does not exist"),
        ("none/*.txt", "no file matches "),
        ("empty", "holds no files with a known ending"),
        ("only_others", "holds no files with a known ending"),
        ("only_others/a.pdf", r"a\.pdf has no known ending"),
        ("only_others/*", r"a\.pdf has no known ending"),
        ("pipe", "is a pipe or a device; copy its content to a file, or pipe it in"),
    ],
)
def test_an_argument_without_inputs_is_refused_by_name(tree: Callable[..., Path], argument: str, message: str) -> None:
    """A typing error never builds a smaller store: the message names what is missing, empty or of another kind."""
    data = tree("good.txt", "only_others/a.pdf")
    (data / "empty").mkdir()
    os.mkfifo(data / "pipe")
    with pytest.raises(ConfigError, match=message) as caught:
        find_inputs((str(data / "good.txt"), str(data / argument)))
    assert str(data / argument.replace("*", "a.pdf" if "others" in argument else "*")) in str(caught.value)
    assert str(data / "good.txt") not in str(caught.value)


def test_all_wrong_arguments_are_named_at_once(tree: Callable[..., Path]) -> None:
    """One message lists the first mistakes, and says how to read other files as text."""
    data = tree("a.pdf", "b.pdf", "c.pdf", "d.pdf")
    with pytest.raises(ConfigError) as caught:
        find_inputs((str(data / "none"), str(data / "*.pdf"), str(data / "nothing")))
    message = str(caught.value)
    assert all(
        name in message for name in ("/none", "a.pdf", "b.pdf", "c.pdf", "d.pdf", "and 1 more", "--text-endings")
    )


def test_names_do_not_depend_on_where_the_folder_is(
    tree: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P8: the same files have the same names from any folder, working directory and spelling of the path."""
    files = ("x/a.txt", "x/deep/b.txt", "y/c.txt")
    expected = ["x/a.txt", "x/deep/b.txt", "y/c.txt"]
    here, there = tree(*files, folder="here"), tree(*files, folder="some/where/else/there")
    assert names(here) == names(there) == names(there / "x", there / "y") == expected
    for folder in (here, there / "x", tmp_path):
        monkeypatch.chdir(folder)
        assert names(os.path.relpath(there / "x"), os.path.relpath(there / "y")) == expected


def test_a_link_to_a_file_keeps_its_own_name(tree: Callable[..., Path]) -> None:
    """A link is read under its name, as caches link readable names to files named by a hash."""
    data, blobs = tree("real.txt"), tree("0123abcd", folder="blobs")
    (data / "linked.txt").symlink_to(blobs / "0123abcd")
    assert names(data) == ["linked.txt", "real.txt"]


def files_of(sizes: list[tuple[int, str, str]]) -> list[InputFile]:
    """Input files with given sizes, formats and compressions; they do not exist on disk."""
    return [
        InputFile(Path(f"/{i}"), f"{i}", fmt, compression, size, 0) for i, (size, fmt, compression) in enumerate(sizes)
    ]


def spans(units: list[Unit], files: list[InputFile]) -> list[tuple[int, int, int]]:
    """(file, first byte, end) of all slices, in order."""
    return [
        (part.file_number, part.start, files[part.file_number].num_bytes if part.stop is None else part.stop)
        for unit in units
        for part in unit
    ]


sizes = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30), st.integers(0, 400)),
        st.sampled_from([".txt", ".jsonl"]),
        st.sampled_from(["", "", ".gz", ".zst"]),
    ),
    max_size=40,
)


@given(sizes, st.integers(1, 100))
def test_units_cover_every_byte_once_in_order(sizes: list[tuple[int, str, str]], unit_bytes: int) -> None:
    """P8: together the units are all files from first to last byte, in order, each once."""
    files = files_of(sizes)
    at = dict.fromkeys(range(len(files)), 0)
    order = []
    for number, start, stop in spans(cut_units(files, unit_bytes), files):
        assert start == at[number]
        assert stop > start or files[number].num_bytes == 0
        at[number] = stop
        order.append(number)
    assert sorted(set(order)) == list(range(len(files)))
    assert order == sorted(order)
    assert all(at[number] == file.num_bytes for number, file in enumerate(files))


@given(sizes, st.integers(1, 100))
def test_only_plain_jsonl_is_cut_and_units_are_no_larger_than_needed(
    sizes: list[tuple[int, str, str]], unit_bytes: int
) -> None:
    """A unit holds at most `unit_bytes`, except for one file that cannot be cut; only plain .jsonl has byte ranges."""
    files = files_of(sizes)
    for unit in cut_units(files, unit_bytes):
        assert unit
        total = sum(stop - start for _, start, stop in spans([unit], files))
        assert total <= unit_bytes or len(unit) == 1
        for part in unit:
            cut = part.start > 0 or part.stop is not None
            file = files[part.file_number]
            assert not cut or (file.format == ".jsonl" and not file.compression and file.num_bytes > unit_bytes)
            assert cut or len(unit) > 1 or total <= unit_bytes or file.format == ".txt" or file.compression


def test_a_unit_holds_a_bounded_number_of_files() -> None:
    """A million empty files make many units, as the cost of a unit grows with its files too."""
    units = cut_units(files_of([(0, ".txt", "")] * (2 * UNIT_FILES + 1)))
    assert [len(unit) for unit in units] == [UNIT_FILES, UNIT_FILES, 1]


def test_no_files_are_no_units() -> None:
    """Nothing in, nothing out."""
    assert cut_units([]) == []


@pytest.mark.parametrize(
    ("megabytes", "unit"), [(0, 4), (1, 4), (255, 4), (257, 8), (512, 8), (513, 16), (10**6, 16)], ids=str
)
def test_units_of_a_small_build_are_smaller_so_that_all_workers_have_some(megabytes: int, unit: int) -> None:
    """P8: units depend only on the inputs' sizes; 100 MB make more than 16 units, 1 TB makes units of 16 MiB."""
    files = files_of([(megabytes << 20, ".jsonl", "")])
    assert unit_size(files) == unit << 20
    assert all(slice_bytes(part, files[0]) <= unit << 20 for each in cut_units(files)[:100] for part in each)


def test_hidden_files_and_repeated_inputs_are_noted(tree: Callable[..., Path], tmp_path: Path) -> None:
    """A note counts them."""
    data = tree("a.txt", ".b.txt", "c.txt")
    notes: list[str] = []
    build_store(BuildOptions((str(data), str(data / "a.txt")), tmp_path / "store", "bytes"), note=notes.append)
    assert notes == [
        "skipped 1 hidden file or folder, whose names begin with a dot; to read one, name it as an input",
        "skipped 1 repeated input: each input is read once",
    ]
