"""All that decides a store's bytes beside its inputs: recorded in the manifest, and compared when a build is run again."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tokenstore
from tokenstore.builder.documents.convert import find_mask_field, reading, renderer_of
from tokenstore.builder.documents.hooks import hook_sha256
from tokenstore.builder.options import APART, BuildOptions
from tokenstore.builder.reading.inputs import TABLES, InputFile
from tokenstore.builder.reading.records import SliceReader
from tokenstore.builder.reading.units import Slice
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.format.manifest import TokenizerEntry, canonical_json
from tokenstore.outside import ANYWHERE
from tokenstore.store.files import check_size
from tokenstore.store.reader import Store
from tokenstore.tokenizer import Tokenizer, load_tokenizer

_SHOWN = 200  # characters of what a store records
TEMPLATE_NAME, TOKEN_NAMES_NAME = "chat_template.jinja", "tokenizer_config.json"  # as a tokenizer has them beside it


def open_tokenizer(
    options: BuildOptions, entry: TokenizerEntry | None = None, allow_links: Path | None = None
) -> Tokenizer:
    """The tokenizer asked for; where a store has one already, of the kind and with the special ids of its `entry`.

    `allow_links` is where links among the files of a store's own tokenizer may lead.
    """
    tokenizer = load_tokenizer(
        options.tokenizer,
        options.eos_token if entry is None else None,
        None if entry is None else entry.eos_id,
        "special" if options.records == "chat" else options.special_text,  # a template's special tokens are meant
        pattern=options.pattern,
        special_tokens=options.special_tokens,
        add_special_tokens=options.add_special_tokens,
        engine="reference" if options.records == "tokens" else options.engine,
        spans=options.records == "chat",
        allow_links=ANYWHERE if entry is None else allow_links,
    )
    if entry is not None:
        if tokenizer.kind != entry.kind:
            raise CorruptionError(
                f"tokenizer: expected one of the kind {entry.kind}, found one of {tokenizer.kind} ({tokenizer.file});"
                " copy or build the store again"
            )
        tokenizer.bos_id, tokenizer.pad_id = entry.bos_id, entry.pad_id
    return tokenizer


def options_of(
    store: Store,
    inputs: tuple[str, ...],
    *,
    filter: str | None = None,
    map: str | None = None,
    workers: int = 1,
    max_bad: int = 0,
) -> BuildOptions:
    """The options a store was built with, for other inputs.

    `filter` and `map` are the functions that the user of this command names. What the manifest says of functions is only
    compared with that: a store may come from a stranger, and must not say which code runs here.

    Raises: ConfigError: a store that was not made by a build, odd options, or other functions than those named.
    """
    recorded = store.manifest.options
    if missing := sorted({"records", "shard_bytes", "eos"} - recorded.keys()):
        raise ConfigError(f"store: expected one made by a build, found none of its options {missing} ({store.path})")
    kinds = {name: kind for name, kind in get_type_hints(BuildOptions).items() if name not in APART}
    same = {name: value for name, value in recorded.items() if name in kinds}
    if wrong := [f"{name} {str(value)[:_SHOWN]!r}" for name, value in same.items() if not _is_of(value, kinds[name])]:
        raise ConfigError(f"options: expected those of a build, found {', '.join(wrong)} ({store.path})")
    _check_functions(store, {"filter": filter, "map": map})
    entry = store.manifest.tokenizer
    return BuildOptions(
        inputs=inputs,
        output=store.path,
        tokenizer=str(store.path / entry.file) if entry.file else entry.kind,
        chat_template=_template_of(store) if recorded["records"] == "chat" else None,
        workers=workers,
        max_bad=max_bad,
        **{**same, "text_endings": tuple(same.get("text_endings", ())), "filter": filter, "map": map},
    )


def _template_of(store: Store) -> str:
    """Where the store's own chat template is: a file that the manifest lists, and not one that a link leads to."""
    if (entry := store.manifest.files.get(TEMPLATE_NAME)) is None:
        raise ConfigError(f"store: expected its chat template, found no {TEMPLATE_NAME} in the manifest ({store.path})")
    path = store.path / TEMPLATE_NAME
    check_size(path, entry.num_bytes, store.allow_links)
    return str(path)


