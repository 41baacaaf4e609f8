"""The recipe: everything except the inputs that decides a store's bytes. The manifest records it; a repeated build compares it."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
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
from tokenstore.builder.stores import Place
from tokenstore.errors import ConfigError, CorruptionError, require
from tokenstore.format.differences import describe, differences
from tokenstore.format.manifest import TokenizerEntry, canonical_json
from tokenstore.outside import ANYWHERE
from tokenstore.store.files import check_size
from tokenstore.store.reader import Store
from tokenstore.tokenizer import Tokenizer, load_tokenizer

_SHOWN = 200  # characters of a recorded value shown in messages
TEMPLATE_NAME, TOKEN_NAMES_NAME = "chat_template.jinja", "tokenizer_config.json"  # the names next to a tokenizer.json


def open_tokenizer(
    options: BuildOptions, entry: TokenizerEntry | None = None, allow_links: Path | None = None
) -> Tokenizer:
    """Load the tokenizer of a build.

    Args:
        options: of the build.
        entry: the tokenizer recorded in an existing store; its special tokens are used.
        allow_links: folder into which links among the files of a store's tokenizer may lead.

    Raises:
        ConfigError: the tokenizer is missing, invalid or lacks something that the options need.
        CorruptionError: it is not of the kind that `entry` records.
    """
    tokenizer = load_tokenizer(
        options.tokenizer,
        options.eos_token if entry is None else None,
        None if entry is None else entry.eos_id,
        "special" if options.records == "chat" else options.special_text,  # those a chat template writes are special
        pattern=options.pattern,
        special_tokens=options.special_tokens,
        add_special_tokens=options.add_special_tokens,
        engine="reference" if options.records == "tokens" else options.engine,
        spans=options.records == "chat",
        allow_links=ANYWHERE if entry is None else allow_links,
        vocab_size=options.vocab_size,
    )
    if entry is not None:
        if tokenizer.kind != entry.kind:
            raise CorruptionError(
                f"tokenizer: expected kind {entry.kind}, found {tokenizer.kind} ({tokenizer.file});"
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

    Args:
        store: made by a build.
        inputs: as in `BuildOptions`.
        filter: the function that the user of this command names. The manifest's is only compared with it: a store may come
            from a stranger and must not decide which code runs.
        map: likewise.
        workers: as in `BuildOptions`.
        max_bad: as in `BuildOptions`.

    Raises:
        ConfigError: the store was not made by a build, records invalid options, or was built with other functions.
    """
    recorded = store.manifest.options
    if "merged" in recorded:
        raise ConfigError(
            f"store: {store.path} was merged from stores that were built with different options; append to those, and merge again"
        )
    if missing := sorted({"records", "shard_bytes", "eos"} - recorded.keys()):
        raise ConfigError(f"store: {store.path} was not made by a build: it records no options {', '.join(missing)}")
    kinds = {name: kind for name, kind in get_type_hints(BuildOptions).items() if name not in APART}
    same = {name: value for name, value in recorded.items() if name in kinds}
    if wrong := [f"{name} {str(value)[:_SHOWN]!r}" for name, value in same.items() if not _is_of(value, kinds[name])]:
        raise ConfigError(
            f"options: the store records invalid values: {', '.join(wrong)} ({store.path}); build it again"
        )
    _check_functions(store, {"filter": filter, "map": map})
    entry = store.manifest.tokenizer
    return BuildOptions(
        inputs=inputs,
        output=store.path,
        tokenizer=str(store.path / entry.file) if entry.file else entry.kind,
        chat_template=_template_of(store) if recorded["records"] == "chat" else None,
        workers=workers,
        max_bad=max_bad,
        **{**same, **_tuples(same), "filter": filter, "map": map},
    )


def _tuples(options: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(options.get(name, ())) for name in ("text_endings", "keep")}


def _template_of(store: Store) -> str:
    """The path of the store's own chat template, which the manifest must list."""
    if (entry := store.manifest.files.get(TEMPLATE_NAME)) is None:
        raise ConfigError(f"store: its manifest lists no {TEMPLATE_NAME} ({store.path}); build the store again")
    path = store.path / TEMPLATE_NAME
    check_size(path, entry.num_bytes, store.allow_links)
    return str(path)


