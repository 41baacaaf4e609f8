"""Layer 0: every exception that the package raises on purpose. Each class calls for a different reaction of the caller.

A message says what is wrong, where, and what to do. For a value in a file:
`<thing>: expected <rule>, found <value> (<file>, <place>); <what to do>`.
An invalid argument of a call raises a built-in ValueError or TypeError instead.
"""

from importlib import import_module


class TokenStoreError(Exception):
    """Base class of all exceptions of this package."""


class FormatError(TokenStoreError):
    """The directory is not a token store, is unfinished, or was written by a newer version. Check the path."""


class CorruptionError(TokenStoreError):
    """The store's files are damaged. Run `tokenstore verify`, then copy or build the store again."""


class RemoteError(TokenStoreError):
    """An object store refused a request, or did not answer in time. Check credentials and network, then start again."""


class ConfigError(TokenStoreError, ValueError):
    """A plan or a build is misconfigured. Change the configuration; the message lists all errors at once."""


class StateMismatchError(TokenStoreError):
    """A saved state belongs to a run with a different history. Load the plan that the state was saved with."""


class StoreBusyError(TokenStoreError):
    """Another process is writing this store. Wait for it, or choose another output."""


class BuildError(TokenStoreError):
    """A build cannot continue because an input or the disk failed. Fix the cause and run the same command again."""


class BadRecordsError(BuildError):
    """There were more bad records than `--max-bad` allows. See the rejects file."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun, for messages: `1 file`, `2,000 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def require(library: str, subject: str, extra: str) -> None:
    """Check that a library of an extra is installed, before the import of it.

    Args:
        library: the name of the module.
        subject: what needs it, at the beginning of the message.
        extra: the extra of this package that brings it.

    Raises:
        ConfigError: it is not installed, or cannot be imported.
    """
    try:
        import_module(library)
    except ImportError as error:
        raise ConfigError(
            f"{subject} needs the library {library}, which is not installed ({error}); {how_to_install(extra)}"
        ) from error


def how_to_install(extra: str) -> str:
    """The command that adds an extra to an installed package: pip takes the version that is there, also that of a clone."""
    return f"run: pip install 'tokenstore[{extra}]'"
