"""Options of loaders and datasets: their types, and the check of those that decide what a batch contains."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import TypedDict

import torch

from tokenstore.planning.plan import Plan
from tokenstore.torch_data.formats import FORMATS, MASKS, Format, check_fields
from tokenstore.torch_data.ranks import DataRank

# The types of token ids, and how many ids each can hold
ID_TYPES = {torch.int64: 1 << 63, torch.int32: 1 << 31, torch.uint32: 1 << 32, torch.uint16: 1 << 16}


class ContentOptions(TypedDict, total=False):
    """Arguments of all datasets and loaders that decide what a batch contains."""

    ignore_index: int | None
    dtype: torch.dtype | str


class SharedOptions(ContentOptions, total=False):
    """Arguments of TokenLoader and TokenDataset that do not affect the type of a batch."""

    rank: int | DataRank | None
    world_size: int | None
    nodes: int | None
    microbatch_size: int | None
    step: int
    max_documents: int | None
    inside_step: str
    skip_empty: bool


class LoaderOptions(SharedOptions, total=False):
    """Arguments of TokenLoader that do not affect the type of a batch."""

    pin_memory: bool
    device: torch.device | str | None
    readahead: int
    prefetch: int
    reuse: int
    restart: bool


class AllOptions(LoaderOptions, total=False):
    """All arguments of TokenLoader except `plan`."""

    fields: Sequence[str] | None
    format: str


@dataclass(frozen=True)
class Contents:
    """What the batches of a plan contain.

    Attributes:
        format: the format.
        fields: names of its fields, in the order of the batch.
        dtype: type of the token ids.
        ignored: the target of a token that is not in the loss.
        max_documents: see `formats`. None: no fixed size.
    """

    format: Format
    fields: tuple[str, ...]
    dtype: torch.dtype
    ignored: int
    max_documents: int | None = None


def check_contents(
    plan: Plan,
    format: str,
    fields: Sequence[str] | None,
    *,
    max_documents: int | None = None,
    ignore_index: int | None = None,
    dtype: torch.dtype | str = torch.int64,
    by_row: bool = False,
) -> Contents:
    """The contents that these arguments of a loader or dataset describe.

    Args:
        plan: the plan, whose vocabulary must fit into `dtype`.
        format, fields, max_documents, ignore_index, dtype: as in TokenLoader.
        by_row: accept only formats and fields that can be split into rows.

    Raises:
        ValueError: an argument has an invalid value.
    """
    names = check_fields(fields, format, by_row)
    chosen = FORMATS[format]
    ignored = chosen.ignored if ignore_index is None else _check_ignored(ignore_index, names)
    return Contents(chosen, names, check_dtype(plan, dtype), ignored, max_documents)


def _check_ignored(ignore_index: int, fields: Sequence[str]) -> int:
    """`ignore_index`, if no target can have the same value or a mask says which targets count."""
    try:
        ignored = index(ignore_index)
    except TypeError as error:
        raise ValueError(f"ignore_index: expected an integer, such as -1, found {ignore_index!r}") from error
    if not -(1 << 31) <= ignored < 1 << 31:
        raise ValueError(f"ignore_index: expected a number of 32 bits, found {ignored}; losses use -100, -1 or 0")
    if ignored >= 0 and not MASKS & set(fields):
        raise ValueError(
            f"ignore_index: expected a negative number, which is no token id, found {ignored}; choose -100 or -1, or a format"
            ' with a loss mask, such as "megatron"'
        )
    return ignored


def check_dtype(plan: Plan, dtype: torch.dtype | str) -> torch.dtype:
    """`dtype` as a torch.dtype. Raises: ValueError: it is no type of ids, or cannot hold those of the plan."""
    stored: torch.dtype = getattr(torch, next(iter(plan.stores.values())).dtype.name)
    chosen = {"stored": stored, **{_name(each): each for each in ID_TYPES}}.get(_name(dtype))
    if chosen is None:
        raise ValueError(f'dtype: expected one of {[_name(each) for each in ID_TYPES]} or "stored", found {dtype!r}')
    if (vocab_size := _vocab_size(plan)) > ID_TYPES[chosen]:
        raise ValueError(
            f"dtype: expected a type that holds the ids 0 to {vocab_size - 1}, found {_name(chosen)}; use"
            f" {_name(stored)}, the type in the store's files, or int32"
        )
    return chosen


def _vocab_size(plan: Plan) -> int:
    return max(store.vocab_size for store in plan.stores.values())


def _name(dtype: torch.dtype | str) -> str:
    """The name of a dtype: "int64" for torch.int64 and for "int64"."""
    return str(dtype).removeprefix("torch.")
