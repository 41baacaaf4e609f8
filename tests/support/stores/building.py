"""What tests of building share: a corpus of every format, and what is in and next to a store that was built."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import tokenstore
from tests.data.texts import TEXTS
from tokenstore.builder import BuildResult
from tokenstore.builder.assemble import DROPPED
from tokenstore.store.work import MARK_NAME, Work

Build = Callable[..., BuildResult]
BAD = b'{"text": 7}'


def documents(path: Path) -> list[list[int]]:
    """Ids of all documents of a store."""
    with tokenstore.open_store(path) as store:
        return [document.tolist() for document in store]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def counts(**numbers: int) -> dict[str, int]:
    """What a build counts by input file, zero where it is not given: counts(documents=3, empty=1)."""
    return {"documents": 0, **dict.fromkeys(DROPPED, 0), **numbers}


def left_behind(output: Path) -> list[str]:
    """Names of everything of a build that is not its store: what is in its work folder, and what else is named like it."""
    work = Work(output).folder
    next_to_it = [path.name for path in output.parent.glob(f"{output.name}.*") if path != work]
    inside = [path.name for path in work.iterdir() if path.name != MARK_NAME] if work.exists() else []
    assert inside or not work.exists()  # it goes when nothing is in it
    return sorted([*next_to_it, *inside])


def as_bytes(*texts: str) -> list[list[int]]:
    """Documents the bytes tokenizer makes of texts, end of text appended."""
    return [[*text.encode(), 256] for text in texts]


def die(*_: object) -> None:
    """In place of a function of the build: it ends there."""
    raise KeyboardInterrupt


def mixed_corpus(folder: Path) -> Path:
    """Files of every format, small and large, with empty texts, blank lines and bad records."""

    def lines(*records: object) -> bytes:
        return b"".join(
            r + b"\n" if isinstance(r, bytes) else json.dumps({"text": r}).encode() + b"\n" for r in records
        )

    files = {
        "a.jsonl": lines(*TEXTS, "", *TEXTS, BAD, b"", *TEXTS),
        "b/one.txt": TEXTS[2].encode(),
        "b/two.txt": b"",
        "b/three.txt": b"\xff not text",
        "c.jsonl.gz": gzip.compress(lines(*TEXTS[:5], b"{", TEXTS[5])),
        "d.txt.gz": gzip.compress(TEXTS[3].encode() * 20),
        "e.jsonl": lines("the last"),
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder
