"""Documents -> tokens: encodes them, adds special tokens, computes loss masks, drops documents by length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenstore.builder.documents.convert import Document
from tokenstore.builder.options import BuildOptions
from tokenstore.errors import BuildError, ConfigError
from tokenstore.format.layout import token_dtype
from tokenstore.tokenizer import Tokenizer

_WithEnd = Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray] | None]
REASONS = ("empty", "short", "long")
KEPT = len(REASONS)  # a value of `Encoded.why`: an index into REASONS, or KEPT


@dataclass(frozen=True)
class Encoded:
    """Some documents as tokens.

    Attributes:
        tokens: uint16 or uint32[sum of lengths], in the store's dtype.
        lengths: int64[k], each at least 1.
        mask: bool[sum of lengths], which tokens are in the loss; None in a store without masks.
        kept: int64[k], indices of the encoded documents among the n given.
        why: int8[n], for each document given: an index into `REASONS` if it was dropped, else `KEPT`.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    mask: np.ndarray | None
    kept: np.ndarray
    why: np.ndarray


def encode_documents(documents: Sequence[Document], tokenizer: Tokenizer, options: BuildOptions) -> Encoded:
    """Encode some documents.

    Raises:
        BuildError: a token is outside the vocabulary, as the tokenizer's engine and vocabulary disagree.
        ConfigError: the tokenizer lacks a special token that `options` ask for.
    """
    special = special_ids(tokenizer, options)
    ids, lengths, mask, has_end = _raw(documents, tokenizer, options, special[1])
    if ids.size and int(ids.max()) >= tokenizer.vocab_size:
        raise BuildError(
            f"token id: expected token ids below {tokenizer.vocab_size}, found {ids.max()}; the tokenizer's vocabulary and engine disagree"
        )
    why = _too_short_or_long(lengths - has_end, options)
    kept = why == KEPT
    if not kept.all():
        tokens_kept = np.repeat(kept, lengths)
        ids, lengths = ids[tokens_kept], lengths[kept]
        mask = None if mask is None else mask[tokens_kept]
    if has_end:
        special = special[0], None
    if options.records == "chat" and special[1] is not None:
        ids, lengths, mask = _without_blanks_after(special[1], ids, lengths, mask, tokenizer)
    may_be_there = options.records != "text" or options.add_special_tokens  # the special tokens, in the documents
    ids, lengths, mask = _with_special(ids, lengths, mask, special, may_be_there)
    some = lengths > 0  # with --keep-empty and no special token to add, a document may still have no token
    why[np.flatnonzero(kept)[~some]] = REASONS.index("empty")
    tokens = ids.astype(token_dtype(tokenizer.vocab_size), copy=False)
    return Encoded(tokens, lengths[some], mask, np.flatnonzero(why == KEPT), why)


def _too_short_or_long(lengths: np.ndarray, options: BuildOptions) -> np.ndarray:
    """int8[n]: for each document an index into REASONS, or KEPT."""
    why = np.full(lengths.size, KEPT, np.int8)
    if options.max_tokens is not None:
        why[lengths > options.max_tokens] = REASONS.index("long")
    why[lengths < options.min_tokens] = REASONS.index("short")
    if not options.keep_empty:  # a tokenizer may find no token in a text
        why[lengths == 0] = REASONS.index("empty")
    return why


def _raw(
    documents: Sequence[Document], tokenizer: Tokenizer, options: BuildOptions, end: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, bool]:
    """(token ids, lengths int64[n], mask, whether each ends with `end`) of all documents, without other special tokens."""
    if options.records == "text":
        texts = [document.text for document in documents]
        with_end: _WithEnd | None = getattr(tokenizer, "encode_batch_with_end", None)  # of the fast engine
        if with_end and end is not None and (found := with_end(texts, end)) is not None:
            return *found, None, True
        return *tokenizer.encode_batch(texts), None, False
    if options.records == "chat":
        return *_of_conversations(documents, tokenizer), False
    lengths = np.fromiter((len(document.token_ids) for document in documents), np.int64, len(documents))
    ids = np.concatenate([np.zeros(0, np.int64), *(document.token_ids for document in documents)])
    masks = [document.mask for document in documents if document.mask is not None]
    return ids.astype(np.uint32), lengths, np.concatenate(masks) if masks else None, False


