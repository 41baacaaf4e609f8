"""What a build is asked for, what it reports on the way and at the end."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tokenstore.errors import ConfigError


@dataclass(frozen=True)
class BuildOptions:
    """A build. Everything but `inputs`, `output`, `workers`, `max_bad` and `overwrite` decides the store's bytes.

    Attributes:
        inputs: files, folders and globs; see `inputs.find_inputs` for the order.
        output: the store's directory, which must not exist yet (or be the store of an earlier, equal build).
        tokenizer: `bytes`, or the path of a Hugging Face tokenizer.json.
        text_endings: endings of files that are read like .txt, such as ".py".
        text_field: the field of a JSON record that holds the text; `a.b` is field b of object a.
        eos: append the end-of-text token to every document.
        eos_token: which token that is, where the tokenizer does not tell.
        document_start: token put before each document: none, the end-of-text or the beginning-of-text token.
        special_text: special-token strings inside a text stay text, become special tokens, or make the record bad.
        keep_empty: keep documents without text (they then hold their special tokens only).
        shard_bytes: target size of a shard file.
        workers: processes that tokenize. The store's bytes do not depend on it.
        max_bad: bad records allowed; one more and there is no store.
        overwrite: replace a store, or an unfinished build, made with other options.
    """

    inputs: tuple[str, ...]
    output: Path
    tokenizer: str
    text_endings: tuple[str, ...] = ()
    text_field: str = "text"
    eos: bool = True
    eos_token: str | None = None
    document_start: Literal["none", "eos", "bos"] = "none"
    special_text: Literal["plain", "special", "error"] = "plain"
    keep_empty: bool = False
    shard_bytes: int = 1 << 30
    workers: int = 1
    max_bad: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        wrong = [
            f"{name}: expected {low} or more, found {value}"
            for name, low, value in (
                ("workers", 1, self.workers),
                ("max_bad", 0, self.max_bad),
                ("shard_bytes", 4, self.shard_bytes),
            )
            if value < low
        ]
        wrong += [
            f"{name}: expected one of {', '.join(allowed)}, found {value!r}"
            for name, allowed, value in (
                ("document_start", ("none", "eos", "bos"), self.document_start),
                ("special_text", ("plain", "special", "error"), self.special_text),
            )
            if value not in allowed
        ]
        if not self.inputs:
            wrong.append("inputs: expected at least one file, folder or glob, found none")
        wrong += [f"text_endings: expected endings like '.py', found {e!r}" for e in self.text_endings if e[:1] != "."]
        if not self.text_field:
            wrong.append("text_field: expected a name, found an empty one")
        if wrong:
            raise ConfigError("; ".join(wrong))

    def recorded(self) -> dict[str, Any]:
        """The options that decide the bytes, for the manifest; the tokenizer's identity is recorded apart."""
        apart = ("inputs", "output", "tokenizer", "workers", "max_bad", "overwrite")
        options = {name: value for name, value in asdict(self).items() if name not in apart}
        return {**options, "text_endings": list(self.text_endings)}


@dataclass(frozen=True)
class BuildProgress:
    """Where a build is: bytes of input files read and in all, documents and tokens so far."""

    num_bytes: int
    total_bytes: int
    num_documents: int
    num_tokens: int


@dataclass(frozen=True)
class BuildResult:
    """A finished build. `was_there` says that an equal store existed and nothing was done."""

    path: Path
    num_documents: int
    num_tokens: int
    dtype: str
    vocab_size: int
    digest: str
    num_shards: int
    counts: dict[str, int]
    rejects: Path | None
    was_there: bool
