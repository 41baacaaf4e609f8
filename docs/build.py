"""Build the documentation as a site: `python -m docs.build [FOLDER]`. Warnings and broken links are errors.

Pages are read in `docs/`, a few in other folders. They are copied to a temporary folder, where links between them are adapted
and what is generated from the code is filled in.
"""

import argparse
import os
import re
import shutil
import tempfile
from pathlib import Path

from docs.figures import figures
from docs.generated import GENERATED, example_report

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benches/README.md": "benchmarks.md",
}
CONTENTS = {
    "": ["first-steps"],
    "Guides": [
        "guides/building",
        "guides/tokens-you-have",
        "guides/python-writer",
        "guides/clusters",
        "guides/plans",
        "guides/slices",
        "guides/changing-a-run",
        "guides/packing",
        "guides/balance-and-alignment",
        "guides/training",
        "guides/huggingface",
        "guides/lightning",
        "guides/other-trainers",
        "guides/trainer-matrix",
        "guides/fine-tuning",
        "guides/evaluation",
        "guides/batch-fields",
        "guides/tracing",
        "guides/object-storage",
        "guides/locality",
        "guides/operating",
        "migration",
    ],
    "Understanding": ["how-it-works", "promises", "comparison", "security", "benchmarks"],
    "Reference": [
        "reference/python",
        "reference/commands",
        "reference/plan",
        "reference/errors",
        "reference/versions",
        "reference/compatibility",
        "reference/roadmap",
        "reference/format",
        "reference/order",
        "faq",
        "changelog",
        "contributing",
    ],
}
NO_SEARCH = ("changelog.md", "contributing.md", "benchmarks.md")  # they hold every word, and answer few questions
_LINK = re.compile(r"\]\((?P<target>(?!https?:)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_FILL_IN = re.compile(r"^```\{(?P<kind>[\w-]+)\} ?(?P<argument>[\w.]*)\n```$", re.MULTILINE)
_NOT_RUN = re.compile(r"^<!-- not run: .*? -->\n", re.MULTILINE)
_FIGURE = re.compile(r"^<!-- on the site: figure (\w+) -->$", re.MULTILINE)
_EXAMPLE = "<!-- on the site: a link to the example report -->"
_EXAMPLE_LINK = (
    '- <a href="example-report.html">An example of a report</a>: the plan of First steps, made with this site'
)


def stage(folder: Path) -> None:
    """Write every page as Sphinx is to read it."""
    pages = {ROOT / "docs" / name: name for name in _names_in_docs()}
    pages |= {ROOT / source: name for source, name in ELSEWHERE.items()}
    for source, name in pages.items():
        text = _NOT_RUN.sub("", source.read_text()).replace(_EXAMPLE, _EXAMPLE_LINK)
        text = _LINK.sub(lambda match, source=source, name=name: _link(match, source, name, pages), text)
        text = _FIGURE.sub(lambda match: figures()[match[1]], text)
        text = _FILL_IN.sub(lambda match: GENERATED[match["kind"]](match["argument"]), text)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        head = "---\nnosearch: true\n---\n" if name in NO_SEARCH else ""
        target.write_text(head + text + (_contents() if name == "index.md" else ""))
    for name in ("conf.py", "icon.svg"):
        shutil.copy(ROOT / "docs" / name, folder)


def _names_in_docs() -> list[str]:
    return [str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]


def _link(match: re.Match[str], source: Path, name: str, pages: dict[Path, str]) -> str:
    """A link from the page `name`. One that leads to no page of the site stays as it is, and fails the build."""
    target = Path(os.path.normpath(source.parent / match["target"]))
    if target not in pages:
        return match[0]
    return f"]({os.path.relpath(pages[target], Path(name).parent)}{match['anchor'] or ''})"


def _contents() -> str:
    """The site's navigation."""
    parts = []
    for caption, names in CONTENTS.items():
        title = [f":caption: {caption}"] if caption else []
        parts.append("\n".join(["", "```{toctree}", ":hidden:", *title, "", *names, "```", ""]))
    return "".join(parts)


def build(output: Path) -> int:
    """Build into `output`; return Sphinx's exit code."""
    from sphinx.cmd.build import build_main  # of the extra `docs`: tests of what is generated do without it

    with tempfile.TemporaryDirectory(prefix="tokenstore-docs-") as temporary:
        folder = Path(temporary) / "pages"
        stage(folder)
        cache = Path(temporary) / "doctrees"
        code: int = build_main(
            ["--fail-on-warning", "--keep-going", "-q", "-b", "html", "-d", str(cache), str(folder), str(output)]
        )
    if code == 0:
        example_report(output / "example-report.html")
    return code


def main() -> int:
    """Parse the command line, build."""
    parser = argparse.ArgumentParser(prog="python -m docs.build", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("site"), help="default: %(default)s")
    folder = parser.parse_args().folder
    code = build(folder.resolve())
    if code == 0:
        print(f"wrote {folder}/index.html")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
