"""The maps of the code in its documentation: what they name exists, and they leave nothing out."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tokenstore"
CODE = ("tokenstore", "tests", "tools", "benches", "docs")
MAPPED = (".", "batches", "builder", "builder/documents", "builder/reading", "foreign", "planning", "report", "store",
          "store/remote", "torch_data", "trainers", "views")  # fmt: skip


@pytest.mark.parametrize("package", MAPPED)
def test_the_map_of_a_package_names_all_its_modules(package: str) -> None:
    """A package's docstring says what each module is for."""
    folder = PACKAGE / package
    words = set(re.findall(r"\w+", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""))
    assert not {path.stem for path in folder.glob("*.py")} - words - {"__init__"}


def test_modules_that_are_named_exist() -> None:
    """`name.py` in a page, or in the docstring of a package, is a file of the project."""
    files = [f"/{path.relative_to(ROOT)}" for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("__init__.py")]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text())
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert not missing


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Also for types, where an import is not executed. The facades of packages are left out."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}
    graph = {}
    for name, tree in modules.items():
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {(node.module or "", f"{node.module}.{alias.name}") for node in imported for alias in node.names}
        graph[name] = {each for pair in names for each in pair} & modules.keys()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
