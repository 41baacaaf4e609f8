"""Code blocks of the documentation, run as a reader would run them.

A page is a Markdown file. Its fenced blocks run from top to bottom, in one folder and one Python namespace:

    python    is executed. A first line `# NAME.py` writes the block to that file instead
    yaml      is written to the file named in its first line, `# NAME.yaml`
    bash      is a list of commands, each of which must succeed. Their output is not compared
    console   is a list of commands after `$ `, each followed by its output
    text      directly after a python block is the output of that block. Anywhere else it is a drawing

`...` in an output matches any text. A line `<!-- not run: REASON -->` before a block says why it cannot run.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes.command_lines import environment, run_here

_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>\{?[\w-]*\}?)[^\n]*\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]+) -->\s*\Z")
_FILE_NAME = re.compile(r"\A# (?P<name>[\w./-]+\.(?:py|yaml))\n")
_FOR_A_SHELL = re.compile(r"[|&;<>*?$`(){}]|\s\\\n")
_RUNS = ("python", "yaml", "bash", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block: the line at which it starts, its language, its text, and why it does not run (or "")."""

    line: int
    language: str
    text: str
    reason: str
    follows_python: bool = False


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(page):
        if match["language"].startswith("{"):  # a directive of the site
            continue
        before = page[end : match.start()]
        mark = _NOT_RUN.search(before)
        follows = bool(found) and found[-1].language == "python" and not before.strip()
        line = page.count("\n", 0, match.start()) + 1
        found.append(
            Block(line, match["language"], match["text"], mark["reason"] if mark else "", follows and not mark)
        )
        end = match.end()
    return found


def run_page(page: str, folder: Path) -> int:
    """Run the blocks of a page in `folder`, which must be the working directory; return how many ran."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed, count = "", 0
    for block in blocks_of(page):
        if block.reason:
            continue
        try:
            if block.language == "text" and block.follows_python:
                check_output(block.text, printed)
            elif block.language in _RUNS:
                printed = _run(block, folder, namespace)
                count += 1
            else:
                assert block.language == "text", f"unknown language {block.language!r}; mark the block as not run"
        except BaseException as error:
            error.add_note(f"in the {block.language} block at line {block.line}:\n{block.text}")
            raise
    return count


def check_output(expected: str, found: str) -> None:
    """Compare an output with what a page shows. Runs of spaces are equal, as columns are as wide as their content."""
    expected, found = (re.sub(" +", " ", re.sub(" +\n", "\n", text)).strip() for text in (expected, found))
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    assert re.fullmatch(pattern, found, re.DOTALL), f"expected the output\n{expected}\nfound\n{found}"


def _run(block: Block, folder: Path, namespace: dict[str, Any]) -> str:
    if named := _FILE_NAME.match(block.text):
        file = folder / named["name"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
        return ""
    if block.language == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, f"<block at line {block.line}>", "exec"), namespace)
        return out.getvalue()
    assert block.language != "yaml", "the first line of a yaml block must be `# NAME.yaml`"
    if block.language == "bash":
        for command in _commands(block.text):
            _command(command, folder)
    else:
        for command, output in _session(block.text):
            check_output(output, _command(command, folder))
    return ""


def _commands(text: str) -> Iterator[str]:
    """Commands of a block: one per line, unless a line ends in a backslash. Comments are omitted."""
    for command in re.split(r"(?<!\\)\n", text):
        if command.strip() and not command.lstrip().startswith("#"):
            yield command


def _session(text: str) -> Iterator[tuple[str, str]]:
    """(command, output) for every `$ ` of a block."""
    parts = re.split(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", text, flags=re.MULTILINE)
    assert not parts[0].strip(), "a console block starts with `$ `"
    return zip(parts[1::2], parts[2::2], strict=True)


def _command(command: str, folder: Path) -> str:
    """What a command prints on both outputs. A plain `tokenstore` or `python` runs in this process, which is quicker."""
    words = [] if _FOR_A_SHELL.search(command) else shlex.split(command, comments=True)
    if words[:1] == ["tokenstore"]:
        done = run_here(*words[1:])
    elif len(words) > 1 and words[0] == "python" and words[1].endswith(".py"):
        return _script(folder / words[1], words[1:])
    else:
        # The commands of this interpreter come first, also if its virtual environment is not activated
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=folder, env={**environment(), "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    output = (done.stdout or "") + (done.stderr or "")
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{output}"
    return output


def _script(path: Path, arguments: list[str]) -> str:
    """What a script prints, run in this process."""
    out, given = io.StringIO(), sys.argv
    sys.argv = arguments
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = given
    return out.getvalue()
