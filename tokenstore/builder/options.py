"""What a build is asked for, what it reports on the way and at the end."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tokenstore.builder.documents.loss_spans import TrainOn
from tokenstore.builder.reading.records import MAX_RECORD_BYTES
from tokenstore.builder.split import parse_split
from tokenstore.errors import ConfigError

Records = Literal["text", "tokens", "chat"]
DocumentStart = Literal["none", "eos", "bos"]
SpecialText = Literal["plain", "special", "error"]
Engine = Literal["auto", "reference", "fast"]
Dedup = Literal["none", "exact"]
# Options that a manifest does not record, or records in another place
APART = ("inputs", "output", "tokenizer", "pattern", "special_tokens", "engine", "chat_template", "workers", "max_bad", "overwrite")  # fmt: skip


@dataclass(frozen=True)
class BuildOptions:
    """A build. All but `inputs`, `output`, `workers`, `max_bad`, `engine` and `overwrite` decides the store's bytes.

    Attributes:
        inputs: files, folders and globs; see `inputs.find_inputs` for the order.
        output: the store's directory, which must not exist yet (or be the store of an earlier, equal build). With `split`
            a folder of stores, one a split.
        tokenizer: `bytes`, or the path of a tokenizer.json, a tiktoken rank file or a sentencepiece model.
        pattern: of a tiktoken rank file, the name of its split pattern, or that pattern.
        special_tokens: of a tiktoken rank file, `name=id`, or a name that is given the next free id.
        add_special_tokens: let the tokenizer.json's own post-processing add its special tokens.
        engine: `fast` tokenizes by gigatoken, checked against the `reference`; `auto` if it can. The tokens are the same.
        records: what a record holds: a text, `tokens` made elsewhere, or a conversation.
        text_endings: endings of files that are read like .txt, such as ".py".
        text_field: the field of a record that holds the text; `a.b` is field b of object a.
        tokens_field: the field that holds tokens.
        mask_field: the field that says which tokens are in the loss: `labels` (-100: not) or a mask of 0 and 1.
            None: `loss_mask` or `labels`, if the first record has it.
        id_field: the field that holds the document's own id, a string or integer, to be kept in the store.
        origins: keep the record number of every document, so that it can be traced to its input.
        chat_template: a built-in name or the path of a Jinja template; None: the tokenizer's own.
        chat_date: what a chat template that prints today's date gets to print, as 2025-01-31.
        train_on: what is in the loss of a conversation: what the assistant says, its last turn, or all.
        eos: append the end-of-text token to every document.
        eos_token: which token that is; None: the one the tokenizer's files name.
        document_start: token put before each document: none, the end-of-text or the beginning-of-text token.
        special_text: special-token strings inside a text stay text, become special tokens, or make the record bad.
        keep_empty: keep documents without text (they then hold their special tokens only).
        min_tokens, max_tokens: documents with fewer or more tokens, those put before and after not counted, are left out.
        max_record_bytes: records longer than this are bad.
        filter, map: `module:function` of the user's own code; see `hooks`.
        split: such as `train=0.99,validation=0.01`; documents fall into them by a hash of their content.
        dedup: `exact` keeps the first of equal documents only.
        shard_bytes: target size of a shard file.
        workers: processes that tokenize. The store's bytes do not depend on it.
        max_bad: bad records allowed; one more and there is no store.
        overwrite: replace a store, or an unfinished build, made with other options.
    """

    inputs: tuple[str, ...]
    output: Path
    tokenizer: str
    pattern: str | None = None
    special_tokens: tuple[str, ...] = ()
    add_special_tokens: bool = False
    engine: Engine = "auto"
    records: Records = "text"
    text_endings: tuple[str, ...] = ()
    text_field: str = "text"
    tokens_field: str = "input_ids"
    mask_field: str | None = None
    id_field: str | None = None
    origins: bool = True
    chat_template: str | None = None
    chat_date: str | None = None
    train_on: TrainOn = "assistant"
    eos: bool = True
    eos_token: str | None = None
    document_start: DocumentStart = "none"
    special_text: SpecialText = "plain"
    keep_empty: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    filter: str | None = None
    map: str | None = None
    split: str | None = None
    dedup: Dedup = "none"
    shard_bytes: int = 1 << 30
    workers: int = 1
    max_bad: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        wrong = self._wrong_numbers() + self._wrong_choices() + self._wrong_together()
        if not self.inputs:
            wrong.append("inputs: expected at least one file, folder or glob, found none")
        wrong += [f"text_endings: expected endings like '.py', found {e!r}" for e in self.text_endings if e[:1] != "."]
        wrong += [f"{name}: expected a name, found an empty one" for name in _FIELDS if getattr(self, name) == ""]
        try:
            if self.split is not None:
                parse_split(self.split)
        except ConfigError as error:
            wrong.append(str(error))
        if wrong:
            raise ConfigError("; ".join(wrong))

    def _wrong_numbers(self) -> list[str]:
        lows = {"workers": 1, "max_bad": 0, "shard_bytes": 4, "min_tokens": 0, "max_tokens": 1, "max_record_bytes": 1}
        values = {name: getattr(self, name) for name in lows}
        wrong = [
            f"{name}: expected {lows[name]} or more{'' if value < lows[name] else f', up to {_MOST}'}, found {value}"
            for name, value in values.items()
            if value is not None and not lows[name] <= value <= _MOST
        ]
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            wrong.append(f"min_tokens: expected at most max_tokens, {self.max_tokens}, found {self.min_tokens}")
        return wrong

    def _wrong_choices(self) -> list[str]:
        return [
            f"{name}: expected one of {', '.join(get_args(choices))}, found {getattr(self, name)!r}"
            for name, choices in _CHOICES.items()
            if getattr(self, name) not in get_args(choices)
        ]

    def _wrong_together(self) -> list[str]:
        defaults = {
            "mask_field": ("tokens", None),
            "chat_template": ("chat", None),
            "chat_date": ("chat", None),
            "train_on": ("chat", "assistant"),
        }
        return [
            f"{name}: expected it only where records are {records}, found {self.records}"
            for name, (records, default) in defaults.items()
            if getattr(self, name) != default and self.records != records
        ]

    def recorded(self) -> dict[str, Any]:
        """The options that decide the bytes, for the manifest; the tokenizer's identity is recorded apart."""
        options = {name: value for name, value in asdict(self).items() if name not in APART}
        return {**options, "text_endings": list(self.text_endings)}


_MOST = 1 << 50  # of any number; C libraries cannot take all that Python can
_FIELDS = ("text_field", "tokens_field", "mask_field", "id_field", "filter", "map", "chat_template")
_CHOICES: dict[str, Any] = {
    "records": Records,
    "document_start": DocumentStart,
    "special_text": SpecialText,
    "engine": Engine,
    "train_on": TrainOn,
    "dedup": Dedup,
}
