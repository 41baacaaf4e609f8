"""`tokenstore examples` and `tokenstore demo`: what they write, and which folders they refuse."""

import ast
import json
from pathlib import Path

import pytest

from tests.support.processes.command_lines import ok, run_here
from tokenstore.commands.examples import SOURCE


def imported(script: Path) -> set[str]:
    """The first parts of all imported names, and the module of `from x import y`."""
    nodes = list(ast.walk(ast.parse(script.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_copied_scripts_import_each_other(tmp_path: Path) -> None:
    """A change of a copied model.py has an effect: no copy imports, runs or names a script of the package."""
    folder = tmp_path / "my run" / "examples"
    files = json.loads(ok("examples", folder, "--json"))["files"]
    assert {"data.py", "model.py", "train_gpt.py", "trainers/hf.py", "trainers/common.py"} <= set(files)
    assert sorted(files) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))
    assert not [name for name in files if "tokenstore.examples" in (folder / name).read_text()]
    for name in files:
        siblings = {module for module in imported(SOURCE / name) if module.startswith("tokenstore.examples.")}
        for module in siblings:
            path = module.removeprefix("tokenstore.examples.").replace(".", "/")
            assert f"{path}.py" in files or (folder / path).is_dir(), f"{name} imports {module}"


def test_every_script_is_listed_with_what_it_does(tmp_path: Path) -> None:
    listed = ok("examples", tmp_path / "new")
    assert "train_fsdp.py                     Train the same GPT with FSDP2" in listed
    assert f"next: cd {tmp_path / 'new'} && python -m data RUN && python -m train_gpt RUN" in listed


@pytest.mark.parametrize("command", [["examples"], ["demo", "--folder"]])
def test_a_folder_in_use_is_refused(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "mine.py").write_text("")
    done = run_here(*command, tmp_path)
    assert done.returncode == 2
    assert f"expected a new or empty folder, found {tmp_path}; choose another name" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
