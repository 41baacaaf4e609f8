"""Record -> document: applies the user's functions, then reads the record as a text, as tokens or as a conversation."""

import dataclasses
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenstore.builder.documents.fields import Template, checked_text, encoded_metadata, field, kind_of, optional_field
from tokenstore.builder.documents.hooks import Hook, load_hook
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.reading.records import Bad, Reading, Row
from tokenstore.builder.split import content_hash, is_partition_name, sample_bound
from tokenstore.errors import BuildError
from tokenstore.format.layout import MAX_ID_BYTES
from tokenstore.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenstore.builder.documents.loss_spans import Renderer

_SHOWN = 200
_IGNORED_LABEL = -100
FILTERED, NOT_SAMPLED = "filtered", "not sampled"  # why the options drop a record
_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Document:
    """A document before encoding: a text, or token ids.

    Attributes:
        text: the text; "" for token ids.
        in_loss: of a conversation, the half-open spans of characters of `text` that are in the loss.
        token_ids: int64[n], each below the vocabulary's size; empty for a text.
        mask: bool[n], which of `token_ids` are in the loss; None for all.
        name: the record's own id; "" if it has none.
        content: hash of the content, two uint64 words; zeros if no option needs it.
        metadata: the JSON list of the fields to keep; b"" if there are none.
        partition: the value that says which store it belongs to; "" if there is only one.
    """

    text: str = ""
    in_loss: tuple[tuple[int, int], ...] = ()
    token_ids: np.ndarray = dataclasses.field(default_factory=lambda: _NO_IDS)
    mask: np.ndarray | None = None
    name: str = ""
    content: tuple[int, int] = (0, 0)
    metadata: bytes = b""
    partition: str = ""

    @property
    def size(self) -> int:
        """Number of characters, or of token ids."""
        return len(self.text) + len(self.token_ids)


