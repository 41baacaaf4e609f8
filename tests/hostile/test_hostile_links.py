"""Links, pipes and devices among the files of a store or tokenizer: nothing outside is read, and nothing blocks."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

import tokenstore
from tests.support.foreign.adopting import adopt
from tests.support.stores.forge import list_file, list_tokenizer
from tests.support.stores.hostile_stores import check_message, make_fifo, make_small, refused
from tokenstore.builder import BuildOptions, StoreWriter, build_store, merge
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.foreign import ExportOptions, export_store
from tokenstore.store import open_store, verify, versions
from tokenstore.tokenizer import load_tokenizer

pytestmark = pytest.mark.timeout(60)  # a hang is a failure long before the suite's own limit

FILES = ["manifest.json", "boundaries.bin", "tokens-00000.bin", "inputs.jsonl"]


def write_words(path: Path) -> None:
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}, "a")).save(str(path))


def move(path: Path, name: str, folder: Path) -> None:
    """Move a file of a store to another folder, leaving a link."""
    folder.mkdir(exist_ok=True)
    (path / name).rename(folder / name)
    (path / name).symlink_to(folder / name)


@pytest.mark.parametrize("name", FILES)
def test_a_link_that_leaves_the_store_is_refused_unless_its_folder_is_allowed(tmp_path: Path, name: str) -> None:
    """A file elsewhere is read through a link only if the caller allows its folder."""
    path = make_small(tmp_path / "s")
    move(path, name, tmp_path / "blobs")
    check_message(refused(path, path / name), f"a link to {tmp_path / 'blobs' / name}", "--allow-links FOLDER")
    with pytest.raises(CorruptionError):
        open_store(path, allow_links=tmp_path / "other")
    assert len(list(open_store(path, allow_links=tmp_path / "blobs"))) == 30
    assert verify(path, allow_links=tmp_path / "blobs") == []
    assert versions(path, tmp_path / "blobs") == [1]


def test_a_link_that_stays_inside_the_store_is_accepted(tmp_path: Path) -> None:
    """The path of a store may be a link, and a store may contain links to its own files, relative or not."""
    path = make_small(tmp_path / "s")
    (path / "boundaries.bin").rename(path / "moved.bin")
    (path / "boundaries.bin").symlink_to("moved.bin")
    (path / "inputs.jsonl").rename(path / "moved.jsonl")
    (path / "inputs.jsonl").symlink_to(path / "moved.jsonl")
    (tmp_path / "link").symlink_to("s")
    for each in (path, tmp_path / "link"):
        assert len(list(open_store(each))) == 30
        assert verify(each) == []


def test_a_folder_whose_name_begins_like_the_stores_is_outside(tmp_path: Path) -> None:
    """`s-private` is not inside `s`, and neither is `s/../s-private`."""
    path = make_small(tmp_path / "s")
    move(path, "boundaries.bin", tmp_path / "s-private")
    refused(path, "boundaries.bin")
    (path / "boundaries.bin").unlink()
    (path / "boundaries.bin").symlink_to("../s/../s-private/boundaries.bin")
    refused(path, "boundaries.bin")


def test_a_chain_of_links_is_followed_to_its_end(tmp_path: Path) -> None:
    """The final target decides, not the first one."""
    path = make_small(tmp_path / "s")
    move(path, "boundaries.bin", tmp_path / "blobs")
    (path / "boundaries.bin").rename(path / "inner")
    (path / "boundaries.bin").symlink_to("inner")
    refused(path, "boundaries.bin")


def test_allowed_links_are_pickled_but_not_part_of_the_identity(tmp_path: Path) -> None:
    """A store and a plan open again in a folder with links; state and fingerprint stay the same."""
    path = make_small(tmp_path / "s")
    plain = tokenstore.Plan.of(path, 8, 4, num_steps=2, packing="concat")
    state, expected = plain.state(1), plain.batch(1)["input_ids"].tolist()
    for name in FILES:
        move(path, name, tmp_path / "blobs")
    plan = tokenstore.Plan.of(path, 8, 4, num_steps=2, packing="concat", allow_links=tmp_path / "blobs")
    again = pickle.loads(pickle.dumps(plan))
    assert again.batch(1)["input_ids"].tolist() == expected
    assert again.fingerprint == plain.fingerprint
    assert again.check_state(state) == (1, 0)
    assert len(pickle.loads(pickle.dumps(plan.stores["s"]))) == 30


def test_the_tokenizer_of_a_store_is_not_read_through_a_link(tmp_path: Path) -> None:
    """A store's tokenizer file or side file outside the store is refused; for a tokenizer that the user names, it is
    accepted.
    """
    (real := tmp_path / "real").mkdir()
    write_words(real / "tokenizer.json")
    (real / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder := tmp_path / f"with {name}").mkdir()
        write_words(folder / "tokenizer.json")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(real / name)
        with pytest.raises(ConfigError, match="outside of the store"):
            load_tokenizer(str(folder / "tokenizer.json"), allow_links=None)
        load_tokenizer(str(folder / "tokenizer.json"), allow_links=real)
        load_tokenizer(str(folder / "tokenizer.json"))


def test_side_files_that_the_manifest_does_not_list_are_not_read(tmp_path: Path) -> None:
    """FMT-6: a file put next to a store's tokenizer is not part of the store."""
    path = make_small(tmp_path / "s")
    write_words(path / "tokenizer.json")
    list_tokenizer(path)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    make_fifo(path / "tokenizer_config.json")
    assert open_store(path).tokenizer.chat_template is None
    list_file(path, "chat_template.jinja")
    assert open_store(path).tokenizer.chat_template == "{{ messages }}"


KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": make_fifo,
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja", "tokenizer.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_never_waits_for_a_pipe_or_reads_a_device(tmp_path: Path, name: str, kind: str) -> None:
    """Files next to a tokenizer's file are read only if they are regular; the error names the file."""
    write_words(tmp_path / "tokenizer.json")
    (tmp_path / name).unlink(missing_ok=True)
    KINDS[kind](tmp_path / name)
    with pytest.raises(ConfigError, match=kind) as caught:
        load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert name in str(caught.value)


OUTPUTS: dict[str, Callable[[Path, Path], object]] = {
    "build": lambda store, output: build_store(BuildOptions((str(store / "inputs.jsonl"),), output, "bytes")),
    "adopt": lambda store, output: adopt(output, store / "tokens-00000.bin", format="nanogpt"),
    "export": lambda store, output: export_store(ExportOptions(store, "dolma", output)),
    "merge": lambda store, output: merge([store, f"{store}/../t"], output),
    "writer": lambda store, output: StoreWriter(output, vocab_size=5),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    """A link in a circle, and a name that is too long: a ConfigError instead of a RuntimeError or an OSError."""
    path = make_small(tmp_path / "s")
    (tmp_path / "round").symlink_to("round")
    for output, found in (
        ("round", "is a link that leads to itself"),
        ("x" * 300, "cannot be examined .File name too"),
    ):
        with pytest.raises(ConfigError, match=f"output: .*{output} {found}"):
            OUTPUTS[name](path, tmp_path / output)
