"""Renders the templates. Any text in a page is made safe here."""

import base64
import hashlib
import shlex
from functools import cache
from importlib.resources import files
from typing import Any

from tokenstore import __version__
from tokenstore.errors import require
from tokenstore.report.charts import SIZE
from tokenstore.text import percentage, safe, size, span
from tokenstore.views.lengths import percentile_name

BEGINS = "<!doctype html>\n<!-- a page of `tokenstore report` -->"  # marks a file that `report` may replace


def render(template: str, **values: Any) -> str:
    """Render a template of assets/ with `values`; see `render_source`."""
    return render_source(_asset(template), **values)


def render_source(source: str, **values: Any) -> str:
    """Render the text of a template with `values`. Every str among them is made `safe` and escaped, whatever it contains."""
    script = _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page: str = (
        _environment()
        .from_string(source)
        .render(**values, begins=BEGINS, style=_asset("style.css"), script=script, script_digest=digest)
    )
    return page.encode("utf-8", "backslashreplace").decode()


@cache
def _environment() -> Any:
    require("jinja2", "report: a page", "build")
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: safe(value, lines=True) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(tool_version=__version__, chart_size=SIZE)
    environment.filters.update(count=lambda n: f"{n:,}", percent=_percent, bytes=size, shell=shlex.quote)
    environment.globals.update(span=span, percentile_name=percentile_name)
    return environment


def _percent(share: float) -> str:
    return percentage(share).replace(" ", "\u00a0")  # no line break before the sign


@cache
def _asset(name: str) -> str:
    return files("tokenstore.report").joinpath("assets", name).read_text("utf-8")
