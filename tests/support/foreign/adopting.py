"""Adopts token files in the test process."""

from collections.abc import Callable
from pathlib import Path

import tokenstore
from tokenstore.foreign import AdoptOptions, AdoptResult, adopt_store, verify_adopted


def adopt(
    output: Path, *inputs: object, note: Callable[[str], None] = lambda text: None, **options: object
) -> AdoptResult:
    """Adopt files with a vocabulary of 100 ids, of which 99 is the end of text, and verify the store in both ways."""
    chosen = {"vocab_size": 100, "eos_id": 99, **options}
    result = adopt_store(AdoptOptions(tuple(map(str, inputs)), output, **chosen), note=note)
    assert tokenstore.verify(result.path) == []
    assert verify_adopted(result.path) == []
    return result


def documents_of(path: Path) -> list[list[int]]:
    """The tokens of every document."""
    with tokenstore.open_store(path) as store:
        return [document.tolist() for document in store]
