"""`tokenstore report`, in a clone `python -m tools.report`."""

from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Annotated, Any

from cyclopts import Group, Parameter

from tokenstore.commands.screen import screen, write_json
from tokenstore.errors import BuildError, ConfigError
from tokenstore.paths import is_folder, is_there, mode_of
from tokenstore.report.page import BEGINS
from tokenstore.store import open_store
from tokenstore.store.writing import write_atomically
from tokenstore.views.numbers import size
from tokenstore.views.text import safe

PLAN = Group("Of a plan", sort_key=1)


def report(
    path: Path,
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
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """A store or a plan as one HTML file that needs nothing else: charts, tables, samples token by token.

    It can be mailed, kept beside a run, and read on a phone, in the dark, or by keyboard. It holds text of the store.

    **Examples:**

    ```text
    tokenstore report stores/web
    tokenstore report plan.yaml -o run-17.html --title 'Run 17'
    tokenstore report plan.yaml --steps 50000 --step 48123 --step 48124 --samples 8
    ```

    Parameters
    ----------
    path
        The store's directory, or the plan's file.
    output
        The page; default: NAME.report.html in the current folder. A page of this command is replaced.
    samples
        How many documents to show (6), or of a plan, how many sequences of a step (4); 0 for no text at all.
    max_tokens
        How many first tokens of a document to show (512), or of a piece of one (64).
    version
        This version of a store that has grown, instead of the newest.
    title
        Title of the page; default: the name of the plan's file.
    steps
        Summarize this many steps, from 0; default: all, or 10,000 of an endless plan.
    step
        Show sequences of this step; may be repeated; default: the first, the middle and the last step.
    world_size
        Print which of this many ranks gets which sequence.
    microbatch_size
        Sequences per microbatch; default: all that a rank gets in a step.
    overwrite
        Replace an output that is no page of this command.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    as_json
        Print what the page would show as one JSON object, and write no page.
    """
    if min(samples or 0, max_tokens or 0) < 0:
        raise ConfigError("numbers: expected 0 or more for --samples and --max-tokens, found less")
    limits = _given(samples=samples, max_tokens=max_tokens)
    of_plan = _given(
        title=title,
        steps=steps,
        sampled=tuple(step or ()) or None,
        world_size=world_size,
        microbatch_size=microbatch_size,
    )
    of_store = _is_store(path)
    output = output or Path(f"{path.resolve().name if of_store else path.stem}.report.html")
    if not as_json:
        _check_output(output, overwrite)
    made = (
        _of_store(path, version, allow_links, limits, of_plan)
        if of_store
        else _of_plan(path, version, allow_links, limits | of_plan)
    )
    shown, page = made
    if as_json:
        write_json(shown)
        return 0
    text = page(shown).encode()
    _write(output, text)
    screen().print(f"{safe(str(output))}: {size(len(text))}", soft_wrap=True)
    return 0


def _is_store(path: Path) -> bool:
    """Whether `path` is that of a store and not of a plan."""
    try:
        return is_folder(path)
    except OSError as error:
        raise ConfigError(
            f"report: expected a store's folder or a plan's file, found {error.strerror} ({path}); check the path and its permissions"
        ) from error


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _of_store(
    path: Path, version: int | None, allow_links: Path | None, limits: dict[str, int], of_plan: dict[str, Any]
) -> tuple[Any, Callable[[Any], str]]:
    if of_plan:
        raise ConfigError(f"report: expected a plan's file for --steps, --step and the like, found a folder ({path})")
    from tokenstore.report.store_report import store_page, store_report

    with open_store(path, version=version, allow_links=allow_links) as store:
        return store_report(store, **limits), store_page


def _of_plan(
    path: Path, version: int | None, allow_links: Path | None, options: dict[str, Any]
) -> tuple[Any, Callable[[Any], str]]:
    if version is not None and is_there(path):
        raise ConfigError(f"report: expected a store's folder for --version, found a file ({path})")
    from tokenstore.report.plan_page import plan_page
    from tokenstore.report.plan_report import plan_report
    from tokenstore.views.plan_summary import load_plan

    plan, warned = load_plan(path, allow_links)
    return plan_report(plan, warned=warned, file=path.name, **options), plan_page


def _check_output(output: Path, overwrite: bool) -> None:
    """ConfigError for what is no file, and for a file that is no page of ours."""
    try:
        mode = mode_of(output)
    except OSError:  # a name that cannot be; writing will say why
        return
    if not mode:
        return
    if not S_ISREG(mode):
        found = "a folder" if S_ISDIR(mode) else "something else"
        raise ConfigError(f"output: expected a file, found {found} ({output}); name another output")
    if not (overwrite or _begins_as_ours(output)):
        raise ConfigError(
            f"output: expected a page of this command, found another file ({output}); use --overwrite or another output"
        )


def _begins_as_ours(output: Path) -> bool:
    try:
        with open(output, "rb") as file:
            return file.read(len(BEGINS)) == BEGINS.encode()
    except OSError:
        return False


def _write(output: Path, text: bytes) -> None:
    try:
        write_atomically(output.parent.resolve() / output.name, text)  # its folder may be a link: the user named it
    except OSError as error:
        raise BuildError(
            f"output: expected to write it, found {error.strerror or error} ({output}); name another output"
        ) from error
