"""What stands beside a Hugging Face tokenizer.json: the names of its special tokens and its chat template."""

import json
from pathlib import Path
from typing import Any

_ROLES = ("eos_token", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def read_side_files(path: Path) -> tuple[dict[str, str], str | None]:
    """(names of special tokens by role, chat template or None) of the tokenizer file at `path`.

    Names are from tokenizer_config.json. The template is chat_template.jinja, if it is there, else from
    tokenizer_config.json: a string, or the one called "default" of several.
    """
    try:
        config: Any = json.loads(path.with_name("tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        config = {}
    if not isinstance(config, dict):
        config = {}
    names = {}
    for role in _ROLES:
        token = config.get(role)
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            names[role] = name
    return names, _chat_template(path, config.get("chat_template"))


def _chat_template(path: Path, configured: Any) -> str | None:
    try:
        return path.with_name("chat_template.jinja").read_text("utf-8")
    except (OSError, ValueError):
        pass
    if isinstance(configured, list):
        named = [entry for entry in configured if isinstance(entry, dict) and entry.get("name") == "default"]
        configured = named[0].get("template") if named else None
    return configured if isinstance(configured, str) else None
