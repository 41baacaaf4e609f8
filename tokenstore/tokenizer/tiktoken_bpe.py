"""A tiktoken rank file with a split pattern and special tokens, loaded by the `tiktoken` library."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tokenstore.errors import ConfigError, require
from tokenstore.tokenizer import long_texts
from tokenstore.tokenizer.byte_spans import SpansTextByText, spans_of_bytes
from tokenstore.tokenizer.guards import decodes, encodes
from tokenstore.tokenizer.patterns import PATTERNS
from tokenstore.tokenizer.rank_file import RankFile, read_rank_file
from tokenstore.tokenizer.request import PLAIN, Request

_BOS_NAMES = ("<|begin_of_text|>", "<|startoftext|>", "<|bos|>", "<s>")
_PAD_NAMES = ("<|pad|>", "<|padding|>", "<pad>", "<|finetune_right_pad_id|>")


class TiktokenTokenizer(SpansTextByText):
    """A `Tokenizer` for a tiktoken rank file."""

    kind = "tiktoken"
    file_name: str | None = "tiktoken.json"
    engine, engine_note = "tiktoken", ""
    eos_note = ""
    chat_template: str | None = None

    def __init__(self, path: Path, data: bytes, request: Request):
        require("tiktoken", f"tokenizer: a {self.kind} tokenizer", "tiktoken")
        import tiktoken

        request.refuse(self.kind, "add_special_tokens")
        self.rank_file: RankFile = read_rank_file(path, data, request)
        ranks, special = self.rank_file.ranks, self.rank_file.special_tokens
        self.file: Path | None = path
        self.data: bytes | None = self.rank_file.to_bytes()
        self.engine_version = tiktoken.__version__
        try:
            self._encoding = tiktoken.Encoding(
                path.name, pat_str=self.rank_file.pattern, mergeable_ranks=dict(ranks), special_tokens=dict(special)
            )
        except ValueError as error:
            raise ConfigError(f"pattern: not a valid regular expression: {error}; fix it") from error
        self._allowed = set() if request.special_text == PLAIN else set(special)
        self._covers_all = any(known.regex == self.rank_file.pattern for known in PATTERNS.values())
        self._bytes = {rank: token for token, rank in ranks.items()} | {i: s.encode() for s, i in special.items()}
        self.vocab_size = max(self._bytes) + 1
        self._num_bytes = np.zeros(self.vocab_size, np.int64)
        self._num_bytes[list(self._bytes)] = [len(token) for token in self._bytes.values()]
        self.special_tokens = tuple(sorted(special))
        self.eos_id = request.find_eos(path, None, self.special_tokens, special.get)
        self.bos_id = next((special[name] for name in _BOS_NAMES if name in special), None)
        self.pad_id = next((special[name] for name in _PAD_NAMES if name in special), None)
        roles = {"eos_token": self.eos_id, "bos_token": self.bos_id, "pad_token": self.pad_id}
        self.token_names: Mapping[str, str] = {
            role: self._bytes[i].decode("utf-8", "replace") for role, i in roles.items() if i in self._bytes
        }

    @property
    def can_be_cut(self) -> bool:
        """Whether the pieces of a text, as `long_texts` cuts it, have the tokens of the text."""
        return long_texts.is_covering(self.rank_file.pattern) and not long_texts.has_spaces(self._allowed)

    def bytes_of_ids(self) -> dict[int, bytes]:
        """The bytes of every id."""
        return self._bytes

    @encodes
    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        parts = [self._encode(text) for text in texts]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.concatenate([np.empty(0, np.uint32), *parts]), lengths

    def _encode(self, text: str) -> np.ndarray:
        ids = self._encoding.encode_to_numpy(text, allowed_special=self._allowed, disallowed_special=())
        if not self._covers_all and (found := int(self._num_bytes[ids].sum())) != (all := len(text.encode("utf-8"))):
            raise ConfigError(
                f"pattern: it does not match every character: {all - found} bytes of {text[:60]!r} are lost;"
                r" end it with the branch |[\s\S]"
            )
        return ids

    @encodes
    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        ids = self._encode(text)
        return ids, spans_of_bytes(text, self._num_bytes[ids])

    @decodes
    def decode(self, ids: np.ndarray) -> str:
        """See `Tokenizer`."""
        return b"".join(self._bytes.get(i, b"") for i in np.asarray(ids).tolist()).decode("utf-8", "replace")
