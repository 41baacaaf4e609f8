"""`tokenstore plan`, in a clone `python -m tools.inspect_plan`."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from tokenstore.errors import ConfigError

QUESTION = Group("Other questions", sort_key=1)


def plan(
    plan: Path,
    /,
    *,
    steps: int | None = None,
    world_size: int | None = None,
    microbatch_size: int | None = None,
    epochs: Annotated[Decimal | None, Parameter(group=QUESTION)] = None,
    source: Annotated[str | None, Parameter(group=QUESTION)] = None,
    diff: Annotated[Path | None, Parameter(group=QUESTION)] = None,
    allow_links: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """What a plan gives: per source weights, sequences, tokens, epochs, padding; its stages; likely mistakes.

    Everything is arithmetic: no step is replayed and no token read, at any size.

    **Examples:**

    ```text
    tokenstore plan plan.yaml
    tokenstore plan plan.yaml --steps 10000 --world-size 64 --microbatch-size 8
    tokenstore plan plan.yaml --epochs 4 --source code
    tokenstore plan plan.yaml --diff other.yaml
    ```

    Parameters
    ----------
    plan
        The plan's file.
    steps
        Summarize this many steps, from 0; default: all, or 10,000 of an endless plan.
    world_size
        Print the share of a rank among this many.
    microbatch_size
        Print how many microbatches of this size a rank gets in a step.
    epochs
        Print how many steps this many epochs of --source take (default: of each source).
    source
        The source for --epochs.
    diff
        Print the first step that differs from another plan, and what differs.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    as_json
        Print one JSON object; its keys are the attributes of the dataclasses in tokenstore.views.
    """
    if epochs is not None and diff is not None:
        raise ConfigError("plan: expected --epochs or --diff, found both; ask one after the other")
    if source is not None and epochs is None:
        raise ConfigError("source: expected it with --epochs, found it alone; add --epochs")
    from tokenstore.commands import show_plan  # with it comes numba, half a second that no other command shall wait for

    if diff is not None:
        show_plan.show_difference(plan, diff, as_json, allow_links)
    elif epochs is not None:
        show_plan.show_epoch_steps(plan, epochs, source, as_json, allow_links)
    else:
        show_plan.show_plan(plan, steps, world_size, microbatch_size, as_json, allow_links)
    return 0
