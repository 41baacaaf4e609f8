"""`tokenstore trace`, in a clone `python -m tools.trace_step`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from tokenstore.commands.screen import span
from tokenstore.errors import ConfigError

STEP = Group("A step", sort_key=1)
DOCUMENT = Group("A document", sort_key=2)
OTHER = Group("Another plan", sort_key=3)


def trace(
    plan: Path,
    /,
    *,
    step: Annotated[int | None, Parameter(group=STEP)] = None,
    rank: Annotated[int | None, Parameter(group=STEP)] = None,
    row: Annotated[int | None, Parameter(group=STEP)] = None,
    max_tokens: Annotated[int, Parameter(group=STEP)] = 48,
    whole: Annotated[bool, Parameter(group=STEP, negative=())] = False,
    tokens: Annotated[bool, Parameter(group=STEP, negative=())] = False,
    document: Annotated[str | None, Parameter(group=DOCUMENT)] = None,
    epoch: Annotated[int | None, Parameter(group=DOCUMENT)] = None,
    steps: Annotated[str | None, Parameter(group=DOCUMENT)] = None,
    limit: Annotated[int, Parameter(group=DOCUMENT)] = 20,
    diff: Annotated[Path | None, Parameter(group=OTHER)] = None,
    world_size: int = 1,
    microbatch_size: int | None = None,
    allow_links: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """What the model sees in a step, and in which steps a document appears: by arithmetic, without replay.

    Pieces have the colour of their source; tokens that are not trained on are dim. Characters that would act on the
    terminal are shown as escapes such as \\x1b.

    **Examples:**

    ```text
    tokenstore trace plan.yaml --step 48123
    tokenstore trace plan.yaml --step 48123 --rank 3 --world-size 64 --microbatch-size 8
    tokenstore trace plan.yaml --step 48123 --row 17 --whole
    tokenstore trace plan.yaml --document web:1234567
    tokenstore trace plan.yaml --document web:https://example.org/a --steps 0:10000
    tokenstore trace plan.yaml --diff other.yaml
    ```

    Parameters
    ----------
    plan
        The plan's file.
    step
        List the sequences of this step.
    rank
        Only those of this rank.
    row
        Only this sequence, by its number in the step.
    max_tokens
        How many tokens of a piece to decode; 0 for none.
    whole
        Decode all of them.
    tokens
        List the tokens with their ids.
    document
        List the steps in which a document appears, as SOURCE:NUMBER or SOURCE:ID; SOURCE:id=17 for an id of digits.
    epoch
        Only in this pass over the source, from 0.
    steps
        Only in steps A:B, which end before step B.
    limit
        List at most this many pieces.
    diff
        Print the first step that differs in another plan, and what differs.
    world_size
        Number of data-parallel ranks.
    microbatch_size
        Sequences per microbatch; default: all that a rank gets in a step.
    allow_links
        A folder that symbolic links inside the stores may lead to. Without it, links must stay inside their store.
    as_json
        Print one JSON object; its keys are the attributes of the dataclasses in tokenstore.views.
    """
    if [step, document, diff].count(None) != 2:
        raise ConfigError("trace: expected one of --step, --document and --diff, found none or several")
    if min(max_tokens, limit) < 0:
        raise ConfigError("numbers: expected 0 or more for --max-tokens and --limit, found less")
    from tokenstore.commands import show_plan, show_trace  # with them comes numba, half a second others need not wait

    split = (world_size, microbatch_size)
    if diff is not None:
        show_plan.show_difference(plan, diff, as_json, allow_links)
    elif step is not None:
        shown = None if whole else max_tokens
        show_trace.show_step(plan, step, rank, split, row, shown, tokens, as_json, allow_links)
    else:
        bounds = (epoch, span(steps, "steps"))
        show_trace.show_appearances(plan, document or "", bounds, limit, split, as_json, allow_links)
    return 0
