"""Calls into the libraries of tokenizers: whatever they raise leaves as one of our errors, which names the tokenizer.

A panic of a Rust library is a BaseException that is no Exception. Interrupts and exits are BaseExceptions too, and pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from tokenstore.errors import BuildError, ConfigError, CorruptionError, TokenStoreError

_Self = TypeVar("_Self", bound=Any)
_Texts = TypeVar("_Texts", bound=str | Sequence[str])
_Made = TypeVar("_Made")

_EXCERPT = 60  # characters of a text in a message


def is_panic(error: BaseException | None) -> bool:
    """Whether a Rust library panicked. Every library has a class of its own for it, which cannot be imported."""
    return type(error).__name__ == "PanicException"


def is_failure(error: BaseException) -> bool:
    """Whether `error` is a library's own failure, and no interrupt, exit, lack of memory or error of ours."""
    return is_panic(error) or (isinstance(error, Exception) and not isinstance(error, (MemoryError, TokenStoreError)))


def reason(error: BaseException) -> str:
    """The first line of what a library says."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


@contextmanager
def loading(file: object) -> Iterator[None]:
    """Around all that makes a tokenizer of the file `file`. Raises: ConfigError."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ConfigError(
            f"tokenizer: expected a file that its library can load, found that it fails: {reason(error)} ({file});"
            " copy it again, or use another"
        ) from error


def encodes(method: Callable[[_Self, _Texts], _Made]) -> Callable[[_Self, _Texts], _Made]:
    """A method that encodes a text or a sequence of texts. Raises: BuildError: the library fails on one of them."""

    @wraps(method)
    def guarded(self: _Self, texts: _Texts) -> _Made:
        try:
            return method(self, texts)
        except BaseException as error:
            if not is_failure(error):
                raise
            text = texts if isinstance(texts, str) else _first_refused(method, self, texts)
            raise BuildError(
                f"tokenizer: expected {self.engine} to encode every text, found that it fails: {reason(error)}, at the"
                f" text {text[:_EXCERPT]!a} ({self.file}); leave that text out, or use another tokenizer"
            ) from error

    return guarded


def _first_refused(method: Callable[[Any, Any], object], tokenizer: object, texts: Sequence[str]) -> str:
    for text in texts:
        try:
            method(tokenizer, [text])
        except BaseException as error:
            if not is_failure(error):
                raise
            return text
    return texts[0]  # it fails on all together only


def decodes(method: Callable[[_Self, np.ndarray], str]) -> Callable[[_Self, np.ndarray], str]:
    """A method that decodes ids. Raises: CorruptionError: the library fails on them."""

    @wraps(method)
    def guarded(self: _Self, ids: np.ndarray) -> str:
        try:
            return method(self, ids)
        except BaseException as error:
            if not is_failure(error):
                raise
            shown = ", ".join(map(str, np.asarray(ids)[:8].tolist()))
            raise CorruptionError(
                f"tokenizer: expected {self.engine} to decode ids of its store, found that it fails: {reason(error)}, at"
                f" the ids {shown} ({self.file or self.kind}); run `tokenstore verify`, or copy the tokenizer's file again"
            ) from error

    return guarded
