"""Compares a wheel and a source archive with the files of the clone: `python -m tools.wheel.archives DIST`."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ONLY_IN_A_CLONE = (".ci/", ".github/", ".gitignore")
MADE = ("tokenstore.egg-info/", "PKG-INFO", "setup.cfg")
LICENSE = "licenses/LICENSE"


def tracked() -> set[str]:
    """The files of the clone that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name}


def check_source(path: Path, files: set[str]) -> list[str]:
    """What is missing from the source archive, and what it has besides."""
    with tarfile.open(path) as archive:
        found = {member.name.partition("/")[2] for member in archive if member.isfile()}
    wanted = {name for name in files if not name.startswith(ONLY_IN_A_CLONE)}
    missing = [f"{path.name} lacks {name}" for name in sorted(wanted - found)]
    return missing + [f"{path.name} has {name}" for name in sorted(found - wanted) if not name.startswith(MADE)]


def check_wheel(path: Path, files: set[str]) -> list[str]:
    """What is missing from the wheel, and what it has besides: it holds the package, and the licence."""
    with zipfile.ZipFile(path) as archive:
        found = set(archive.namelist())
    metadata = {name for name in found if name.split("/")[0].endswith(".dist-info")}
    wanted = {name for name in files if name.startswith("tokenstore/")}
    problems = [f"{path.name} lacks {name}" for name in sorted(wanted - found)]
    problems += [f"{path.name} has {name}" for name in sorted(found - wanted - metadata)]
    return problems + ([] if any(name.endswith(LICENSE) for name in metadata) else [f"{path.name} lacks {LICENSE}"])


def main(folder: Path) -> int:
    """Check the archives in a folder. Returns the exit code."""
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    files = tracked()
    problems = [*check_wheel(wheel, files), *check_source(source, files)]
    print("\n".join(problems or [f"{wheel.name} and {source.name} are complete"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
