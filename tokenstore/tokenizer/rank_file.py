"""tiktoken rank files, with `base64 rank` on each line, tekken.json, and the JSON file in which a store keeps a complete tokenizer.

The JSON file is canonical (sorted keys, no spaces): its hash is the identity of pattern, special tokens and ranks.
"""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.tokenizer.patterns import PATTERNS
from tokenstore.tokenizer.request import MOST_IDS, MOST_SPECIAL, Request
from tokenstore.tokenizer.tekken import looks_like_tekken, parse_tekken

SAVED_START = b'{"kind":"tiktoken",'
_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+=* [0-9]+[ \t]*(\r?\n|$)")


@dataclass(frozen=True)
class RankFile:
    """A complete tiktoken tokenizer: a split regex, ranks of byte strings, ids of special strings."""

    pattern: str
    ranks: Mapping[bytes, int]
    special_tokens: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """The canonical JSON file."""
        value = {
            "kind": "tiktoken",
            "pattern": self.pattern,
            "ranks": {base64.b64encode(token).decode(): rank for token, rank in self.ranks.items()},
            "special_tokens": dict(self.special_tokens),
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def looks_like_ranks(data: bytes) -> bool:
    """Whether the first line is `base64 rank`."""
    return _LINE.match(data[:4096]) is not None


def read_rank_file(path: Path, data: bytes, request: Request) -> RankFile:
    """Read the tokenizer in `data`, a rank file or a saved JSON file.

    Raises:
        ConfigError: the file is damaged; or a rank file without a pattern, or a saved file with a pattern or special tokens.
    """
    saved, tekken = data.startswith(SAVED_START), looks_like_tekken(data)
    if saved or tekken:
        request.refuse("tekken" if tekken else "saved tiktoken", "pattern", "special_tokens")
    elif not request.pattern:
        raise ConfigError(
            f"pattern: expected one of {', '.join(PATTERNS)} or a split regex for a tiktoken rank file, found none"
            f" ({path}); a rank file does not contain it: give the pattern that the model was trained with"
        )
    try:
        found = (
            _parse_saved(data) if saved else RankFile(*parse_tekken(data)) if tekken else _parse_ranks(data, request)
        )
        _check(found)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"tokenizer: expected a tiktoken rank file, found {error} ({path}); copy it again") from error
    return found


def _parse_saved(data: bytes) -> RankFile:
    value: Any = json.loads(data)
    ranks = {base64.b64decode(token, validate=True): rank for token, rank in value["ranks"].items()}
    return RankFile(value["pattern"], ranks, value["special_tokens"])


def _parse_ranks(data: bytes, request: Request) -> RankFile:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(f"{line[:60]!r} in line {number}") from None
    known = PATTERNS.get(request.pattern or "")
    pattern = known.regex if known else str(request.pattern)
    special = known.special_tokens.get(len(ranks), {}) if known else {}
    return RankFile(pattern, ranks, _with_requested(special, ranks, request.special_tokens))


def _with_requested(known: Mapping[str, int], ranks: Mapping[bytes, int], requested: tuple[str, ...]) -> dict[str, int]:
    """The known special tokens and those requested as `name=id` or `name` (the next free id), which take precedence."""
    special = dict(known)
    for text in requested:
        name, equals, number = text.rpartition("=")
        if not (equals and name and number.isascii() and number.isdigit()):
            name, number = text, str(max([-1, *ranks.values(), *special.values()]) + 1)
        special = {other: i for other, i in special.items() if i != int(number)} | {name: int(number)}
    return special


def _check(file: RankFile) -> None:
    """ValueError if tiktoken cannot use the file. tiktoken itself would panic, not raise."""
    ids = [*file.ranks.values(), *file.special_tokens.values()]
    if not isinstance(file.pattern, str) or not all(type(i) is int and 0 <= i < MOST_IDS for i in ids):
        raise ValueError("a rank that is not an id")
    if len(file.special_tokens) > MOST_SPECIAL:
        raise ValueError(f"{len(file.special_tokens)} special tokens; at most {MOST_SPECIAL} are allowed")
    if len(set(ids)) != len(ids):
        twice = min(i for i, number in Counter(ids).items() if number > 1)
        raise ConfigError(f"special tokens: expected every id once, found {twice} twice; choose another id")
    if missing := [byte for byte in range(256) if bytes([byte]) not in file.ranks]:
        raise ValueError(f"no rank for {len(missing)} single bytes, the first {missing[0]:#04x}")
    if b"" in file.ranks or "" in file.special_tokens:
        raise ValueError("an empty token")
