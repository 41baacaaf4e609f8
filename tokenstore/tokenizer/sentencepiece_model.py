"""A sentencepiece model, loaded by the `sentencepiece` library. Normalization and handling of spaces are part of the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tokenstore.errors import ConfigError, require
from tokenstore.tokenizer.byte_spans import SpansTextByText
from tokenstore.tokenizer.guards import decodes, encodes
from tokenstore.tokenizer.request import SPECIAL, Request


class SentencePieceTokenizer(SpansTextByText):
    """A `Tokenizer` for a sentencepiece model."""

    kind = "sentencepiece"
    file_name: str | None = "tokenizer.model"
    engine, engine_note = "sentencepiece", ""
    eos_note = ""
    chat_template: str | None = None

    def __init__(self, path: Path, data: bytes, request: Request):
        require("sentencepiece", f"tokenizer: a {self.kind} tokenizer", "sentencepiece")
        import sentencepiece

        request.refuse(self.kind, "pattern", "special_tokens", "add_special_tokens")
        if request.special_text == SPECIAL:
            raise ConfigError(
                "special text: expected plain or error for a sentencepiece tokenizer, found special;"
                " such a model never encodes the names of control symbols as these symbols"
            )
        self.file: Path | None = path
        self.data: bytes | None = data
        self.engine_version = sentencepiece.__version__
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(data)
        except Exception as error:  # RuntimeError, and other exceptions for some bytes
            raise ConfigError(
                f"tokenizer: expected a sentencepiece model, found {error} ({path}); copy it again"
            ) from error
        self.vocab_size = self._model.vocab_size()
        self._is_control = np.array([self._model.is_control(i) for i in range(self.vocab_size)], bool)
        self._is_byte = np.array([self._model.is_byte(i) for i in range(self.vocab_size)], bool)
        controls = np.flatnonzero(self._is_control).tolist()
        self.special_tokens = tuple(sorted(self._model.id_to_piece(i) for i in controls))
        roles = {"eos": self._model.eos_id(), "bos": self._model.bos_id(), "pad": self._model.pad_id()}
        roles = {role: i for role, i in {**roles, "unk": self._model.unk_id()}.items() if i >= 0}
        self.token_names: Mapping[str, str] = {f"{role}_token": self._model.id_to_piece(i) for role, i in roles.items()}
        eos = self.token_names.get("eos_token")
        self.eos_id = request.find_eos(path, eos, self.special_tokens, self._id_of)
        if self.eos_id is not None and self.eos_id < self.vocab_size:
            self.token_names = {**self.token_names, "eos_token": self._model.id_to_piece(self.eos_id)}
        self.bos_id, self.pad_id = roles.get("bos"), roles.get("pad")

    def _id_of(self, token: str) -> int | None:
        found = self._model.piece_to_id(token)  # the unknown piece, if there is no such piece
        return found if self._model.id_to_piece(found) == token else None

    def pieces_not_text(self) -> list[str]:
        """Pieces that are never produced from text that contains their name: control symbols, bytes, the unknown piece."""
        apart = np.flatnonzero(self._is_control | self._is_byte).tolist()
        return [self._model.id_to_piece(i) for i in [*apart, self._model.unk_id()]]

    def has_unused_pieces(self) -> bool:
        """Whether the model has pieces that are split again after they were found."""
        return any(self._model.is_unused(i) for i in range(self.vocab_size))

    @encodes
    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        parts = self._model.encode(list(texts), return_type="numpy", num_threads=1)
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.concatenate([np.empty(0, np.int32), *parts]).astype(np.uint32), lengths

    @encodes
    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        found = self._model.encode(text, return_type="offset_mapping")
        ids = np.array(found["ids"], np.uint32)
        spans = np.array(found["offsets"], np.int64).reshape(-1, 2)
        # If a character is encoded as several byte pieces, the library gives its span to the last one only.
        for at in np.flatnonzero(self._is_byte[ids])[::-1].tolist():
            if spans[at, 0] == spans[at, 1] and at + 1 < ids.size and self._is_byte[ids[at + 1]]:
                spans[at] = spans[at + 1]
        return ids, spans

    @decodes
    def decode(self, ids: np.ndarray) -> str:
        """See `Tokenizer`."""
        ids = np.asarray(ids).astype(np.int64)
        pieces, start = [], 0
        for at in [*np.flatnonzero(self._is_control[ids]).tolist(), ids.size]:
            pieces.append(self._model.decode(ids[start:at].tolist()))
            if at < ids.size:
                pieces.append(self._model.id_to_piece(int(ids[at])))
            start = at + 1
        return "".join(pieces)
