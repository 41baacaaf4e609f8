"""Encodes a text in pieces, if it is certain that the tokens are those of the whole text.

The `tokenizers` library needs 100 bytes of memory per byte of text, so long texts are cut. The fast engine may get all pieces of
a text except those with characters that it does not know. A text is cut only before a single space between two visible ASCII
characters, and only if the tokenizer cannot notice the cut:

- Its split patterns are among those below. None of them matches a non-space followed by a space, so no match crosses the cut.
  None looks behind. What they look ahead for (no more spaces, the end of the text) they look for after a run of spaces, and
  neither side of the cut ends with one. The space is always matched, so a match begins there.
- Merges stay inside a match.
- NFC, the only normalizer allowed, changes neither a space nor anything across one.
- Added tokens contain no whitespace and do not depend on their neighbours.

Any other text or tokenizer is encoded as a whole.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tokenstore.tokenizer.patterns import PATTERNS

LONG = 1 << 20  # characters; pieces are about this long
_CUT = re.compile(r"[!-~](?= [!-~])")
_KNOWN = {pattern.regex for pattern in PATTERNS.values()} | {
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    "\r\n"
    r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    "\r\n"
    r"]*|\s*["
    "\r\n"
    r"]+|\s+(?!\S)|\s+",
}
_COVERING = _KNOWN - {r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+"}  # match every space


def can_be_cut(tokenizer: Any) -> bool:
    """Whether texts may be cut for this tokenizer of the `tokenizers` library."""
    normalizers = _parts(tokenizer.normalizer, "normalizers")
    splitters = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    tokens = tokenizer.get_added_tokens_decoder().values()
    return (
        all(part.get("type") == "NFC" for part in normalizers)
        and all(_is_known(part) for part in splitters)
        and any(_begins_at_spaces(part) for part in splitters)
        and not any(token.lstrip or token.rstrip or token.single_word for token in tokens)
        and not has_spaces(token.content for token in tokens)
    )


def is_covering(pattern: str) -> bool:
    """Whether a split regex is known to cut texts at every space, so that texts may be cut there."""
    return pattern in _COVERING


def has_spaces(strings: Iterable[str]) -> bool:
    """Whether one of the strings contains white space."""
    return any(re.search(r"\s", string) for string in strings)


def _parts(step: Any, name: str) -> list[dict[str, Any]]:
    """The parts of a step of the `tokenizers` library, as in a tokenizer.json: those of a sequence, or the single step."""
    if step is None:
        return []
    value = json.loads(step.__getstate__())
    return value[name] if value.get("type") == "Sequence" else [value]


def _is_known(part: dict[str, Any]) -> bool:
    if part.get("type") == "Split":
        is_isolated = part.get("behavior") == "Isolated" and not part.get("invert")
        return is_isolated and part["pattern"].get("Regex") in _KNOWN
    return part.get("type") == "Digits" or (part.get("type") == "ByteLevel" and not part.get("add_prefix_space"))


def _begins_at_spaces(part: dict[str, Any]) -> bool:
    """Whether a match always begins at the space after a cut."""
    if part.get("type") == "Split":
        return part["pattern"].get("Regex") in _COVERING
    return part.get("type") == "ByteLevel" and part.get("use_regex", True)


def pieces_of(text: str, size: int) -> Iterator[str]:
    """Yield a text in pieces of `size` characters or a little more. Without a place to cut, the rest is one piece."""
    start = 0
    while found := _CUT.search(text, start + size):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]
