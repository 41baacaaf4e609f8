"""The documents of the store that tests of reading open; how many files are open and mapped below a folder."""

from pathlib import Path

from tests.conftest import random_documents

DOCUMENTS = random_documents(3, 50, 40)


def open_files(below: Path) -> int:
    """Descriptors of this process that lead below a folder."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith(str(below))
        except FileNotFoundError:  # the descriptor with which we read the folder
            continue
    return count


def maps_of(below: Path) -> int:
    """Maps of this process of files below a folder."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.split(maxsplit=5)[-1].startswith(str(below)) for line in lines)
