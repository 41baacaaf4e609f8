"""Parts of the documentation that are made from the code: specifications, fields of plans, formats, an example of a report."""

import contextlib
import inspect
import io
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tests.support.code_blocks import run_page
from tests.support.processes.command_lines import ok
from tokenstore.commands.app import app
from tokenstore.planning.checks import Take
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.locality import LocalityConfig
from tokenstore.planning.row_fields import BalanceConfig
from tokenstore.planning.source_config import DocumentRange, SourceConfig
from tokenstore.planning.stage_config import BatchRamp, StageConfig
from tokenstore.torch_data.formats import FORMATS

_CLAUSE = re.compile(r"(?P<clause>[A-Z]{3}-\d+) (?:(?P<title>[^.\n]{1,50}?)(?: \(`[\w.]+`\))?\. )?")
_SPECIAL = re.compile(r"[\\*_<>\[\]|`$#]")


def specification(module: str) -> str:
    """The docstring of a module that is a specification: a heading per clause, indented lines as they are."""
    text = inspect.cleandoc(import_module(module).__doc__ or "")
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(text: str) -> str:
    heading = ""
    if clause := _CLAUSE.match(text):
        heading = f"## {clause['clause']} {clause['title'] or ''}".rstrip() + "\n\n"
        text = text[clause.end() :]
    parts, lines = [], text.split("\n")
    while lines:
        indented = lines[0].startswith("    ")
        count = next((n for n, line in enumerate(lines) if line.startswith("    ") != indented), len(lines))
        run, lines = lines[:count], lines[count:]
        parts.append(
            "\n".join(["```text", *textwrap.dedent("\n".join(run)).split("\n"), "```"])
            if indented
            else "\n".join(map(escaped, run))
        )
    return heading + "\n\n".join(parts)


def escaped(line: str) -> str:
    """A line of plain text in Markdown, where `code` stays code."""
    parts = re.split(r"(`[^`]+`)", line)
    parts[::2] = [_SPECIAL.sub(r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def commands(_: str = "") -> str:
    """What the commands' own --help says, a section per command."""
    text = app.generate_docs(output_format="markdown", heading_level=1)
    text = re.sub(r"^(tokenstore \w+) -m \S+", r"\1", text, flags=re.MULTILINE)  # how this process was started
    return text[text.index("\n## tokenstore build") :].strip()


def plan_fields(_: str = "") -> str:
    """A table of fields for a plan, a source and a stage: type, default, meaning."""
    sections = (("A plan", PlanConfig), ("A source", SourceConfig), ("A stage", StageConfig))
    sections += (
        ("Lengths of documents", DocumentRange),
        ("A batch ramp", BatchRamp),
        ("The cost of a row", BalanceConfig),
        ("A locality", LocalityConfig),
    )
    return "\n\n".join(f"## {title}\n\n{_table_of(config)}" for title, config in sections)


def _table_of(config: type) -> str:
    meanings, types = attributes_of(config), get_type_hints(config)
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for each in fields(config):
        default = "required" if each.default is MISSING else "" if each.default is None else f"`{_yaml(each.default)}`"
        lines.append(f"| `{each.name}` | {_type(types[each.name])} | {default} | {escaped(meanings[each.name])} |")
    return "\n".join(lines)


def _yaml(value: object) -> str:
    return "[]" if value == () else json.dumps(value).strip('"')


def _type(annotation: Any) -> str:
    """What may be written in YAML for a field of this type."""
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{word}`" for word in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type(each) for each in get_args(annotation) if each is not type(None))
    names = {int: "integer", bool: "true or false", str: "text", Decimal: "number", dict: "mapping", tuple: "list"}
    names |= dict.fromkeys((BalanceConfig, BatchRamp, DocumentRange, LocalityConfig), "mapping")
    names |= {Take: "`i/n`", Fraction: "`p/q` or number"}
    return names[get_origin(annotation) or annotation]


def attributes_of(model: type) -> dict[str, str]:
    """{name: meaning} of the section Attributes of a class's docstring."""
    text = inspect.cleandoc(model.__doc__ or "").partition("Attributes:\n")[2]
    text = re.split(r"\n\n(?=\S)", text)[0]
    entries = re.split(r"^    (?=\w[\w, ]*:)", text, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        names, _, meaning = entry.partition(":")
        found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found


def formats(_: str = "") -> str:
    """A table of the formats of a loader and their fields."""
    lines = ["| format | default fields | more fields |", "|---|---|---|"]
    for name, each in FORMATS.items():
        more = [field for field in each.fields if field not in each.default]
        lines.append(f"| `{name}` | {_codes(each.default)} | {_codes(more)} |")
    return "\n".join(lines)


def _codes(names: object) -> str:
    return ", ".join(f"`{name}`" for name in names)  # type: ignore[attr-defined]


def example_report(file: Path) -> None:
    """The page that `tokenstore report` makes of the plan of First steps."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tokenstore-docs-") as folder:
        try:
            os.chdir(folder)
            with contextlib.redirect_stdout(io.StringIO()):
                run_page((Path(__file__).parent / "first-steps.md").read_text(), Path(folder))
            ok("report", "plan.yaml", "--output", file, "--title", "The plan of First steps")
        finally:
            os.chdir(before)


GENERATED: dict[str, Callable[[str], str]] = {
    "commands": commands,
    "specification": specification,
    "plan-fields": plan_fields,
    "formats": formats,
}