def _is_of(value: object, kind: Any) -> bool:
    """Whether a JSON value has the type of an option."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_is_of(value, each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return type(value) is kind


def _check_functions(store: Store, named: dict[str, str | None]) -> None:
    """ConfigError unless the functions named are those the store was built with. No function is imported for this."""
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
                f"{option}: the store was built without --{option}, but this command names {name} ({store.path}); omit it"
            )
        hashed = f"{option}_sha256"
        was = {option: old, hashed: recorded.get(hashed)}
        now = {option: name, hashed: hook_sha256(name) if name is not None and name == old else was[hashed]}
        if different := describe(differences(was, now)):
            raise ConfigError(
                f"options: they differ from those of the store ({store.path}): {different};"
                " name the function the store was built with, unchanged"
            )


def check_same_options(store: Store, options: dict[str, Any]) -> None:
    """ConfigError if `options`, as a recipe has them, differ from those of `store`: a function or the template changed."""
    old = {name: value for name, value in store.manifest.options.items() if name != "split_name"}
    if different := describe(differences(old, options)):
        raise ConfigError(
            f"options: they differ from those of the store ({store.path}): {different}; restore what changed"
        )


def with_mask_field(options: BuildOptions, files: Sequence[InputFile]) -> BuildOptions:
    """`options` with the mask field that the first record has, if records are tokens and none was named."""
    if options.records != "tokens" or options.mask_field is not None:
        return options
    everything = replace(reading(options), columns=None)
    slices = (SliceReader(file, Slice(number), everything) for number, file in enumerate(files))
    return replace(options, mask_field=find_mask_field(chain.from_iterable(slices)))


def recipe_of(options: BuildOptions, tokenizer: Tokenizer, files: Sequence[InputFile]) -> dict[str, Any]:
    """The recipe as JSON values: options, tokenizer, library versions. Hashes stand for the user's functions and template."""
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
    versions |= {name: version(name) for name in _libraries(options, files)}
    hashes: dict[str, Any] = {
        f"{name}_sha256": hook_sha256(hook) for name in ("filter", "map") if (hook := getattr(options, name))
    }
    if options.records == "chat":
        hashes["chat_template_sha256"] = hashlib.sha256(chat_template(options, tokenizer).encode()).hexdigest()
        hashes["chat_token_names"] = dict(tokenizer.token_names)
        hashes["chat_marks_of"] = list(renderer_of(options, tokenizer).families)  # of a template without its own
    eos = (
        None if tokenizer.eos_id is None else tokenizer.token_names.get("eos_token")
    )  # also if the user did not name it
    return {
        "options": {**options.recorded(), **hashes, "eos_token": eos},
        "tokenizer": entry,
        "package_versions": versions,
    }


def _libraries(options: BuildOptions, files: Sequence[InputFile]) -> list[str]:
    """Libraries that the inputs and options need, other than the tokenizer's; ConfigError if one is not installed."""
    needed = [("pyarrow", f"input: {file.path}", "build") for file in files if file.format in TABLES][:1]
    if options.keep and not needed:
        needed = [("pyarrow", "keep: metadata", "build")]
    if options.records == "chat":
        needed += [(library, "records: chat", "chat") for library in ("transformers", "jinja2")]
    for library, subject, extra in needed:
        require(library, subject, extra)
    return [library for library, _, _ in needed]


def chat_template(options: BuildOptions, tokenizer: Tokenizer) -> str:
    """The text of the build's chat template, with line ends normalized as when it is read from a file."""
    from tokenstore.builder.documents.templates import find_template

    text = find_template(options.chat_template, tokenizer.chat_template)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def side_files(options: BuildOptions, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Files to keep in the store, by name: the tokenizer's, the chat template and the names of the tokens it may write."""
    files = {} if tokenizer.data is None else {str(tokenizer.file_name): tokenizer.data}
    if options.records == "chat":
        files[TEMPLATE_NAME] = chat_template(options, tokenizer).encode()
        if tokenizer.kind == "huggingface":  # the other kinds contain the names
            files[TOKEN_NAMES_NAME] = canonical_json(dict(tokenizer.token_names)).encode()
    return files


def manifest_fields(
    recipe: dict[str, Any], place: Place | None = None, partitions: Sequence[str] | None = None
) -> dict[str, Any]:
    """The fields that a recipe decides in the manifest of one of its stores; `partitions` are those of the whole build."""
    options = dict(recipe["options"])
    if place is not None and place.split is not None:
        options["split_name"] = place.split
    if place is not None and place.partition is not None:
        options |= {"partition_name": place.partition, "partitions": list(partitions or ())}
    return {
        "ends_with_eos": recipe["options"]["eos"],
        "tokenizer": TokenizerEntry(**recipe["tokenizer"]),
        "options": options,
        "package_versions": recipe["package_versions"],
    }
