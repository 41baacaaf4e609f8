"""Data sets and tokenizers by name, from the Hugging Face hub: `hf://datasets/OWNER/NAME` and `hf://OWNER/NAME`.

Files are downloaded by the library huggingface_hub into its cache, which all its users share, and are then inputs like any other.
"""

import glob
import re
from dataclasses import replace
from pathlib import Path

from tokenstore.builder.options import BuildOptions
from tokenstore.builder.reading.inputs import COMPRESSIONS, known_formats
from tokenstore.builder.result import Note
from tokenstore.errors import ConfigError, require
from tokenstore.format.layout import SIDE_NAMES
from tokenstore.paths import is_file

SCHEME = "hf://"
TOKENIZER_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")  # the first that a repository has
_NAME = r"(?P<name>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]*[\w-]))?"
_DATASET = re.compile(rf"hf://datasets/{_NAME}(?:/(?P<path>[^@]+))?", re.ASCII)
_MODEL = re.compile(rf"hf://(?!datasets/){_NAME}/?", re.ASCII)


def with_local_files(options: BuildOptions, note: Note = lambda text: None) -> BuildOptions:
    """`options` with paths in the cache of the hub in place of names; files that are not there are downloaded.

    Raises:
        ConfigError: a name is malformed, or cannot be fetched and is not in the cache.
    """
    inputs = tuple(_dataset(each, options, note) if each.startswith(SCHEME) else each for each in options.inputs)
    return replace(options, inputs=inputs, tokenizer=local_tokenizer(options.tokenizer, note))


def local_tokenizer(spec: str, note: Note = lambda text: None) -> str:
    """The path of the tokenizer that is named by `hf://OWNER/NAME`; any other text as it is. Raises ConfigError."""
    if not str(spec).startswith(SCHEME):  # a path may be given as such
        return spec
    found = _MODEL.fullmatch(spec)
    if found is None:
        raise ConfigError(f"tokenizer: expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION, found {spec!r}")
    folder = _fetch(spec, "model", found["name"], found["revision"], [*TOKENIZER_FILES, *SIDE_NAMES], note)
    for name in TOKENIZER_FILES:
        if is_file(folder / name):
            return str(folder / name)
    raise ConfigError(f"tokenizer: {spec} has none of {', '.join(TOKENIZER_FILES)}; give the path of a tokenizer file")


def _dataset(spec: str, options: BuildOptions, note: Note) -> str:
    """The path or pattern in the cache for `hf://datasets/OWNER/NAME[@REVISION][/PATH]`; PATH may be a glob pattern."""
    found = _DATASET.fullmatch(spec)
    if found is None:
        raise ConfigError(
            f"input: expected hf://datasets/OWNER/NAME, with @REVISION or a /PATH in it if you like, found {spec!r}"
        )
    path = found["path"]
    endings = [each + more for each in known_formats(options.text_endings) for more in ("", *COMPRESSIONS)]
    wanted = [f"*{ending}" for ending in endings] if path is None else [path, f"{path.rstrip('/')}/*"]
    folder = glob.escape(str(_fetch(spec, "dataset", found["name"], found["revision"], wanted, note)))
    return folder if path is None else f"{folder}/{path}"


def _fetch(spec: str, kind: str, name: str, revision: str | None, wanted: list[str], note: Note) -> Path:
    require("huggingface_hub", f"hub: {spec}", "build")
    from huggingface_hub import snapshot_download

    note(f"{spec}: from the cache of the Hugging Face hub, or downloaded to it")
    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=wanted))
    except Exception as error:  # of the library, of its http library, or an OSError: all mean the same here
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        option = " --repo-type dataset" if kind == "dataset" else ""
        raise ConfigError(
            f"hub: {spec} cannot be fetched ({reason}); check the name, the network and your access (`hf auth login`), or run"
            f" `hf download {name}{option} --local-dir FOLDER` elsewhere and give the path"
        ) from error
