"""`tokenstore verify`, in a clone `python -m tools.verify_store`."""

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tokenstore.builder import retokenize as tokenize_again
from tokenstore.commands.exit_codes import DAMAGE
from tokenstore.commands.progress_bar import meter
from tokenstore.commands.remote import remote_options
from tokenstore.errors import ConfigError, CorruptionError, TokenStoreError, counted
from tokenstore.foreign import verify_adopted
from tokenstore.store import open_store
from tokenstore.store import verify as verify_store
from tokenstore.store.remote import is_url
from tokenstore.store.verify import unlisted_files
from tokenstore.text import safe


def verify(
    store: str,
    /,
    *,
    version: int | None = None,
    retokenize: str | None = None,
    inputs: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = [],  # noqa: B006  # cyclopts copies
    filter: str | None = None,
    map: str | None = None,
    allow_links: Path | None = None,
    cache: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check a store completely: file sizes, checksums, index, ids, document ends, loss masks. Exit code 4 if it is damaged.

    A store that was adopted from files of another tool is also compared with that tool's index, and with the times at which
    linked files were last written to.

    With --retokenize, a sample of the documents is also tokenized again from the original inputs and compared.

    **Examples:**

    ```text
    tokenstore verify stores/web
    tokenstore verify stores/web --version 1
    tokenstore verify s3://bucket/web
    tokenstore verify stores/web --retokenize 1% --inputs data/
    tokenstore verify stores/clean --retokenize 1% --inputs data/ --filter mine:keep
    ```

    Parameters
    ----------
    store
        The store's directory or URL. A store at a URL is downloaded completely; tokens are not kept.
    version
        Check this version of a store that documents were appended to. Default: the newest.
    retokenize
        Share of the documents to tokenize again with the reference tokenizer, as 1% or 0.01. The store must have origins.
    inputs
        Files, folders and globs that the store was built from, at their present paths. Required with --retokenize.
    filter
        With --retokenize, the --filter that the store was built with. Only code that you name here is run; the name in the
        store is never used.
    map
        With --retokenize, the --map that the store was built with. The same rule applies.
    allow_links
        A folder that symbolic links inside the store may lead to. Without it, links must stay inside the store.
    cache
        Folder for the index files of stores at URLs. Default: TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
    as_json
        Print one JSON object: path, findings, unlisted.
    """
    share = _share(retokenize, inputs)
    if share is None and (filter, map) != (None, None):
        raise ConfigError("verify: --filter and --map are only valid with --retokenize; add it, or omit them")
    with remote_options(cache, as_json) as remote:
        done = total = 0
        with contextlib.suppress(CorruptionError):  # damage becomes a finding below; other errors end the command
            total = open_store(store, "lazy", version, allow_links, remote).manifest.num_bytes
        with meter("verifying", quiet=as_json) as shown:

            def progress(num_bytes: int) -> None:
                nonlocal done
                done += num_bytes
                shown.show(done, total, (done, "B"))

            findings = verify_store(store, progress, version, allow_links, remote)
            if not findings and not is_url(store):  # a damaged store cannot be compared; links are a matter of one disk
                findings = verify_adopted(store, version, allow_links)
        if share is not None and not findings:  # a damaged store cannot be compared
            with meter("tokenizing again", quiet=as_json) as shown:
                read = 0

                def count(num_bytes: int, num_total: int) -> None:
                    nonlocal read
                    read += num_bytes
                    shown.show(read, num_total, (read, "B of input"))

                findings = tokenize_again(store, inputs, share, version, count, filter, map, allow_links, remote)
        unlisted: list[str] = []
        with contextlib.suppress(TokenStoreError, OSError):  # the damage is already reported
            unlisted = unlisted_files(store, allow_links, remote)
    if as_json:
        found = {"findings": [asdict(finding) for finding in findings], "unlisted": unlisted}
        sys.stdout.write(json.dumps({"path": str(store), **found}) + "\n")
    else:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        for finding in findings:
            console.print(safe(str(finding)))
        for name in unlisted:
            console.print(f"note: {safe(name)} is not part of the store; it may be left from an interrupted append")
        again = "" if share is None else f", {100 * share:g} % of the documents tokenized again"
        console.print(
            f"{safe(str(store))}: "
            + (counted(len(findings), "finding") if findings else f"no damage found, {total:,} bytes checked{again}")
        )
    return DAMAGE if findings else 0


def _share(text: str | None, inputs: list[str]) -> float | None:
    """`1%` or `0.01` as a share; None for None."""
    if (text is None) != (not inputs):
        raise ConfigError(
            "verify: --retokenize needs the original files, and --inputs needs --retokenize; use both or neither"
        )
    if text is None:
        return None
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise ConfigError(f"retokenize: expected a share such as 1%, found {text!r}") from error