def _of_conversations(documents: Sequence[Document], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from tokenstore.builder.documents.loss_spans import in_loss

    ids, lengths, spans = tokenizer.encode_batch_with_spans([document.text for document in documents])
    first, parts = 0, []
    for (
        document
    ) in documents:  # shift its spans to character positions in the concatenation of all texts, as `spans` are
        parts += [(first + start, first + stop) for start, stop in document.in_loss]
        first += len(document.text)
    return ids, lengths, in_loss(spans, parts)


def has_masks(options: BuildOptions) -> bool:
    """Whether the store will have loss masks."""
    return options.records == "chat" or (options.records == "tokens" and options.mask_field is not None)


_MOST_BLANKS = 4  # tokens of white space that a chat template may write after the end of the last turn


def _without_blanks_after(
    end: int, ids: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Drop the white space after `end` at the end of documents, so that `end` is not added a second time."""
    if not ids.size:
        return ids, lengths, mask
    stops = np.cumsum(lengths)
    blanks = np.zeros(lengths.size, np.int64)  # tokens to drop from each document
    only_blanks = lengths > 0  # whether all tokens seen so far, from the end of the document, are white space
    for back in range(1, _MOST_BLANKS + 2):
        only_blanks &= lengths >= back
        token = ids[np.maximum(stops - back, 0)]
        blanks[only_blanks & (token == end)] = back - 1
        only_blanks &= token != end
        for one in np.unique(token[only_blanks]):
            only_blanks[token == one] &= tokenizer.decode(np.array([one])).isspace()
    if not blanks.any():
        return ids, lengths, mask
    places = np.arange(ids.size) - np.repeat(stops - blanks, lengths)
    kept = places < 0
    return ids[kept], lengths - blanks, None if mask is None else mask[kept]


def _with_special(
    ids: np.ndarray,
    lengths: np.ndarray,
    mask: np.ndarray | None,
    special: tuple[int | None, int | None],
    may_be_there: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Add the tokens of `special` before and after every document.

    With `may_be_there`, documents that begin or end with that token do not get it again. The token added at the end is in the
    loss if the token before it is; the one at the start never is.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    order, places, values, flags = [], [], [], []
    total = lengths.copy()
    for after, (value, at) in enumerate(zip(special, (starts, ends), strict=True)):
        if value is None:
            continue
        missing = np.arange(lengths.size)
        if may_be_there and ids.size:
            edge = ids[np.clip(at - after, 0, ids.size - 1)]
            missing = np.flatnonzero((edge != value) | (lengths == 0))
        total[missing] += 1
        places.append(at[missing])
        order.append(2 * missing + after)  # at equal positions, the end of a document precedes the start of the next
        values.append(np.full(missing.size, value, ids.dtype))
        if mask is not None:
            in_loss = mask[np.maximum(at[missing] - 1, 0)] if mask.size else np.zeros(missing.size, np.bool_)
            flags.append(in_loss & (lengths[missing] > 0) if after else np.zeros(missing.size, np.bool_))
    if places:
        by_document = np.argsort(np.concatenate(order))
        where = np.concatenate(places)[by_document]
        ids = np.insert(ids, where, np.concatenate(values)[by_document])
        mask = None if mask is None else np.insert(mask, where, np.concatenate(flags)[by_document])
    return ids, total, mask


def special_ids(tokenizer: Tokenizer, options: BuildOptions) -> tuple[int | None, int | None]:
    """The tokens added before and after every document, None for none.

    Raises:
        ConfigError: the tokenizer lacks a token that the options ask for.
    """
    start = {"none": None, "eos": tokenizer.eos_id, "bos": tokenizer.bos_id}[options.document_start]
    end = tokenizer.eos_id if options.eos else None
    if options.eos and end is None:
        listed = ", ".join(map(repr, tokenizer.special_tokens[:20])) or "none"
        raise ConfigError(
            f"eos: the tokenizer does not name its end-of-text token; name it with --eos (special tokens: {listed})"
            " or use --no-eos; in Python, eos_token= or eos=False"
        )
    if options.document_start != "none" and start is None:
        raise ConfigError(
            f"document start: the tokenizer has no {options.document_start} token; use --document-start none"
        )
    return start, end
