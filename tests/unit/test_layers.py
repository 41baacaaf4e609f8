"""The architecture as tests: which module may import, call or contain what. Each test lists every offender."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "tokenstore"
ALL = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
MODULES = [name for name in ALL if not name.startswith("examples/")]  # examples are programs that use the package
LAYERS = {
    "collector": -1,
    "errors": 0,
    "jit": 0,
    "intrinsics": 0,
    "paths": 0,
    "outside": 0,
    "text": 0,
    "format": 1,
    "order": 1,
    "tokenizer": 1,
    "store": 2,
    "builder": 3,
    "batches": 3,
    "planning": 4,
    "foreign": 4,
    "torch_data": 5,
    "trainers": 6,
    "views": 5,
    "report": 6,
    "examples": 6,
    "commands": 7,
}
LIBRARIES = {  # the only folders and modules that may import a library
    "torch": {"torch_data", "trainers"},
    "os": {
        "store/files.py",
        "store/maps.py",
        "store/writing.py",
        "store/work.py",
        "store/remote/obstore_loading.py",  # a file in memory, for the copy of a library
        "store/remote/mirror_file.py",  # descriptors of cache files, and locks on them
        "store/remote/mirrors.py",
        "store/remote/block_files.py",
        "store/private.py",  # process numbers, to know whose a folder is
        "outside.py",
        "paths.py",
        "torch_data/ranks.py",  # the variables that a launcher sets
        "commands/entry.py",  # to exit while modules are still being imported
    },
    "mmap": {"store/writing.py", "store/maps.py", "batches/sigbus.py"},  # sigbus.py only reads the page size
    "ctypes": {"store/maps.py", "store/remote/obstore_loading.py"},
    "obstore": {"store/remote/obstore_loading.py"},
    "fcntl": {"store/work.py", "store/remote/mirror_file.py", "store/remote/mirrors.py", "store/remote/block_files.py"},
    "resource": {"store/files.py"},
    "tokenizers": {"tokenizer"},
    "tiktoken": {"tokenizer"},
    "sentencepiece": {"tokenizer"},
    "gigatoken": {"tokenizer"},
    "huggingface_hub": {"builder/hub.py"},
    "awkward": {"tokenizer"},
    "zstandard": {"builder"},
    "orjson": {"builder", "tokenizer/fast_engine.py"},
    "pyarrow": {"builder/reading/columnar.py", "store/metadata.py"},
    "transformers": {"builder/documents/templates.py", "trainers/huggingface.py"},
    "lightning": {"trainers/lightning.py"},
    "torchdata": {"trainers/torchdata.py"},
    "grain": {"trainers/grain.py"},
    "ray": {"builder/executors/ray_actors.py", "trainers"},
    "jinja2": {"builder/documents/templates.py", "report/page.py"},
    "gzip": {"builder", "foreign/dolma.py"},
    "multiprocessing": {"builder", "commands"},
    "xxhash": {
        "builder/reading/checksums.py",
        "builder/split.py",
        "foreign/files_writer.py",
        "store/input_list.py",
        "store/block_checksums.py",
        "store/block_hasher.py",
        "store/output.py",
        "store/length_index.py",
        "store/pin.py",
        "store/verify_files.py",
        "store/remote/downloads.py",
        "store/remote/token_files.py",
    },
    "yaml": {"planning/yaml_text.py"},
    "rich": {"commands"},
    "cyclopts": {"commands"},
    "random": set(),
    "numba": {
        "jit.py",
        "intrinsics.py",
        "order/rows.py",
        "batches/block.py",
        "batches/spans.py",
        "batches/costs.py",
        "batches/packed_spans.py",
        "batches/planner.py",
        "batches/gather.py",
        "batches/sigbus.py",
        "batches/masks.py",
    },
    "llvmlite": {"intrinsics.py"},
}


@cache
def source_of(module: str) -> str:
    return (ROOT / module).read_text()


@cache
def nodes_of(module: str) -> list[ast.AST]:
    """Every node of a module's syntax tree, parsed once for all tests."""
    return list(ast.walk(ast.parse(source_of(module))))


