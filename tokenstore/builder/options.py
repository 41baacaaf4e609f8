"""The options of a build: their types, defaults and texts, from which the command line is made too."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from tokenstore.builder.documents.fields import Template
from tokenstore.builder.documents.loss_spans import TrainOn
from tokenstore.builder.reading.inputs import format_of, known_formats
from tokenstore.builder.reading.records import MAX_RECORD_BYTES
from tokenstore.builder.split import parse_split, sample_bound
from tokenstore.errors import ConfigError

Records = Literal["text", "tokens", "chat"]
DocumentStart = Literal["none", "eos", "bos"]
SpecialText = Literal["plain", "special", "error"]
Engine = Literal["auto", "reference", "fast"]
Dedup = Literal["none", "exact"]
InputIdentity = Literal["time", "size", "content"]
Executor = Literal["processes", "ray"]
# Options that the manifest's `options` do not hold: they do not decide the bytes, or it records them elsewhere
APART = ("inputs", "output", "tokenizer", "pattern", "special_tokens", "engine", "chat_template", "workers", "max_bad", "overwrite", "input_identity", "break_lock", "executor", "scratch", "stdin_format")  # fmt: skip


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build. `tokenstore build --help` shows these texts and defaults.

    The store's bytes depend on all of them but `output`, `engine`, `workers`, `executor`, `max_bad`,
    `input_identity`, `break_lock`, `scratch` and `overwrite`.

    Attributes:
        inputs: Files, folders and glob patterns, also as URLs (s3://, gs://, az://, http://, https://), in the order in which
            their documents are stored; `-` is standard input, and
            `hf://datasets/OWNER/NAME[@REVISION][/PATH]` a data set on the Hugging Face hub.
        output: Folder of the new store; with a split, of one store per split. Or a URL: s3://, gs:// or az://.
        tokenizer: `bytes` (needs no file), or the path of a Hugging Face tokenizer.json, a tekken.json, a tiktoken rank file or
            a SentencePiece model, or `hf://OWNER/NAME[@REVISION]`, which downloads it. For token ids made elsewhere also `none`,
            with a vocabulary size.
        vocab_size: Only with the tokenizer `none`: size of the vocabulary; every token id is smaller.
        records: What a record holds: a `text`; `tokens`, a list of token ids; or a `chat`, which is messages, ShareGPT
            conversations, instruction and output, prompt and completion, or question and answer.
        text: Template for a text made of several fields, such as `{title}\\n\\n{body}`, instead of one field.
        text_field: Field or column that holds the text. `a.b` is field b inside field a.
        stdin_format: Ending that standard input would have as a file, such as `.txt` or `.jsonl.gz`.
        text_endings: Endings of other files to read like .txt, such as `.py`.
        tokens_field: Field or column that holds the token ids.
        mask_field: Field or column that says which tokens are in the loss: labels (-100 is not) or a mask of 0 and 1.
            Default: `loss_mask` or `labels`, if the first record has one.
        id_field: Field or column that holds the document's own id, a string or integer, which the store then keeps.
        keep: Fields or columns to keep as metadata of the documents, such as `meta.url`. A record that lacks one has no value.
        origins: Keep the record number of every document, 8 bytes each, so that it can be traced to its input.
        chat_template: A Jinja file or a built-in template: chatml, plain, alpaca, qwen2.5, qwen3, qwen3-2507, llama3,
            llama3.1, llama3.2, gemma, gemma3, mistral-v1, mistral-v3, mistral-v3-tekken, mistral-v7-tekken, deepseek-v3,
            deepseek-r1, deepseek-v3.1, phi3, phi3.5, phi4, phi4-mini. Default: the template next to the tokenizer. If it does
            not mark the assistant's turns, they are found with a built-in template that writes the same text.
        chat_date: Date for templates that print today's date (YYYY-MM-DD). Without it they are refused, as the store would
            depend on the day it is built.
        train_on: What is in the loss of a conversation: the turns of the `assistant`, its `last` turn, or `all` text.
        eos: Append the end-of-text token to every document.
        eos_token: The end-of-text token, such as `<|endoftext|>`. Default: the one named in the tokenizer_config.json next to
            the tokenizer, else the only usual one in the vocabulary; the build prints it. The one named for a chat model may
            end a turn, such as `<|im_end|>`: for plain text, give the base model's.
        document_start: Token to put before every document.
        special_text: Special-token strings inside a text: keep them as `plain` text, encode them as `special` tokens, or
            reject the record (`error`).
        add_special_tokens: Let the post-processor in the tokenizer.json add its special tokens to every text.
        engine: `fast` tokenizes with gigatoken and checks samples against the `reference`; `auto` does so where possible. The
            tokens are the same.
        pattern: Split pattern of a tiktoken rank file, which does not contain it: a name (gpt2, cl100k_base, o200k_base,
            llama3, qwen2, ...) or the pattern itself.
        special_tokens: Special tokens of a tiktoken rank file: `name=id`, or a name, which gets the next free id.
        keep_empty: Keep documents without text, which are dropped and counted by default.
        min_tokens: Drop documents with fewer tokens, special tokens added by the build not counted.
        max_tokens: Drop documents with more tokens, counted in the same way.
        filter: Your own function, `module:function`. It gets a record, a dict, and returns whether to keep it.
        map: Your own function, `module:function`. It gets a record, a dict, and returns the record to use, or None to drop it.
        dedup: `exact` keeps only the first of equal documents.
        sample: Keep only a share of the documents, such as `1%`. Their content decides, so equal documents are in or out together.
        max_total_tokens: Stop before the document that would make the stores larger than this many tokens in total.
        shuffle_documents: Seed of a random order of the documents. Default: the order of the inputs.
        partition_by: Field or column by whose value the documents are divided into stores, such as `meta.lang`. Makes a store
            OUTPUT/VALUE per value; at most 100 values, each of letters, digits, `.`, `_` and `-`.
        split: Names and shares, such as `train=0.99,validation=0.01`. Makes one store per split; equal documents go to the same one.
        max_record_bytes: Length in bytes above which a record is bad.
        max_bad: Bad records allowed; one more fails the build. OUTPUT.tokenstore/rejects.jsonl lists them.
        shard_bytes: Target size of a shard file, in bytes.
        group_bytes: Cut the inputs into groups of this many bytes, whose tokens are written once, in their final form, by the process
            that finishes a group. For very large builds; 0 for none. The store's bytes depend on it.
        workers: Processes that tokenize. The store's bytes are the same for any number.
        executor: Where the workers are: `processes` of this machine, or actors on a `ray` cluster (RAY_ADDRESS, or a local one). All
            nodes must share the folder of the output and see the inputs under the same paths.
        input_identity: What shows, besides its name and size, that an input is the same as in an earlier run or in another task:
            its modification `time`; nothing (`size`), for copies with other times; or its `content`, which is read for that.
        break_lock: Take over the lock of a run that has died, on file systems without `flock`. The message that asks for this
            names the run.
        scratch: Folder for the work of a build whose output is a URL, with room for the store and its parts. Default: in
            TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
        overwrite: Replace a store or an unfinished build that was made with other options. Anything other than a store is
            refused.

    Raises:
        ConfigError: options that are out of range or contradict each other, all in one message.
    """

    inputs: tuple[str, ...]
    output: Path | str
    tokenizer: str
    vocab_size: int | None = None
    records: Records = "text"
    text: str | None = None
    text_field: str = "text"
    stdin_format: str = ".jsonl"
    text_endings: tuple[str, ...] = ()
    tokens_field: str = "input_ids"
    mask_field: str | None = None
    id_field: str | None = None
    keep: tuple[str, ...] = ()
    origins: bool = True
    chat_template: str | None = None
    chat_date: str | None = None
    train_on: TrainOn = "assistant"
    eos: bool = True
    eos_token: str | None = None
    document_start: DocumentStart = "none"
    special_text: SpecialText = "plain"
    add_special_tokens: bool = False
    engine: Engine = "auto"
    pattern: str | None = None
    special_tokens: tuple[str, ...] = ()
    keep_empty: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    filter: str | None = None
    map: str | None = None
    dedup: Dedup = "none"
    sample: str | None = None
    max_total_tokens: int | None = None
    shuffle_documents: int | None = None
    partition_by: str | None = None
    split: str | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    max_bad: int = 0
    shard_bytes: int = 1 << 30
    group_bytes: int = 0
    workers: int = 1
    input_identity: InputIdentity = "time"
    break_lock: bool = False
    executor: Executor = "processes"
    scratch: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        wrong = self._wrong_numbers() + self._wrong_choices() + self._wrong_together()
        if not self.inputs:
            wrong.append("inputs: expected at least one file, folder or glob, found none")
        wrong += [f"text_endings: expected endings like '.py', found {e!r}" for e in self.text_endings if e[:1] != "."]
        if format_of(f"stdin{self.stdin_format}", known_formats(self.text_endings)) is None:
            wrong.append(
                f"stdin_format: expected the ending of an input file, such as .jsonl, found {self.stdin_format!r}"
            )
        if not isinstance(self.eos, bool):
            wrong.append(f"eos: expected True or False, found {self.eos!r}; eos_token names the token (--eos)")
        if "" in self.keep or len({*self.keep}) != len(self.keep):
            wrong.append(f"keep: expected names, each once, found {', '.join(map(repr, self.keep))}")
        wrong += [f"{name}: expected a name, found an empty one" for name in _FIELDS if getattr(self, name) == ""]
        try:
            if self.split is not None:
                parse_split(self.split)
            sample_bound(self.sample)
            if self.text is not None:
                Template(self.text)
        except ConfigError as error:
            wrong.append(str(error))
        if self.text is not None and self.text_field != "text":
            wrong.append(f"text: expected no text_field beside it, found {self.text_field!r}; use one of the two")
        if wrong:
            raise ConfigError("; ".join(wrong))

    def _wrong_numbers(self) -> list[str]:
        lows = {
            "workers": 1,
            "max_bad": 0,
            "shard_bytes": 4,
            "group_bytes": 0,
            "min_tokens": 0,
            "max_tokens": 1,
            "max_record_bytes": 1,
            "vocab_size": 1,
            "max_total_tokens": 1,
        }
        values = {name: getattr(self, name) for name in lows}
        wrong = [
            f"{name}: expected {lows[name]} or more{'' if value < lows[name] else f', up to {MOST}'}, found {value}"
            for name, value in values.items()
            if value is not None and not lows[name] <= value <= MOST
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
            "text": ("text", None),
            "chat_template": ("chat", None),
            "chat_date": ("chat", None),
            "train_on": ("chat", "assistant"),
        }
        without = self.tokenizer == "none"
        wrong = (
            []
            if without == (self.vocab_size is not None)
            else [
                "vocab_size: expected with the tokenizer none, and only there;"
                f" found {self.vocab_size} with the tokenizer {self.tokenizer}"
            ]
        )
        if self.group_bytes:
            wrong += [
                f"{name}: not with group_bytes, as each group is written before the next one is known; use one of the two"
                for name in ("shuffle_documents", "partition_by", "max_total_tokens")
                if getattr(self, name) is not None
            ]
        if without and self.records != "tokens":
            wrong.append(f"tokenizer: none is only for records=tokens, found records={self.records}")
        return wrong + [
            f"{name}: only for records={records}, found records={self.records}"
            for name, (records, default) in defaults.items()
            if getattr(self, name) != default and self.records != records
        ]

    def recorded(self) -> dict[str, Any]:
        """The options for the manifest: those that decide the bytes. The manifest records the tokenizer in another place."""
        options = {name: value for name, value in asdict(self).items() if name not in APART}
        return {**options, "text_endings": list(self.text_endings), "keep": list(self.keep)}


def check_names(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """TypeError for an option that `function` does not take, worded as Python words it, with the name that may be meant."""
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f". Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


MOST = 1 << 50  # upper limit of every number, as C libraries do not take all of Python's
_FIELDS = ("text_field", "partition_by", "tokens_field", "mask_field", "id_field", "filter", "map", "chat_template")
_CHOICES: dict[str, Any] = {
    "records": Records,
    "document_start": DocumentStart,
    "special_text": SpecialText,
    "engine": Engine,
    "train_on": TrainOn,
    "dedup": Dedup,
    "input_identity": InputIdentity,
    "executor": Executor,
}
