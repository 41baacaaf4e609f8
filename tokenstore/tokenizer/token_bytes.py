"""The bytes of each token of a byte-level BPE. With them the tokens alone give the characters that they cover."""

import json
import re
from collections.abc import Callable, Sequence

import numpy as np

from tokenstore.tokenizer import Tokenizer
from tokenstore.tokenizer.request import MOST_IDS
from tokenstore.tokenizer.tiktoken_bpe import TiktokenTokenizer

_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes of all tokens, in a form that is quick to compare with texts."""

    def __init__(self, of_each: Sequence[bytes]):
        """`of_each`: the bytes of every id, b"" for an id without bytes."""
        self._sizes = np.fromiter(map(len, of_each), np.int64, len(of_each))
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._bytes = np.frombuffer(b"".join(of_each), np.uint8)

    def sizes_if_same(self, ids: np.ndarray, data: bytes) -> np.ndarray | None:
        """int64[n], the bytes of each token, if the concatenated tokens have exactly the bytes of `data`; otherwise None."""
        if ids.size and int(ids.max()) >= self._sizes.size:
            return None
        sizes = self._sizes[ids]
        if int(sizes.sum()) != len(data) or not sizes.all():
            return None
        places = np.repeat(self._firsts[ids] - (np.cumsum(sizes) - sizes), sizes)  # int64[len(data)]
        places += np.arange(len(data))
        return sizes if np.array_equal(self._bytes[places], np.frombuffer(data, np.uint8)) else None


def bytes_of_tokens(reference: Tokenizer, tokenizer_json: str | None) -> list[bytes] | None:
    """The bytes of every id, b"" for an id without bytes; None if tokens do not consist of bytes.

    The result is a candidate: for every text it is checked whether its tokens consist of its bytes.

    Args:
        reference: the tokenizer.
        tokenizer_json: what the fast engine is loaded from; None for a rank file.
    """
    ids = reference.bytes_of_ids() if isinstance(reference, TiktokenTokenizer) else _of_json(tokenizer_json or "{}")
    if not ids or max(ids) >= MOST_IDS:
        return None
    return [ids.get(i, b"") for i in range(max(ids) + 1)]


def _of_json(text: str) -> dict[int, bytes]:
    value = json.loads(text)
    pre_tokenizer = value.get("pre_tokenizer") or {}
    steps = [step["type"] for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer]) if step]
    if "ByteLevel" in steps:
        to_byte = _byte_of_character()
        ids = {i: _bytes(token, to_byte) for token, i in value["model"]["vocab"].items()}
        added: Callable[[str], bytes] = str.encode
    elif value.get("model", {}).get("byte_fallback"):
        ids = {i: _piece_bytes(piece) for piece, i in value["model"]["vocab"].items()}
        added = _piece_bytes  # runs of spaces are also listed as added tokens
    else:
        return {}
    return ids | {token["id"]: added(token["content"]) for token in value.get("added_tokens") or []}


def _bytes(token: str, to_byte: dict[str, int]) -> bytes:
    try:
        return bytes([to_byte[character] for character in token])
    except KeyError:  # not a token of a byte-level vocabulary
        return b""


def _piece_bytes(piece: str) -> bytes:
    """The bytes of a sentencepiece piece: U+2581 is a space, <0x41> is a byte."""
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return piece.replace("\u2581", " ").encode()


def _byte_of_character() -> dict[str, int]:
    """The byte of each character of a byte-level vocabulary: printable Latin-1 is unchanged, other bytes begin at 256."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}