def calls_in(module: str) -> Iterator[ast.Call]:
    return (node for node in nodes_of(module) if isinstance(node, ast.Call))


@cache
def imports_of(module: str) -> list[str]:
    names = []
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import hides the layer"
            names.append(node.module or "")
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def layer(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def test_modules_import_only_their_own_and_lower_layers() -> None:
    """The layers listed in the package's docstring hold."""
    offenders = []
    for module in MODULES:
        own = layer(module)
        if own == "__init__":
            continue  # the facade imports names when they are first used, and for type checkers
        for name in imports_of(module):
            other = name.split(".")[1] if name.startswith("tokenstore.") else None
            if other in LAYERS and other != own and LAYERS[other] >= LAYERS[own]:
                offenders.append(f"{module} imports {name}")
    assert not offenders


def test_libraries_are_imported_only_where_they_belong() -> None:
    """Torch only in torch_data/ and trainers/, os and mmap in a few modules, random nowhere."""
    offenders = []
    for module in MODULES:
        for name in imports_of(module):
            allowed = LIBRARIES.get(name.split(".")[0], {module})
            if not {layer(module), module} & allowed or name.startswith("numpy.random"):
                offenders.append(f"{module} imports {name}")
    assert not offenders


def is_inexact(node: ast.AST) -> bool:
    """Whether a node is a float, a true division, or something whose result depends on platform or process."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, float)
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            return True
        case ast.Name(id=name):
            return name in ("float", "hash")
        case ast.Attribute(attr=name):
            return name in ("random", "float64", "float32")
    return False


def test_the_order_uses_integers_only() -> None:
    """P6: no float literal, no true division, no float type, no hash and no numpy randomness in order/."""
    order = [module for module in MODULES if layer(module) == "order"]
    assert not [f"{module}: {ast.unparse(node)}" for module in order for node in nodes_of(module) if is_inexact(node)]


def test_nothing_prints() -> None:
    """Only commands write to the terminal, through a console."""
    assert not [
        module for module in MODULES for node in nodes_of(module) if isinstance(node, ast.Name) and node.id == "print"
    ]


def num_code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines after the docstring."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and len(function.body) > 1
    return function.end_lineno - (first.end_lineno if has_docstring else function.lineno)


def test_functions_and_modules_stay_small() -> None:
    """A function has at most 70 lines; a module, also of tests, tools and benches, at most 400."""
    folders = ("tokenstore", "tests", "tools", "benches", "docs")
    files = (path for folder in folders for path in (ROOT.parent / folder).rglob("*.py"))
    offenders = [path.name for path in files if path.read_text().count("\n") > 400]
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and num_code_lines(node) > 70:
                offenders.append(f"{module}: {node.name}")
    assert not offenders


def test_kernels_have_few_parameters() -> None:
    """At most 8: tables travel as one block of addresses."""
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.FunctionDef) and any("kernel" in ast.unparse(each) for each in node.decorator_list):
                assert len(node.args.args) <= 8, f"{module}: {node.name}"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_tokenstore_imports_no_heavy_library() -> None:
    """Starting is cheap: neither torch nor a builder's library comes with `import tokenstore`."""
    out = run("import sys, tokenstore; print(*sorted({m.split('.')[0] for m in sys.modules}))")
    assert not {"torch", "tokenizers", "numba", "numpy", "orjson", "zstandard", "rich"} & set(out.split())


def test_opening_a_store_imports_numpy_and_no_more(make_store) -> None:
    """Opening needs neither torch, nor tokenizers, nor numba."""
    path = make_store("s", [[1, 2], [3]])
    out = run(f"import sys, tokenstore; tokenstore.open_store({str(path)!r})[0]; print(*sorted(sys.modules))")
    assert not {"torch", "tokenizers", "orjson", "zstandard", "rich", "numba"} & set(out.split())


def test_planning_imports_no_torch(make_store) -> None:
    """A plan is usable without torch or the builder's libraries."""
    path = make_store("s", [[1, 2], [3, 4, 5]], length_index=True)
    code = f"import sys, tokenstore; tokenstore.Plan.of({str(path)!r}, 2, 1).batch(0); print(*sorted(sys.modules))"
    assert not {"torch", "tokenizers", "orjson", "zstandard", "rich", "awkward"} & set(run(code).split())


def test_a_small_build_imports_no_numba(tmp_path: Path) -> None:
    """Loading kernels takes half a second: numpy makes the length index of a store of a million documents or fewer."""
    (tmp_path / "in.txt").write_text("a b")
    options = f"BuildOptions(({str(tmp_path / 'in.txt')!r},), {str(tmp_path / 'out')!r}, 'bytes')"
    code = f"from tokenstore.builder import *; build_store({options})"
    assert "numba" not in run(f"{code}; import sys; print(*sys.modules)").split()


def test_every_public_name_is_there() -> None:
    """The names of the facade can be imported."""
    import tokenstore

    assert all(getattr(tokenstore, name) is not None for name in tokenstore.__all__)
    assert set(tokenstore.__all__) <= set(dir(tokenstore))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tokenstore.nonsense


def test_paths_are_inspected_in_one_place() -> None:
    """Path.exists, is_file and is_dir report an unreadable path as missing from Python 3.14 on; `paths.py` does not.

    Path.resolve raises RuntimeError for a link in a circle before Python 3.13.
    """
    inspect = {"exists", "is_file", "is_dir"}
    assert not [
        f"{module}: {ast.unparse(call)}"
        for module in MODULES
        if module != "paths.py"
        for call in calls_in(module)
        if isinstance(call.func, ast.Attribute)
        and (call.func.attr in inspect or (call.func.attr == "resolve" and not call.args))
    ]


CHANGES = {"write_text", "write_bytes", "touch", "chmod", "lchmod", "mkdir", "makedirs", "rmdir", "rmtree", "unlink", "rename",
           "symlink_to", "hardlink_to", "truncate", "tofile", "save", "savez", "memmap", "open_memmap"}  # fmt: skip


def changes_files(node: ast.Call) -> bool:
    """Whether a call may create, replace or remove a file: a method of a path or an array, or `open` for writing."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if method in CHANGES or (method == "replace" and len(node.args) == 1):  # Path.replace; str.replace has two
        return True
    if (method == "open" and ast.unparse(node.func) != "os.open") or (
        isinstance(node.func, ast.Name) and node.func.id == "open"
    ):
        modes = [*node.args[method is None :][:1], *(each.value for each in node.keywords if each.arg == "mode")]
        return not all(isinstance(mode, ast.Constant) and mode.value in ("r", "rb") for mode in modes)
    return False


def test_files_are_changed_in_one_place() -> None:
    """Only `store/writing.py` and the lock create, replace and remove files: they never follow a link."""
    offenders = []
    for module in MODULES:
        if module not in ("store/writing.py", "store/work.py"):
            offenders += [f"{module}: {ast.unparse(call)}" for call in calls_in(module) if changes_files(call)]
            offenders += [
                f"{module}: {flag}" for flag in re.findall("O_(?:WRONLY|RDWR|CREAT|APPEND|TRUNC)", source_of(module))
            ]
    assert not offenders


def test_files_are_created_exclusively() -> None:
    """Files are never truncated, folders that are links are refused, and modes are changed by descriptor."""
    opens = {
        function.name
        for function in nodes_of("store/writing.py")
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "os.open")
    }
    # `append_file` only reads; `open_to_fill` opens files of a cache, which hold what a checksum or an ETag has confirmed
    assert opens == {"opened_folder", "create", "create_descriptor", "append_file", "open_to_fill"}
    for name in ("store/writing.py", "store/work.py"):
        assert not re.search(r"os\.chmod|O_TRUNC|ftruncate", source_of(name))
