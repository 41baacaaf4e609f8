"""Settings of Sphinx. `python -m docs.build` collects the pages and runs it with warnings as errors."""

import re

project = "tokenstore"
copyright = "the tokenstore authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
smartquotes = False  # `--json` keeps its hyphens
default_role = "code"  # docstrings are written for readers of the source: `name` is code
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autoclass_content = "both"  # a class and its __init__
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpicky = False

_SECTION = r"(Args|Arguments|Attributes|Examples?|Notes?|Raises|Returns|Yields|Warns|See Also):"

html_theme = "furo"
html_title = "tokenstore"
html_favicon = "icon.svg"
html_copy_source = False
html_show_sphinx = False
html_static_path: list[str] = []


def _plain(app, what, name, obj, options, lines):
    """Make a docstring valid reStructuredText: it is written for readers of the source, who see it as it is."""
    lines[:] = [_escaped(line) for line in _indented_right(lines) if not line.startswith("Create new instance of")]


def _indented_right(lines):
    """Continue a paragraph whose second line is indented; make code of an indented block after an empty line.

    In the sections that napoleon knows, such as `Args:`, indentation stays as it is.
    """
    in_section, previous = False, ""
    for line in lines:
        indented = line.startswith(" ")
        if line.strip() and not indented:
            in_section = re.fullmatch(_SECTION, line.strip()) is not None
        if indented and not in_section and previous.strip() and not previous.startswith(" "):
            line = line.strip()
        elif indented and not in_section and not previous.strip():
            yield from ("::", "")
        yield line
        previous = line


def _escaped(line):
    """Escape what would be markup, except in code."""
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [re.sub(r"[*|\\]|(?<=\w)_(?=\W|$)", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def setup(app):
    """Register the hook for docstrings, ahead of napoleon."""
    app.connect("autodoc-process-docstring", _plain, priority=400)