class DocumentReader:
    """Makes documents of rows, as the build's options say. Made once per process.

    Args:
        options: of the build.
        tokenizer: for its vocabulary, special tokens and chat template.

    Raises:
        ConfigError: a function or the chat template cannot be loaded.
    """

    def __init__(self, options: BuildOptions, tokenizer: Tokenizer):
        self.options = options
        self.vocab_size = tokenizer.vocab_size
        self.special_tokens = tokenizer.special_tokens
        self.refused = tokenizer.special_tokens if options.special_text == "error" else ()
        self.keep = load_hook(options.filter) if options.filter else None
        self.change = load_hook(options.map) if options.map else None
        self.hashed = options.split is not None or options.dedup != "none" or options.sample is not None
        self._sample = sample_bound(options.sample)
        self.template = Template(options.text) if options.text is not None else None
        if options.records == "chat":
            self.renderer = renderer_of(options, tokenizer)

    def document(self, row: Row, of_table: bool = False) -> Document | Bad | str:
        """The document of a row, Bad if the row is wrong, or the reason why the options drop it: FILTERED or NOT_SAMPLED.

        With `of_table`, fields that are None count as missing, as every row of a table has every field.

        Raises:
            BuildError: a function of the user tried to end the process.
        """
        try:
            if self.keep is not None and not _called(self.keep, row, f"--filter {self.options.filter}"):
                return FILTERED
            if self.change is not None:
                row = _called(self.change, row, f"--map {self.options.map}")
                if row is None:
                    return FILTERED
                if not isinstance(row, dict):
                    return Bad(f"map: expected a dict or None, found {type(row).__name__}", "")
        except BuildError:
            raise
        except Exception as error:  # the user's code may raise anything; interrupts are not caught
            text = f"{type(error).__name__} in the filter or map: {error}"[:_SHOWN]
            return Bad(text.encode("utf-8", "replace").decode(), _start(row))  # a lone surrogate cannot be printed
        try:
            found = self._content(row, self._name(row), of_table)
            return self._kept(row, found) if found.content[1] < self._sample else NOT_SAMPLED
        except ValueError as error:
            return Bad(str(error), _start(row))

    def _content(self, row: Row, name: str, of_table: bool) -> Document:
        if self.options.records == "chat":
            return self._chat(row, name, of_table)
        return self._text(row, name) if self.options.records == "text" else self._tokens(row, name)

    def _kept(self, row: Row, document: Document) -> Document:
        """The document with the fields to keep, null where the record lacks one, and the value of its partition."""
        options = self.options
        if options.keep:
            document = replace(
                document, metadata=encoded_metadata([optional_field(row, name) for name in options.keep])
            )
        if options.partition_by is None:
            return document
        value = field(row, options.partition_by)
        name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(name, str) or not is_partition_name(name):
            rule = "1 to 100 letters, digits, '.', '_' or '-'"
            raise ValueError(f"field {options.partition_by!r}: expected a name of {rule}, found {str(value)[:40]!r}")
        return replace(document, partition=name)

    def _name(self, row: Row) -> str:
        if self.options.id_field is None:
            return ""
        value = field(row, self.options.id_field)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        text = checked_text(value, self.options.id_field)
        if len(text.encode()) > MAX_ID_BYTES:
            raise ValueError(f"field {self.options.id_field!r}: expected at most {MAX_ID_BYTES} bytes, found more")
        return text

    def _text(self, row: Row, name: str) -> Document:
        if self.template is not None:
            text = self.template.render(row)
        else:
            text = checked_text(field(row, self.options.text_field), self.options.text_field)
        if len(text) > self.options.max_record_bytes:  # of a table: other readers reject long records themselves
            raise ValueError(f"longer than {self.options.max_record_bytes} bytes; --max-record-size allows more")
        for token in self.refused:
            if token in text:
                raise ValueError(f"special token {token!r} in the text")
        return Document(text=text, name=name, content=content_hash(text.encode()) if self.hashed else (0, 0))

    def _tokens(self, row: Row, name: str) -> Document:
        ids = _numbers(field(row, self.options.tokens_field), self.options.tokens_field)
        if ids.size and not (ids.min() >= 0 and ids.max() < self.vocab_size):
            found = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(
                f"field {self.options.tokens_field!r}: expected token ids below {self.vocab_size}, found {found}"
            )
        ids = ids.astype(np.int64)
        mask = None
        if self.options.mask_field:
            mask = _mask(row, self.options.mask_field, ids)
        content = ids.tobytes() + (b"" if mask is None else mask.tobytes())
        return Document(token_ids=ids, mask=mask, name=name, content=content_hash(content) if self.hashed else (0, 0))

    def _chat(self, row: Row, name: str, of_table: bool) -> Document:
        from tokenstore.builder.documents.chat import read_conversation, special_in_content

        conversation = read_conversation(row, of_table)
        if self.options.special_text != "special" and (reason := special_in_content(conversation, self.special_tokens)):
            raise ValueError(reason)
        text, spans = self.renderer.render(conversation)
        content = content_hash(text.encode()) if self.hashed else (0, 0)
        return Document(text=text, in_loss=tuple(spans), name=name, content=content)


def renderer_of(options: BuildOptions, tokenizer: Tokenizer) -> "Renderer":
    """The renderer that writes the conversations of a build as text.

    Raises:
        ConfigError: there is no chat template, or it cannot be used.
    """
    from tokenstore.builder.documents.loss_spans import Renderer
    from tokenstore.builder.documents.templates import find_template

    template = find_template(options.chat_template, tokenizer.chat_template)
    return Renderer(template, tokenizer.token_names, options.train_on, options.chat_date, tokenizer.special_tokens)


def _called(function: Hook, row: Row, name: str) -> Any:
    """Call the user's function. BuildError if it tries to end the process, for example by `sys.exit`."""
    try:
        return function(row)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # exit code 0 of a worker or of the command would look like success
        raise BuildError(
            f"{name}: the function raised {error!r}, which ends the program, at the record {_start(row)};"
            " let it return, or raise an Exception to make the record bad"
        ) from error


