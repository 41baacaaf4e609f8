"""Guards calls into tokenizer libraries: whatever they raise becomes one of our exceptions, which names the tokenizer.

A panic of a Rust library is a BaseException that is not an Exception. Interrupts and exits are BaseExceptions too, and pass.
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
    """Whether a Rust library panicked. Each library has its own exception class for that, which cannot be imported."""
    return type(error).__name__ == "PanicException"


def is_failure(error: BaseException) -> bool:
    """Whether `error` is a library's own failure, not an interrupt, an exit, a MemoryError or an exception of this package."""
    return is_panic(error) or (isinstance(error, Exception) and not isinstance(error, (MemoryError, TokenStoreError)))


def reason(error: BaseException) -> str:
    """The first line of a library's message."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


@contextmanager
def loading(file: object) -> Iterator[None]:
    """Guard for loading a tokenizer from `file`. Raises ConfigError if its library fails."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ConfigError(
            f"tokenizer: its library cannot load {file}: {reason(error)}; copy the file again, or use another"
        ) from error


def encodes(method: Callable[[_Self, _Texts], _Made]) -> Callable[[_Self, _Texts], _Made]:
    """Decorator for methods that encode one text or several: BuildError if the library fails, with the first such text."""

    @wraps(method)
    def guarded(self: _Self, texts: _Texts) -> _Made:
        try:
            return method(self, texts)
        except BaseException as error:
            if not is_failure(error):
                raise
            text = texts if isinstance(texts, str) else _first_refused(method, self, texts)
            raise BuildError(
                f"tokenizer: {self.engine} cannot encode the text {text[:_EXCERPT]!a}: {reason(error)} ({self.file or self.kind});"
                " remove that text, or use another tokenizer"
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
    return texts[0]  # it fails only on all of them together


def decodes(method: Callable[[_Self, np.ndarray], str]) -> Callable[[_Self, np.ndarray], str]:
    """Decorator for methods that decode ids: CorruptionError if the library fails."""

    @wraps(method)
    def guarded(self: _Self, ids: np.ndarray) -> str:
        try:
            return method(self, ids)
        except BaseException as error:
            if not is_failure(error):
                raise
            shown = ", ".join(map(str, np.asarray(ids)[:8].tolist()))
            raise CorruptionError(
                f"tokenizer: {self.engine} cannot decode the ids {shown}: {reason(error)} ({self.file or self.kind});"
                " run `tokenstore verify`, or copy the tokenizer's file again"
            ) from error

    return guarded
