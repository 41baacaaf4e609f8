"""Mistral's tekken.json: a tiktoken vocabulary with its pattern, whose special tokens come first.

    {"config": {"pattern": ..., "default_vocab_size": 131072, "default_num_special_tokens": 1000, ...},
     "vocab": [{"rank": 0, "token_bytes": "AA==", ...}, ...], "special_tokens": [{"rank": 0, "token_str": "<unk>", ...}, ...]}

Ranks begin with 0 and ids after the special tokens. Special ids without a name are `<SPECIAL_n>`. The vocabulary is cut to its
default size. Files of the first versions do not list their special tokens, which are then those below.
"""

import base64
import json
from typing import Any

from tokenstore.tokenizer.request import MOST_IDS, MOST_SPECIAL

_FIRST_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


def looks_like_tekken(data: bytes) -> bool:
    """Whether the file may be a tekken.json. A Hugging Face tokenizer.json has a model instead of a config."""
    return data.lstrip()[:1] == b"{" and b'"token_bytes"' in data and b'"default_num_special_tokens"' in data


def parse_tekken(data: bytes) -> tuple[str, dict[bytes, int], dict[str, int]]:
    """(pattern, ids of byte strings, ids of special tokens) of a tekken.json.

    Raises:
        ValueError, TypeError, KeyError, RecursionError, AttributeError: the file is damaged.
    """
    value: Any = json.loads(data)
    config = value["config"]
    first, size = config["default_num_special_tokens"], config["default_vocab_size"]
    if type(first) is not int or type(size) is not int or not 0 <= first < size <= MOST_IDS or first > MOST_SPECIAL:
        raise ValueError(f"{size} ids, {first} of them special; at most {MOST_SPECIAL} special ones are allowed")
    vocab = value["vocab"]
    if not isinstance(vocab, list) or len(vocab) < size - first:
        raise ValueError(f"fewer than {size - first} tokens")
    ranks: dict[bytes, int] = {}
    for number, token in enumerate(vocab[: size - first]):
        if token["rank"] != number:
            raise ValueError(f"rank {token['rank']!r} at place {number}")
        ranks[base64.b64decode(token["token_bytes"], validate=True)] = first + number
    if len(ranks) != size - first:
        raise ValueError("a token twice")
    return config["pattern"], ranks, _special(value.get("special_tokens"), first)


def _special(listed: Any, count: int) -> dict[str, int]:
    if listed is None:
        names = dict(enumerate(_FIRST_SPECIAL))
    else:
        names = {token["rank"]: token["token_str"] for token in listed}
        if len(names) != len(listed) or not all(type(i) is int and isinstance(name, str) for i, name in names.items()):
            raise ValueError("special tokens that are not named once each")
    if names and not 0 <= min(names) <= max(names) < count:
        raise ValueError(f"a special token outside of the first {count} ids")
    found = {names.get(i, f"<SPECIAL_{i}>"): i for i in range(count)}
    if len(found) != count:
        raise ValueError("a name of a special token twice")
    return found