def _is_of(value: object, kind: Any) -> bool:
    """Whether a JSON value is one of an option's type."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_is_of(value, each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return type(value) is kind


def _check_functions(store: Store, named: dict[str, str | None]) -> None:
    """ConfigError unless the functions named now are those the store was built with; nothing of them is imported."""
    recorded = store.manifest.options
    for option, name in named.items():
        old = recorded.get(option)
        if name is None and old is not None:
            shown = old if len(old) <= _SHOWN else old[:_SHOWN] + "..."
            raise ConfigError(
                f"{option}: the store was built with --{option} {shown}, which this command does not name ({store.path});"
                f" code runs only if you name it: add --{option} {shown} if you trust that function"
            )
        if name is not None and old is None:
            raise ConfigError(
                f"{option}: the store was built without --{option}, this command names {name} ({store.path}); omit it"
            )
        hashed = f"{option}_sha256"
        was = {option: old, hashed: recorded.get(hashed)}
        now = {option: name, hashed: hook_sha256(name) if name is not None and name == old else was[hashed]}
        if different := differences(was, now):
            raise ConfigError(
                f"options: expected those of the store, found others ({store.path}): {different};"
                " name the function the store was built with, unchanged"
            )


def check_same_options(store: Store, options: dict[str, Any]) -> None:
    """ConfigError where the recorded `options` are not those of `store`: the user's functions or the template changed."""
    old = {name: value for name, value in store.manifest.options.items() if name != "split_name"}
    if different := differences(old, options):
        raise ConfigError(
            f"options: expected those of the store, found others ({store.path}): {different}; bring back what was"
        )


def with_mask_field(options: BuildOptions, files: Sequence[InputFile]) -> BuildOptions:
    """`options` with the mask field settled: what the first record has, where none was named."""
    if options.records != "tokens" or options.mask_field is not None:
        return options
    everything = replace(reading(options), columns=None)
    slices = (SliceReader(file, Slice(number), everything) for number, file in enumerate(files))
    return replace(options, mask_field=find_mask_field(chain.from_iterable(slices)))


def recipe_of(options: BuildOptions, tokenizer: Tokenizer, files: Sequence[InputFile]) -> dict[str, Any]:
    """The recipe as JSON values: options, tokenizer, versions."""
    import orjson
    import zstandard

    entry = {
        "kind": tokenizer.kind,
        "file": tokenizer.file_name,
        "sha256": hashlib.sha256(tokenizer.data).hexdigest() if tokenizer.data is not None else None,
        "eos_id": tokenizer.eos_id,
        "bos_id": tokenizer.bos_id,
        "pad_id": tokenizer.pad_id,
        "engine": tokenizer.engine,
        "engine_version": tokenizer.engine_version,
    }
    versions = {"tokenstore": tokenstore.__version__, "orjson": orjson.__version__, "zstandard": zstandard.__version__}
    if any(file.format in TABLES for file in files):
        versions["pyarrow"] = version("pyarrow")
    if options.records == "chat":
        versions |= {"transformers": version("transformers"), "jinja2": version("jinja2")}
    hashes: dict[str, Any] = {
        f"{name}_sha256": hook_sha256(hook) for name in ("filter", "map") if (hook := getattr(options, name))
    }
    if options.records == "chat":
        hashes["chat_template_sha256"] = hashlib.sha256(chat_template(options, tokenizer).encode()).hexdigest()
        hashes["chat_token_names"] = dict(tokenizer.token_names)
        hashes["chat_marks_of"] = list(renderer_of(options, tokenizer).families)  # of a template without its own
    eos = None if tokenizer.eos_id is None else tokenizer.token_names.get("eos_token")  # also where it was not named
    return {
        "options": {**options.recorded(), **hashes, "eos_token": eos},
        "tokenizer": entry,
        "library_versions": versions,
    }


def chat_template(options: BuildOptions, tokenizer: Tokenizer) -> str:
    """The text of the chat template in use, its lines ended as they will be when it is read from a file."""
    from tokenstore.builder.documents.templates import find_template

    text = find_template(options.chat_template, tokenizer.chat_template)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def side_files(options: BuildOptions, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Files kept in the store: the tokenizer's own, and the chat template with the names of tokens it may write."""
    files = {} if tokenizer.data is None else {str(tokenizer.file_name): tokenizer.data}
    if options.records == "chat":
        files[TEMPLATE_NAME] = chat_template(options, tokenizer).encode()
        if tokenizer.kind == "huggingface":  # other kinds know the names by themselves
            files[TOKEN_NAMES_NAME] = canonical_json(dict(tokenizer.token_names)).encode()
    return files


def manifest_fields(recipe: dict[str, Any], split: str | None) -> dict[str, Any]:
    """What a recipe says of the manifest of a store, or of that of a split."""
    options = recipe["options"]
    return {
        "ends_with_eos": options["eos"],
        "tokenizer": TokenizerEntry(**recipe["tokenizer"]),
        "options": {**options, "split_name": split} if split else options,
        "library_versions": recipe["library_versions"],
    }


def differences(old: Any, new: Any, place: str = "") -> str:
    """Where two JSON values differ, field by field; "" if nowhere."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = [
            differences(old.get(key), new.get(key), f"{place}.{key}" if place else key) for key in sorted({*old, *new})
        ]
        return ", ".join(text for text in found if text)
    if old == new:
        return ""
    if isinstance(old, list) and isinstance(new, list):
        at = next(i for i in count() if i >= min(len(old), len(new)) or old[i] != new[i])
        shown = [values[at] if at < len(values) else "nothing" for values in (old, new)]
        return f"{place}[{at}] was {shown[0]}, is {shown[1]}"
    return f"{place} was {old!r}, is {new!r}"