def reading(options: BuildOptions) -> Reading:
    """What to read of each record: the columns that the options name; all for conversations and the user's functions."""
    columns: tuple[str, ...] | None = None
    if options.records != "chat" and options.filter is None and options.map is None:
        wanted: list[str | None] = [options.tokens_field, options.mask_field]
        if options.records == "text":
            wanted = [options.text_field] if options.text is None else [*Template(options.text).fields]
        wanted += [options.id_field, options.partition_by, *options.keep]
        columns = tuple(dict.fromkeys(name for name in wanted if name))
    return Reading(columns, options.text_field, options.text_endings, options.max_record_bytes)


def find_mask_field(rows: Iterable[tuple[int, Row | Bad]]) -> str | None:
    """`loss_mask` or `labels`, if the first good row has that field."""
    row = next((row for _, row in rows if not isinstance(row, Bad)), {})
    return next((name for name in ("loss_mask", "labels") if row.get(name) is not None), None)


def _numbers(value: Any, name: str) -> np.ndarray:
    """A list of integers as int64[n] or, with some above its range, uint64[n]."""
    found = _listed(value, name, "a list of integers")
    is_list = isinstance(value, list)  # an array of integers holds no booleans
    if found.size and (found.dtype.kind not in "iu" or (is_list and not {bool, np.bool_}.isdisjoint(map(type, value)))):
        raise ValueError(f"field {name!r}: expected a list of integers, found {_first_other(value, int, np.integer)}")
    return found if found.size else found.astype(np.int64)


def _listed(value: Any, name: str, rule: str) -> np.ndarray:
    """A list as an array[n]."""
    if not isinstance(value, (list, np.ndarray)):
        raise ValueError(f"field {name!r}: expected {rule}, found {kind_of(value)}")
    try:
        found = np.asarray(value)
    except ValueError as error:  # it holds lists of different lengths
        raise ValueError(f"field {name!r}: expected {rule}, found lists inside") from error
    if found.ndim != 1:
        raise ValueError(f"field {name!r}: expected {rule}, found {'lists inside' if found.ndim else 'a number'}")
    return found


def _mask(row: Row, name: str, ids: np.ndarray) -> np.ndarray:
    """bool[n] from `labels`, each -100 or the token itself, or from a mask of zeros and ones."""
    value = field(row, name)
    rule = f"a list of {ids.size} numbers, as many as tokens"
    found = _listed(value, name, rule)
    if found.size != ids.size:
        raise ValueError(f"field {name!r}: expected {rule}, found {found.size}")
    if found.size and found.dtype.kind not in "biuf":
        raise ValueError(f"field {name!r}: expected {rule}, found {_first_other(value, int, float, np.number)}")
    if name.split(".")[-1] == "labels":
        mask: np.ndarray = found != _IGNORED_LABEL
        wrong = np.flatnonzero(mask & (found != ids))
        rule = "-100 or the token itself (unshifted)"
    else:
        mask = found == 1
        wrong = np.flatnonzero(~mask & (found != 0))
        rule = "0 or 1"
    if wrong.size:
        raise ValueError(f"field {name!r}: expected {rule}, found {value[wrong[0]]!r} at token {wrong[0]}")
    if mask.size and not mask.any():
        raise ValueError(f"field {name!r}: expected a token in the loss, found none")
    return mask


def _first_other(value: Any, *kinds: type) -> str:
    """The type of the first element that is no number of `kinds`."""
    others = (kind_of(x) for x in value if not isinstance(x, kinds) or isinstance(x, bool))
    return next(others, "numbers too large")


def _start(row: Any) -> str:
    """The beginning of a record, for messages."""
    import orjson

    try:
        return orjson.dumps(row, default=lambda value: repr(value)[:_SHOWN], option=orjson.OPT_NON_STR_KEYS)[
            :_SHOWN
        ].decode("utf-8", "ignore")
    except Exception:  # nested too deeply, or an object of the user's code
        return reprlib.repr(row)[:_SHOWN]
