"""Runs First steps in the current, empty folder, with the tokenstore that is installed: `python CLONE/tools/wheel/installed.py`."""

import sys
from pathlib import Path

import tokenstore

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run the page. Raises if a block fails or prints something else."""
    assert not Path(tokenstore.__file__).is_relative_to(ROOT), (
        "this is the tokenstore of the clone, not an installed one"
    )
    sys.path[0] = ""  # what the page writes can be imported, and nothing of the folder of this script
    sys.path.append(str(ROOT))  # the runner of code blocks; the installed package comes first
    from tests.support.code_blocks import run_page

    count = run_page((ROOT / "docs" / "first-steps.md").read_text(), Path.cwd())
    print(f"docs/first-steps.md: {count} blocks ran with {tokenstore.__file__}")


if __name__ == "__main__":
    main()
