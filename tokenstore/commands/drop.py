"""`tokenstore drop`, in a clone `python -m tools.drop_documents`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tokenstore.builder.drop import drop as drop_documents
from tokenstore.builder.drop import read_ids, sentence
from tokenstore.commands.plans_affected import PlanUse, uses_of
from tokenstore.commands.screen import write_json
from tokenstore.errors import counted
from tokenstore.text import clip, safe

_FLAG = Parameter(negative=(), show_default=False)
_MOST_SHOWN = 5


def drop(
    store: Path,
    /,
    *,
    ids: Path,
    plans: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = (),
    purge: Annotated[bool, _FLAG] = False,
    as_json: Annotated[bool, _FLAG, Parameter(name="--json")] = False,
) -> int:
    """Remove documents from a store, such as takedowns or test data, as its next version.

    The new version has all other documents, in the same order. Only the shards that held removed documents are written again. The
    store must have ids (--id-field). Older versions stay and still hold the documents: plans that name such a version still read
    them. --purge removes the older versions and their files.

    A saved run whose plan names no version cannot continue on the new one, because its history has changed: start it again, or
    give the plan the old version.

    A drop may be killed at any time. The store then has the old version or the new one, and the same command finishes the work.

    **Examples:**

    ```text
    tokenstore drop stores/web --ids takedowns.txt
    tokenstore drop stores/web --ids takedowns.txt --plans plans/*.yaml
    tokenstore drop stores/web --ids takedowns.txt --purge
    ```

    Parameters
    ----------
    store
        Folder of the store, or the folder of stores that a build with --split or --partition-by made.
    ids
        File with the ids of the documents to remove, one per line.
    plans
        Plan files. Those that use the store are listed, with the version that they read.
    purge
        Remove all older versions, so that the tokens are gone from the disk. Runs that use an older version fail.
    as_json
        Print the result as one JSON object.
    """
    before = uses_of(plans, store)
    results, unknown = drop_documents(store, read_ids(ids), purge)
    if as_json:
        write_json(
            {
                "stores": [asdict(each) for each in results],
                "unknown_ids": unknown,
                "plans": [asdict(each) for each in before],
            }
        )
        return 0
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for each in results:
        what = f"{counted(each.dropped_documents, 'document')} of {counted(each.dropped_tokens, 'token')} removed"
        left = (
            f"version {each.version} has {counted(each.num_documents, 'document')}, {counted(each.num_tokens, 'token')}"
        )
        console.print(safe(f"{each.path}: {what if each.dropped_documents else 'nothing to remove'}; {left}"))
    if unknown:
        shown = ", ".join(clip(each, 80) for each in unknown[:_MOST_SHOWN]) + (
            ", ..." if len(unknown) > _MOST_SHOWN else ""
        )
        console.print(safe(f"{counted(len(unknown), 'id')} not found: {shown}"))
    if purge:
        console.print("older versions: removed, with their files")
    if text := sentence(results):
        console.print(safe(text))
    for use in before:
        console.print(safe(_of_plan(use, purge)))
    return 0


def _of_plan(use: PlanUse, purge: bool) -> str:
    head = f"plan {use.plan}, source {use.source}: "
    if use.version is None:
        return head + "reads the newest version from its next start; a saved run cannot continue on it"
    end = "which is gone: remove `version:`, or name the new one" if purge else "which still holds the documents"
    return head + f"reads version {use.version}, {end}"
