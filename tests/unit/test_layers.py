"""The architecture as a test: who may import what, and what may not stand where."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "tokenstore"
LAYERS = {
    "errors": 0,
    "jit": 0,
    "intrinsics": 0,
    "paths": 0,
    "outside": 0,
    "format": 1,
    "order": 1,
    "tokenizer": 1,
    "store": 2,
    "builder": 3,
    "batches": 3,
    "planning": 4,
    "torch_data": 5,
    "trainers": 6,
    "views": 5,
    "report": 6,
    "commands": 7,
}
MODULES = sorted(ROOT.rglob("*.py"))
LIBRARIES = {  # who alone may import a library
    "torch": {"torch_data", "trainers"},
    "os": {
        "store/files.py",
        "store/maps.py",
        "store/writing.py",
        "store/work.py",
        "outside.py",
        "paths.py",
        "torch_data/ranks.py",  # what a launcher says in the environment
        "commands/entry.py",  # to end while imports go on
    },
    "mmap": {"store/writing.py", "store/maps.py", "batches/sigbus.py"},  # of the last, the size of a page
    "ctypes": {"store/maps.py"},
    "fcntl": {"store/work.py"},
    "resource": {"store/files.py"},
    "tokenizers": {"tokenizer"},
    "tiktoken": {"tokenizer"},
    "sentencepiece": {"tokenizer"},
    "gigatoken": {"tokenizer"},
    "awkward": {"tokenizer"},
    "zstandard": {"builder"},
    "orjson": {"builder"},
    "pyarrow": {"builder/reading/columnar.py"},
    "transformers": {"builder/documents/templates.py", "trainers/huggingface.py"},
    "lightning": {"trainers/lightning.py"},
    "torchdata": {"trainers/torchdata.py"},
    "grain": {"trainers/grain.py"},
    "jinja2": {"builder/documents/templates.py", "report/page.py"},
    "gzip": {"builder"},
    "multiprocessing": {"builder", "commands"},
    "xxhash": {
        "builder/reading/checksums.py",
        "builder/split.py",
        "store/input_list.py",
        "store/output.py",
        "store/length_index.py",
        "store/pin.py",
        "store/verify.py",
    },
    "pydantic": {"planning/config.py"},
    "yaml": {"planning/yaml_text.py"},
    "rich": {"commands"},
    "cyclopts": {"commands"},
    "random": set(),
    "numba": {
        "jit.py",
        "intrinsics.py",
        "batches/spans.py",
        "batches/concat_spans.py",
        "batches/packed_spans.py",
        "batches/gather.py",
        "batches/sigbus.py",
        "batches/masks.py",
    },
    "llvmlite": {"intrinsics.py"},
}


def imports(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            names.append(node.module or "")
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer(place: str) -> str:
    return place.split("/")[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_a_module_imports_only_its_own_and_lower_layers(path: Path) -> None:
    """The layers of the package's docstring hold."""
    mine = layer(place(path))
    if mine == "__init__":
        return  # the facade: names are imported when used, for type checkers otherwise
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("tokenstore.") and (other := name.split(".")[1]) in LAYERS:
            assert other == mine or LAYERS[other] < LAYERS[mine], f"{place(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_a_library_is_imported_only_where_it_belongs(path: Path) -> None:
    """Torch only in torch_data/, the builder's libraries only in build/, os and mmap in one module, random nowhere."""
    for name in imports(ast.parse(path.read_text())):
        allowed = LIBRARIES.get(name.split(".")[0])
        assert allowed is None or {layer(place(path)), place(path)} & allowed, f"{place(path)} imports {name}"
        assert not name.startswith("numpy.random")


