"""`tokenstore amend`: writes a plan file with other later steps."""

import warnings
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from tokenstore.commands.remote import loaded_plan
from tokenstore.commands.screen import colour, heading, listed, parse_range, screen, table, write_json
from tokenstore.errors import ConfigError
from tokenstore.paths import is_there
from tokenstore.text import clip, percentage, safe, span

if TYPE_CHECKING:  # this imports numba, half a second that --help need not wait for
    from tokenstore.views.plan_amendment import PlanAmendment

_WORDS = ("first_exhausted", "all_exhausted", "endless")


def amend(
    plan: Path,
    /,
    *,
    from_step: int,
    weight: Annotated[list[str] | None, Parameter(negative=())] = None,
    add: Annotated[list[str] | None, Parameter(negative=())] = None,
    locality: Annotated[list[str] | None, Parameter(negative=())] = None,
    batch_size: int | None = None,
    ramp_steps: int | None = None,
    multiple_of: int | None = None,
    skip: Annotated[list[str] | None, Parameter(negative=())] = None,
    num_steps: str | None = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    allow_links: Path | None = None,
    cache: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Change the later steps of a plan, and prove that the steps before are unchanged.

    The new plan has the same history up to FROM_STEP, so a checkpoint that was saved at or before that step resumes in it. Stages
    after FROM_STEP stay. The mixture, the epochs and the end are shown before and after. Without --output, nothing is written.

    **Examples:**

    ```text
    tokenstore amend plan.yaml --from-step 5000 --weight web=0.6 --weight code=0.4 -o plan2.yaml
    tokenstore amend plan.yaml --from-step 5000 --add books=stores/books --weight web=0.5 --weight books=0.5 -o plan2.yaml
    tokenstore amend plan.yaml --from-step 5000 --add books=s3://bucket/books --locality books=1024,512 --weight books=1 -o plan2.yaml
    tokenstore amend plan.yaml --from-step 5000 --batch-size 1024 --ramp-steps 500 --multiple-of 64 -o plan2.yaml
    tokenstore amend plan.yaml --from-step 5000 --skip 5100:5120 --num-steps 20000 -o plan2.yaml
    ```

    Parameters
    ----------
    plan
        The plan file. It is not changed.
    from_step
        The first step that may change, 1 or more: usually the step of the checkpoint to resume from.
    weight
        NAME=WEIGHT of a source from FROM_STEP on. Repeat it for every source that takes part; the others get no sequences.
    add
        NAME=PATH of a new source, a store. It needs a --weight. May be repeated.
    locality
        NAME=SEQUENCES,LANES of a source that --add adds: read it in blocks of that many sequences, one block per lane at a
        time. `tokenstore plan` advises both numbers. May be repeated.
    batch_size
        Sequences per step over all ranks from FROM_STEP on.
    ramp_steps
        Reach --batch-size gradually, over this many steps.
    multiple_of
        With --ramp-steps: every batch size is a multiple of this number, usually of world size times microbatch size.
    skip
        A:B, steps to skip. May be repeated.
    num_steps
        The new end of the plan: a number of steps, first_exhausted, all_exhausted or endless.
    output
        The new plan file. Default: none, only show what would change.
    overwrite
        Replace the output if it exists.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    cache
        Folder for the index files of stores at URLs. Default: TOKENSTORE_CACHE, otherwise ~/.cache/tokenstore.
    as_json
        Print one JSON object with the amendment and the fields of the new plan.
    """
    if output is not None and not overwrite and is_there(output):
        raise ConfigError(f"amend: {output} exists; choose another --output, or add --overwrite")
    changes = _changes(weight, add, locality, batch_size, ramp_steps, multiple_of, skip, num_steps)
    from tokenstore.planning.plan_file import write_yaml
    from tokenstore.views.plan_amendment import compare_amended

    before, _ = loaded_plan(plan, allow_links, cache, as_json)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after = before.amended(from_step, **changes)
    except ValueError as error:  # the plan has no such step
        raise error if isinstance(error, ConfigError) else ConfigError(f"amend: {error}") from error
    warned = [str(each.message) for each in caught]
    amendment = compare_amended(before, after, from_step)
    if output is not None:
        comment = f"Amended from {plan.name}: the steps before {from_step} are unchanged."
        write_yaml(output, after.config.changed_fields(), comment)
    if as_json:
        written = None if output is None else str(output)
        write_json({"amendment": amendment, "plan": after.config.as_json(), "warnings": warned, "output": written})
    else:
        _show(screen(), amendment, warned, output)
    return 0


def _changes(
    weight: list[str] | None,
    add: list[str] | None,
    locality: list[str] | None,
    batch_size: int | None,
    ramp_steps: int | None,
    multiple_of: int | None,
    skip: list[str] | None,
    num_steps: str | None,
) -> dict[str, Any]:
    """The arguments of `Plan.amended`."""
    changes: dict[str, Any] = {}
    if weight:
        changes["weights"] = {name: _number(name, value) for name, value in _pairs("weight", "WEIGHT", weight)}
    if add or locality:
        changes["sources"] = _new_sources(add or [], locality or [])
    if (ramp_steps is None) != (multiple_of is None) or (ramp_steps is not None and batch_size is None):
        raise ConfigError("amend: a batch ramp needs all of --batch-size, --ramp-steps and --multiple-of")
    if ramp_steps is not None:
        changes["batch_ramp"] = {"to": batch_size, "steps": ramp_steps, "multiple_of": multiple_of}
    elif batch_size is not None:
        changes["global_batch_size"] = batch_size
    if skip:
        ranges = [parse_range(text, "skip") for text in skip]
        changes["skip_steps"] = [(each.start, each.stop) for each in ranges if each is not None]
    if num_steps is not None:
        if num_steps not in _WORDS and not (num_steps.isascii() and num_steps.isdigit()):
            raise ConfigError(
                f"amend: --num-steps: expected a number of steps or one of {', '.join(_WORDS)}, found {num_steps!r}"
            )
        changes["num_steps"] = num_steps if num_steps in _WORDS else int(num_steps[:20])
    return changes


def _new_sources(add: list[str], locality: list[str]) -> dict[str, dict[str, Any]]:
    """The fields of each new source, by its name."""
    sources: dict[str, dict[str, Any]] = {name: {"path": path} for name, path in _pairs("add", "PATH", add)}
    for name, value in _pairs("locality", "SEQUENCES,LANES", locality):
        numbers = value.split(",")
        if len(numbers) != 2 or not all(each.isascii() and each.isdigit() and len(each) <= 20 for each in numbers):
            raise ConfigError(f"amend: --locality: expected {name}=SEQUENCES,LANES, found {value!r}")
        if name not in sources:
            raise ConfigError(
                f"amend: --locality: expected a source that --add adds, found {name!r}; the locality of a source is fixed"
                " for the run"
            )
        sources[name]["locality"] = {"block_sequences": int(numbers[0]), "lanes": int(numbers[1])}
    return sources


def _pairs(option: str, what: str, values: list[str]) -> list[tuple[str, str]]:
    """(name, value) of each NAME=VALUE. A name may contain `=`, a value not."""
    pairs = [value.rpartition("=") if option == "weight" else value.partition("=") for value in values]
    if wrong := [value for value, (name, _, rest) in zip(values, pairs, strict=True) if not name or not rest]:
        raise ConfigError(f"amend: --{option}: expected NAME={what}, found {wrong[0]!r}")
    names = [name for name, _, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"amend: --{option}: {twice[0]} is given twice; give each source once")
    return [(name, rest) for name, _, rest in pairs]


def _number(name: str, value: str) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ConfigError(f"amend: --weight: expected a number for {name}, found {value!r}") from None


def _show(console: Console, amendment: "PlanAmendment", warned: list[str], output: Path | None) -> None:
    step = amendment.from_step
    console.print(f"steps {span(0, step)} are unchanged; their history is {amendment.history[:12]}", soft_wrap=True)
    rows = [("steps", *(_steps(number) for number in amendment.num_steps))]
    rows += [(f"batch at step {step:,}", *(f"{first:,}" for first, _ in amendment.batch_sizes))]
    rows += [("batch at the end", *(f"{last:,}" for _, last in amendment.batch_sizes))]
    rows += [
        ("skipped steps", *(listed([span(*each) for each in ranges], 4) or "none" for ranges in amendment.skip_steps))
    ]
    changed = [(Text(name, "bold"), before, after) for name, before, after in rows if before != after]
    if changed:
        heading(console, "Steps and batches")
        table(console, changed, "", "before", "after", right=(1, 2))
    heading(console, f"The mixture from step {step:,} on")
    cells = (
        (
            Text(clip(row.name, 60), colour(number)),
            _share(row.weight_before),
            _share(row.weight_after),
            f"{row.epochs:,.3f}",
            _epochs(row.end_before),
            _epochs(row.end_after),
        )
        for number, row in enumerate(amendment.sources)
    )
    titles = ("source", "before", "after", f"epochs at {step:,}", "at the end, before", "after")
    table(console, cells, *titles, right=range(1, 6))
    for text in warned:
        console.print(Text.assemble(("warning: ", "bold yellow"), safe(text)), soft_wrap=True)
    end = "nothing was written; add --output FILE" if output is None else f"wrote {safe(str(output))}"
    console.print(f"\n{end}", soft_wrap=True)


def _steps(number: int | None) -> str:
    return "endless" if number is None else f"{number:,}"


def _share(weight: float | None) -> str:
    return "-" if weight is None else percentage(weight)


def _epochs(number: float | None) -> str:
    return "-" if number is None else f"{number:,.3f}"
