"""Packages and megabytes of environments, torch aside: `python tools/wheel/size.py NAME SITE_PACKAGES...`."""

import sys
from importlib.metadata import distributions
from pathlib import Path


def main(name: str, folders: list[str]) -> None:
    """Print one line. `pip` counts as no package."""
    found = [each for each in distributions(path=folders) if each.name.lower() not in ("pip", "setuptools")]
    sizes = {each.name: sum(_size(Path(str(file.locate()))) for file in each.files or []) for each in found}
    rest = sum(sizes.values()) - sizes.get("torch", 0)
    print(f"{name:<14}{len(sizes):5} packages {rest / 1e6:8.0f} MB, and torch {sizes.get('torch', 0) / 1e6:.0f} MB")


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