@pytest.mark.parametrize("path", sorted((ROOT / "order").glob("*.py")), ids=place)
def test_the_order_holds_no_floats(path: Path) -> None:
    """P6: no float literal, no true division, no float type, no numpy randomness in order/."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), ast.unparse(node)
        assert not (isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div)), ast.unparse(node)
        assert not (isinstance(node, ast.Name) and node.id in ("float", "hash")), ast.unparse(node)
        assert not (isinstance(node, ast.Attribute) and node.attr in ("random", "float64", "float32")), ast.unparse(
            node
        )


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_nothing_prints(path: Path) -> None:
    """Only commands speak, and through a console."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.Name) and node.id == "print")


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_functions_and_modules_stay_small(path: Path) -> None:
    """At most 70 lines a function, 400 a module."""
    source = path.read_text()
    assert source.count("\n") <= 400
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            first = node.body[0]
            code_start = first.end_lineno if isinstance(first, ast.Expr) and len(node.body) > 1 else node.lineno
            assert node.end_lineno - code_start <= 70, f"{place(path)}: {node.name}"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_tokenstore_imports_no_heavy_library() -> None:
    """Starting is cheap: neither torch nor a builder's library comes with `import tokenstore`."""
    out = run("import sys, tokenstore; print(*sorted({m.split('.')[0] for m in sys.modules}))")
    assert not {"torch", "tokenizers", "numba", "numpy", "pydantic", "orjson", "zstandard", "rich"} & set(out.split())


def test_opening_a_store_imports_numpy_and_no_more(make_store) -> None:
    """Opening needs neither torch, nor tokenizers, nor pydantic."""
    path = make_store("s", [[1, 2], [3]])
    out = run(f"import sys, tokenstore; tokenstore.open_store({str(path)!r})[0]; print(*sorted(sys.modules))")
    assert not {"torch", "tokenizers", "pydantic", "orjson", "zstandard", "rich", "numba"} & set(out.split())


def test_planning_imports_no_torch(make_store) -> None:
    """A plan is usable without torch or the builder's libraries."""
    path = make_store("s", [[1, 2], [3, 4, 5]], length_index=True)
    code = f"import sys, tokenstore; tokenstore.Plan.of({str(path)!r}, 2, 1).batch(0); print(*sorted(sys.modules))"
    assert not {"torch", "tokenizers", "orjson", "zstandard", "rich"} & set(run(code).split())


def test_every_public_name_is_there() -> None:
    """The names of the facade can be imported."""
    import tokenstore

    assert all(getattr(tokenstore, name) is not None for name in tokenstore.__all__)
    assert set(tokenstore.__all__) <= set(dir(tokenstore))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tokenstore.nonsense


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_what_is_at_a_path_is_asked_in_one_place(path: Path) -> None:
    """From Python 3.14 on Path.exists and its like call missing what may not be looked at."""
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert place(path) == "paths.py" or not called & {"exists", "is_file", "is_dir"}


CHANGES = {"write_text", "write_bytes", "touch", "chmod", "lchmod", "mkdir", "makedirs", "rmdir", "rmtree", "unlink", "rename",
           "symlink_to", "hardlink_to", "truncate", "tofile", "save", "savez", "memmap", "open_memmap"}  # fmt: skip


def changes_files(node: ast.AST) -> bool:
    """Whether a call may create, replace or remove a file: by a method of paths or arrays, or by `open` to write."""
    if not isinstance(node, ast.Call):
        return False
    method = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if method in CHANGES or (method == "replace" and len(node.args) == 1):  # Path.replace; str.replace has two
        return True
    if (method == "open" and ast.unparse(node.func) != "os.open") or (
        isinstance(node.func, ast.Name) and node.func.id == "open"
    ):
        modes = [*node.args[method is None :][:1], *(each.value for each in node.keywords if each.arg == "mode")]
        return not all(isinstance(mode, ast.Constant) and mode.value in ("r", "rb") for mode in modes)
    return False


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_files_are_changed_in_one_place(path: Path) -> None:
    """What is created is new, what is replaced or removed is so by its name: `store/writing.py`, and the lock, see to it."""
    if place(path) in ("store/writing.py", "store/work.py"):
        return
    found = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if changes_files(node)]
    assert not found, f"{place(path)}: {found}"
    assert not re.search("O_(WRONLY|RDWR|CREAT|APPEND|TRUNC)", path.read_text())


def test_files_are_opened_to_write_by_create_alone() -> None:
    """Every file is created exclusively, in a folder that is no link; modes are changed by descriptor."""
    tree = ast.parse((ROOT / "store/writing.py").read_text())
    opens = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "os.open")
    }
    assert opens == {"opened_folder", "create", "create_descriptor", "append_file"}  # the last one reads
    for name in ("store/writing.py", "store/work.py"):
        source = (ROOT / name).read_text()
        assert "os.chmod" not in source
        assert not re.search(r"O_TRUNC|ftruncate", source)
