"""Optional libraries: training needs none, and a missing one is named with the command that installs it."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.processes.command_lines import ROOT, run_here
from tokenstore import StoreWriter
from tokenstore.errors import ConfigError, require
from tokenstore.tokenizer import load_tokenizer

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NAMED = re.compile(r"tokenstore\[([\w,]+)\]|how_to_install\(['\"](\w+)['\"]\)|require\([^\n]*, ['\"](\w+)['\"]\)")


def named_extras() -> Iterator[tuple[str, str]]:
    """(file, extra) wherever the package, the documentation or pyproject.toml names one."""
    files = [
        ROOT / "README.md",
        ROOT / "pyproject.toml",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tokenstore").rglob("*.py"),
    ]
    for file in files:
        for found in NAMED.finditer(file.read_text()):
            for extra in next(filter(None, found.groups())).split(","):
                yield file.name, extra


def test_every_extra_that_is_named_exists() -> None:
    """In messages, documentation and in other extras."""
    named = list(named_extras())
    assert {extra for _, extra in named} >= {"build", "fast", "ray", "remote", "lightning", "all"}
    assert not [pair for pair in named if pair[1] not in EXTRAS]


def test_all_is_every_extra_for_users() -> None:
    (line,) = EXTRAS["all"]
    assert set(line.removeprefix("tokenstore[").removesuffix("]").split(",")) == EXTRAS.keys() - {"all", "test", "docs"}


def test_training_imports_no_library_of_an_extra(make_store) -> None:
    """`import tokenstore`, a plan and a first batch: the install of a reader needs only `dependencies`. A program without
    a trainer neither needs nor imports one.
    """
    path = make_store("s", [[1, 2], [3, 4, 5]], length_index=True)
    use = f"import sys, tokenstore, tokenstore.trainers; next(tokenstore.TokenLoader(tokenstore.Plan.of({str(path)!r}, 2, 1)))"
    out = subprocess.run(
        [sys.executable, "-c", f"{use}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in out.stdout.split()}
    assert not loaded & {
        "pyarrow",
        "tokenizers",
        "jinja2",
        "huggingface_hub",
        "transformers",
        "lightning",
        "accelerate",
        "torchdata",
        "grain",
        "awkward",
        "obstore",
        "ray",
    }


class TestMissing:
    """Each message ends with the command that installs the extra."""

    @pytest.fixture(autouse=True)
    def _hide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hidden = ("pyarrow", "tokenizers", "huggingface_hub", "jinja2", "transformers")
        found = metadata.Distribution.from_name

        def from_name(name: str) -> metadata.Distribution:
            if name in hidden:
                raise metadata.PackageNotFoundError(name)
            return found(name)

        for name in hidden:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr(metadata.Distribution, "from_name", from_name)  # a library that is missing has no version

    @pytest.mark.parametrize("name", ["table.parquet", "table.arrow"])
    def test_table_inputs(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(b"PAR1" if "parquet" in name else b"ARROW1")
        done = run_here("build", tmp_path / name, "-o", tmp_path / "s", "--tokenizer", "bytes")
        assert done.returncode == 2
        assert "needs the library pyarrow, which is not installed (" in done.stderr
        assert done.stderr.endswith("run: pip install 'tokenstore[build]'\n")
        assert str(tmp_path / name) in done.stderr

    @pytest.mark.parametrize(
        ("options", "library", "extra"),
        [(("--keep", "url"), "pyarrow", "build"), (("--records", "chat"), "transformers", "chat")],
        ids=["keep", "chat"],
    )
    def test_options_of_a_build(self, options: tuple[str, ...], library: str, extra: str, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "a", "url": "b"}\n')
        done = run_here("build", tmp_path / "a.jsonl", "-o", tmp_path / "s", "--tokenizer", "bytes", *options)
        assert done.returncode == 2
        assert f"needs the library {library}, which is not installed (" in done.stderr
        assert done.stderr.endswith(f"run: pip install 'tokenstore[{extra}]'\n")

    def test_a_hugging_face_tokenizer(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(
            ConfigError, match=r"a huggingface tokenizer needs the library tokenizers, .*tokenstore\[build\]"
        ):
            load_tokenizer(str(tmp_path / "tokenizer.json"))

    def test_metadata_is_refused_before_a_document_is_written(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"metadata: .* needs the library pyarrow, .*tokenstore\[build\]"):
            StoreWriter(tmp_path / "s", tokenizer="bytes", metadata=["url"]).__enter__()

    def test_a_name_on_the_hub(self, tmp_path: Path) -> None:
        done = run_here("build", "hf://datasets/a/b", "-o", tmp_path / "s", "--tokenizer", "bytes")
        assert (done.returncode, "run: pip install 'tokenstore[build]'" in done.stderr) == (2, True)


def test_a_library_that_is_installed_is_accepted() -> None:
    require("json", "this test", "build")
