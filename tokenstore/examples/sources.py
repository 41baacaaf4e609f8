"""Two real corpora found on any machine: the Python standard library's code, and its prose."""

import ast
import json
import sysconfig
from pathlib import Path

_MOST_BYTES = 6_000_000


def standard_library_files() -> list[Path]:
    """Some megabytes of the library's modules, without tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    excluded = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
    files, size = [], 0
    for path in sorted(root.rglob("*.py")):
        if not excluded & set(path.relative_to(root).parts) and size < _MOST_BYTES and _is_utf8(path):
            files.append(path)
            size += path.stat().st_size
    return files


def write_prose(files: list[Path], output: Path) -> int:
    """Write the docstrings of `files` as JSON lines {"text": ..., "from": ...}; return how many."""
    count = 0
    with output.open("w", encoding="utf-8") as lines:
        for path in files:
            for text in _docstrings(path):
                lines.write(json.dumps({"text": text, "from": path.name}, ensure_ascii=False) + "\n")
                count += 1
    return count


def _docstrings(path: Path) -> list[str]:
    try:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    except SyntaxError:
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
    return [text for text in texts if text and len(text) > 80 and text.isprintable() | ("\n" in text)]


def _is_utf8(path: Path) -> bool:
    try:
        path.read_text("utf-8")
    except UnicodeDecodeError:
        return False
    return True
