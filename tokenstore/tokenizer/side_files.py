"""Files next to a Hugging Face tokenizer.json: the names of its special tokens, its chat template, generation settings."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.outside import ANYWHERE, MAX_SIDE_FILE_BYTES, read_file

_ROLES = ("eos_token", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def read_side_files(
    path: Path, allow_links: Path | None = ANYWHERE, listed: Container[str] | None = None
) -> tuple[dict[str, str], str | None]:
    """(names of special tokens by role, chat template or None) for the tokenizer file at `path`.

    The names come from tokenizer_config.json. The template is chat_template.jinja if it exists, otherwise the one in
    tokenizer_config.json: a string, or the entry "default" of a list. A file that is not JSON or not text is ignored.

    Args:
        path: the tokenizer's file.
        allow_links: as in `load_tokenizer`.
        listed: names of the files that may be read. Default: all.

    Raises:
        ConfigError: a file is a pipe, a device, too large, a link that `allow_links` forbids, or cannot be read.
    """
    # Not inside the try: a ConfigError is a ValueError
    text = _text_beside(path, "tokenizer_config.json", allow_links, listed) or "{}"
    try:
        config: Any = json.loads(text)
    except (ValueError, RecursionError):
        config = {}
    if not isinstance(config, dict):
        config = {}
    names = {}
    for role in _ROLES:
        token = config.get(role)
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            names[role] = name
    template = _text_beside(path, "chat_template.jinja", allow_links, listed)
    return names, _configured(config.get("chat_template")) if template is None else template


def generation_ends(
    path: Path, allow_links: Path | None = ANYWHERE, listed: Container[str] | None = None
) -> tuple[int, ...]:
    """Ids at which generation_config.json next to the tokenizer file makes a model stop; () if it does not say."""
    text = _text_beside(path, "generation_config.json", allow_links, listed) or "{}"
    try:
        config: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    found = config.get("eos_token_id") if isinstance(config, dict) else None
    return tuple(i for i in (found if isinstance(found, list) else [found]) if type(i) is int)


def _text_beside(path: Path, name: str, allow_links: Path | None, listed: Container[str] | None) -> str | None:
    """The text of a file next to `path`; None if it does not exist, is not listed, or is not text."""
    if listed is not None and name not in listed:
        return None
    file = path.with_name(name)
    try:
        return read_file(file, MAX_SIDE_FILE_BYTES, allow_links).decode("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    except OSError as error:
        raise ConfigError(
            f"tokenizer: cannot read {name} next to its file: {error.strerror} ({file}); remove or replace it"
        ) from error


def _configured(template: Any) -> str | None:
    """The chat template in tokenizer_config.json; None if there is none."""
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None
