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

html_theme = "furo"
html_title = "tokenstore"
html_copy_source = False
html_show_sphinx = False
html_static_path: list[str] = []


def _plain(app, what, name, obj, options, lines):
    """Escape what reStructuredText would take for markup in a docstring, except in code."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"[*|\\]|(?<=\w)_(?=\W|$)", r"\\\g<0>", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def setup(app):
    """Register the hook for docstrings, ahead of napoleon."""
    app.connect("autodoc-process-docstring", _plain, priority=400)
