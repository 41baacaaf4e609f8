"""The options of `tokenstore adopt` and `tokenstore export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tokenstore.errors import ConfigError
from tokenstore.store.remote.location import refuse_url

From = Literal["auto", "megatron", "datatrove", "dolma", "nanogpt", "llmc"]
CutName = Literal["index", "eos", "both", "file"]
Place = Literal["end", "start", "none"]
DtypeName = Literal["uint8", "uint16", "int32", "uint32", "int64", "uint64"]


@dataclass(frozen=True)
class AdoptOptions:
    """What to adopt, and what the token files do not say about themselves.

    Attributes:
        inputs: Token files, their prefixes, folders and glob patterns, in the order in which their documents are stored.
        output: Folder of the new store.
        format: The tool that wrote the files; `auto` looks at the files.
        tokenizer: The tokenizer that made the tokens: `bytes`, or the path of its file. Without it, tokens cannot be decoded.
        pattern: For a tiktoken rank file only: its split pattern, or the name of one, as in `tokenstore build`.
        vocab_size: Size of the vocabulary; every token id is smaller. Needed without a tokenizer.
        eos_id: The end-of-text token. Default: that of the tokenizer.
        eos_at: Where the end-of-text token is in a document: at its `end`, at its `start`, or `none`. Default: what the tool does,
            or, for a format with an index, what most documents show.
        cut: What divides the tokens into documents: the `index` of the format; the end-of-text token (`eos`); `both`, for datatrove
            files that were shuffled in chunks; or nothing (`file`), so that a file is one document. Default: the index, if there is
            one, else the end-of-text token.
        dtype: Type of the tokens in files that do not say it. Default: uint16.
        copy: Copy the token files instead of linking to them.
        join: Join a document that continues in the next file, by copying. Default: it is cut at the end of the file.
        overwrite: Replace a store at `output`.
    """

    inputs: tuple[str, ...]
    output: Path | str
    format: From = "auto"
    tokenizer: str | None = None
    pattern: str | None = None
    vocab_size: int | None = None
    eos_id: int | None = None
    eos_at: Place | None = None
    cut: CutName | None = None
    dtype: DtypeName | None = None
    copy: bool = False
    join: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        for path in (self.output, *self.inputs):
            refuse_url(path, "adopt")
        object.__setattr__(self, "output", Path(self.output))
        object.__setattr__(self, "inputs", tuple(map(str, self.inputs)))
        wrong = _wrong_choices(self, {"cut": CutName, "eos_at": Place, "dtype": DtypeName})
        wrong += [
            f"{name}: expected an integer, found {value!r}"
            for name, value in (("vocab_size", self.vocab_size), ("eos_id", self.eos_id))
            if value is not None and type(value) is not int
        ]
        if wrong:
            raise ConfigError("; ".join(wrong))
        if self.tokenizer in (None, "none") and self.vocab_size is None:
            wrong.append(
                "tokenizer: the files do not name it; give --tokenizer FILE, or --vocab-size N if it is not known"
            )
        if self.vocab_size is not None and not 1 <= self.vocab_size <= 1 << 32:
            wrong.append(f"vocab_size: expected 1..{1 << 32}, found {self.vocab_size}")
        if self.eos_id is not None and self.eos_id < 0:
            wrong.append(f"eos_id: expected 0 or more, found {self.eos_id}")
        if self.eos_at == "none" and self.cut in ("eos", "both"):
            wrong.append("eos_at: none and a cut at the end-of-text token contradict each other; omit one")
        if self.cut == "both" and self.eos_at == "start":
            wrong.append("eos_at: a cut by index and end-of-text token needs the token at the end; omit --eos-at")
        if wrong:
            raise ConfigError("; ".join(wrong))


def _wrong_choices(options: object, choices: dict[str, Any]) -> list[str]:
    """What to say about optional fields that have a value other than their choices."""
    return [
        f"{name}: expected one of {', '.join(get_args(allowed))}, found {value!r}"
        for name, allowed in choices.items()
        if (value := getattr(options, name)) is not None and value not in get_args(allowed)
    ]


To = Literal["megatron", "datatrove", "dolma", "nanogpt", "llmc"]


@dataclass(frozen=True)
class ExportOptions:
    """What to export.

    Attributes:
        store: Folder of the store.
        to: Format of the files.
        output: Folder of the files; it must not exist, or be empty.
        name: Name of the files. Default: that of the store's folder.
        version: Version of a store that has grown. Default: the newest.
        one_file: Write all tokens to one file. Default: a file per shard, as a link if possible.
        drop_masks: Export a store with loss masks to a format that has none.
        copy: Copy the tokens instead of linking to the shards.
        allow_links: A folder that symbolic links inside the store may lead to.
    """

    store: Path | str
    to: To
    output: Path | str
    name: str | None = None
    version: int | None = None
    one_file: bool = False
    drop_masks: bool = False
    copy: bool = False
    allow_links: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.output, self.store):
            refuse_url(path, "export")
        object.__setattr__(self, "store", Path(self.store))
        object.__setattr__(self, "output", Path(self.output))
