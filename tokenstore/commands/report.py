"""`tokenstore report`, in a clone `python -m tools.report`."""

from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Annotated, Any

from cyclopts import Group, Parameter

from tokenstore.commands.remote import loaded_plan, remote_options
from tokenstore.commands.screen import screen, write_json
from tokenstore.errors import BuildError, ConfigError
from tokenstore.paths import is_folder, is_there, mode_of, resolved
from tokenstore.report.page import BEGINS
from tokenstore.store import open_store
from tokenstore.store.remote import Location, is_url
from tokenstore.store.writing import write_atomically
from tokenstore.text import safe, size

PLAN = Group("Plans only", sort_key=1)


def report(
    path: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    samples: int | None = None,
    max_tokens: int | None = None,
    version: int | None = None,
    title: Annotated[str | None, Parameter(group=PLAN)] = None,
    steps: Annotated[int | None, Parameter(group=PLAN)] = None,
    step: Annotated[list[int] | None, Parameter(group=PLAN, negative=())] = None,
    world_size: Annotated[int | None, Parameter(group=PLAN)] = None,
    microbatch_size: Annotated[int | None, Parameter(group=PLAN)] = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    allow_links: Path | None = None,
    cache: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Write a report of a store or a plan as one HTML file: charts, tables, and samples token by token.

    The file needs no network and no other file, so it can be mailed or kept with a run. It contains text of the store.

    **Examples:**

    ```text
    tokenstore report stores/web
    tokenstore report plan.yaml -o run-17.html --title 'Run 17'
    tokenstore report plan.yaml --steps 50000 --step 48123 --step 48124 --samples 8
    ```

    Parameters
    ----------
    path
        A store's directory or URL, or a plan file.
    output
        The HTML file. Default: NAME.report.html in the current directory. An earlier report is replaced.
    samples
        Number of sample documents of a store (default: 6) or sequences per step of a plan (default: 4); 0 for none.
    max_tokens
        Tokens to show from the start of each document (default: 512) or, in a plan, of each piece (default: 64).
    version
        Open this version of a store that documents were appended to. Default: the newest.
    title
        Title of the page. Default: the name of the plan file.
    steps
        Summarize steps [0, STEPS). Default: all; 10,000 for an endless plan.
    step
        Show sequences of this step. May be repeated. Default: the first, the middle and the last step.
    world_size
        Show which of this many data-parallel ranks receives each sequence.
    microbatch_size
        Sequences per microbatch. Default: a rank's whole share of the step.
    overwrite
        Replace the output even if it is another kind of file.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    cache
        Folder for the index files of stores at URLs. Default: TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
    as_json
        Print the content of the report as one JSON object and write no file.
    """
    if min(samples or 0, max_tokens or 0) < 0:
        raise ConfigError("report: --samples and --max-tokens must be 0 or more")
    limits = _given(samples=samples, max_tokens=max_tokens)
    of_plan = _given(
        title=title,
        steps=steps,
        sampled=tuple(step or ()) or None,
        world_size=world_size,
        microbatch_size=microbatch_size,
    )
    of_store = _is_store(path)
    output = output or Path(f"{_name(path, of_store)}.report.html")
    if not as_json:
        _check_output(output, overwrite)
    made = (
        _of_store(path, version, allow_links, cache, limits, of_plan)
        if of_store
        else _of_plan(Path(path), version, allow_links, cache, limits | of_plan)
    )
    shown, page = made
    if as_json:
        write_json(shown)
        return 0
    text = page(shown).encode()
    _write(output, text)
    screen().print(f"{safe(str(output))}: {size(len(text))}", soft_wrap=True)
    return 0


def _name(path: str, of_store: bool) -> str:
    if is_url(path):
        return Location.of(path).name
    return resolved(path).name if of_store else Path(path).stem


def _is_store(path: str) -> bool:
    """Whether `path` is a folder or a URL, so a store and not a plan."""
    try:
        return is_url(path) or is_folder(Path(path))
    except OSError as error:
        raise ConfigError(
            f"report: cannot read {path}: {error.strerror}; give a store's folder or a plan file"
        ) from error


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _of_store(
    path: str,
    version: int | None,
    allow_links: Path | None,
    cache: Path | None,
    limits: dict[str, int],
    of_plan: dict[str, Any],
) -> tuple[Any, Callable[[Any], str]]:
    if of_plan:
        raise ConfigError(
            f"report: {path} is a store; --title, --steps, --step and the sizes are only valid for a plan"
        )
    from tokenstore.report.store_report import store_page, store_report

    with (
        remote_options(cache) as remote,
        open_store(path, version=version, allow_links=allow_links, remote=remote) as store,
    ):
        return store_report(store, **limits), store_page


def _of_plan(
    path: Path, version: int | None, allow_links: Path | None, cache: Path | None, options: dict[str, Any]
) -> tuple[Any, Callable[[Any], str]]:
    if version is not None and is_there(path):
        raise ConfigError(f"report: {path} is a plan; --version is only valid for a store")
    from tokenstore.report.plan_page import plan_page
    from tokenstore.report.plan_report import plan_report

    plan, warned = loaded_plan(path, allow_links, cache)
    return plan_report(plan, warned=warned, file=path.name, **options), plan_page


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse (ConfigError) an output that is no regular file, or a file that is not a report."""
    try:
        mode = mode_of(output)
    except OSError:  # an impossible name; the write reports it
        return
    if not mode:
        return
    if not S_ISREG(mode):
        found = "a folder" if S_ISDIR(mode) else "not a regular file"
        raise ConfigError(f"output: {output} is {found}; choose another output")
    if not (overwrite or _is_report(output)):
        raise ConfigError(f"output: {output} exists and is not a report; use --overwrite or choose another output")


def _is_report(output: Path) -> bool:
    try:
        with open(output, "rb") as file:
            return file.read(len(BEGINS)) == BEGINS.encode()
    except OSError:
        return False


def _write(output: Path, text: bytes) -> None:
    try:
        write_atomically(
            resolved(output.parent) / output.name, text
        )  # links in the path that the user named are followed
    except OSError as error:
        raise BuildError(f"output: cannot write {output}: {error.strerror or error}; choose another output") from error
