"""Layer 0: every error the package raises on purpose. Each kind is a different thing for the caller to do.

A message says what was expected, what was found, where, and what to do:
`<thing>: expected <rule>, found <value> (<file>, <place>); <what to do>`.
A wrong argument of a call is a built-in ValueError or TypeError instead.
"""


class TokenStoreError(Exception):
    """Base of all errors below. Never raised itself."""


class FormatError(TokenStoreError):
    """The directory is not a token store, is unfinished, or was written by a newer version: look at the path."""


class CorruptionError(TokenStoreError):
    """It is our store, and its bytes are damaged: run `tokenstore verify`, then copy or build it again."""


class ConfigError(TokenStoreError, ValueError):
    """A plan or a build asks for something impossible: change the request. All mistakes are listed at once."""


class StateMismatchError(TokenStoreError):
    """A saved state belongs to a run with another history: load the plan it came from."""


class StoreBusyError(TokenStoreError):
    """Another process is building this store: wait for it or choose another output."""


class BuildError(TokenStoreError):
    """A build cannot go on (an input or the disk failed): mend the cause and run the same command again."""


class BadRecordsError(BuildError):
    """More bad records than `--max-bad` allows: look at the rejects file."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun, for messages: `1 file`, `2,000 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
