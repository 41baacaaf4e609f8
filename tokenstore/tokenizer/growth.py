"""Limits how much longer a tokenizer.json can make a text: a few lines of replacements can expand one letter to a terabyte."""

import json
import re
from typing import Any

from tokenstore.errors import ConfigError

_MOST_GROWTH = 1 << 20  # as much as twenty replacements that each double the text
_MOST_CHARACTERS = 1 << 12  # of a token; the longest in published vocabularies have some hundreds
_MAY_BE_EMPTY = re.compile(r"\(\?|\\[bBAzZG]|[\^$*?|]|\{0|\{,|^$")  # a regex without any of these matches a character


def check_growth(tokenizer: Any, vocabulary: dict[str, int], place: object) -> None:
    """Reject a tokenizer whose normalizer or decoder can make a text too much longer, or that has tokens that are too long.

    Args:
        tokenizer: a tokenizer of the `tokenizers` library.
        vocabulary: its tokens.
        place: its file, for messages.

    Raises:
        ConfigError: the tokenizer was rejected.
    """
    for part in ("normalizer", "decoder"):
        made = getattr(tokenizer, part)
        growth = 1.0 if made is None else _growth(json.loads(made.__getstate__()))
        if growth > _MOST_GROWTH:
            raise ConfigError(
                f"tokenizer: its {part} can make a text {growth:.3g} times as long, and at most {_MOST_GROWTH:,} times is"
                f" allowed ({place}); use another tokenizer"
            )
    if (longest := max(map(len, vocabulary))) > _MOST_CHARACTERS:
        raise ConfigError(
            f"tokenizer: expected tokens of at most {_MOST_CHARACTERS:,} characters, found one of {longest:,} ({place});"
            " use another tokenizer"
        )


def _growth(step: Any) -> float:
    """How many characters one character can become: the product over all replacements. Other steps change lengths little."""
    if not isinstance(step, dict):
        return 1.0
    growth = 1.0
    for part in [*(step.get("normalizers") or ()), *(step.get("decoders") or ())]:
        growth = min(growth * _growth(part), 1e300)
    if step.get("type") != "Replace":
        return growth
    pattern, content = step.get("pattern") or {}, len(step.get("content") or "")
    if "String" in pattern:
        found = len(pattern["String"])
        return max(1.0, content / found) if found else 1.0 + content
    return 1.0 + content if _MAY_BE_EMPTY.search(pattern.get("Regex", "")) else max(1.0, content)
