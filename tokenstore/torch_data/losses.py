"""Sums of losses and targets over microbatches and ranks, per source.

Sums are divided once, at the end: microbatches and ranks have unequal numbers of targets, so a mean of their means would
weigh tokens unequally. A microbatch without targets, whose mean is NaN, adds nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import Any, Literal

import torch
import torch.distributed as dist

from tokenstore.batches import block as words
from tokenstore.errors import ConfigError
from tokenstore.torch_data.formats import MASKS, Written
from tokenstore.torch_data.options import Contents

Reduction = Literal["none", "mean", "sum"]


@dataclass(frozen=True)
class SourceLoss:
    """What the evaluation of a source found.

    Attributes:
        loss: the mean over its targets; NaN without targets.
        targets: number of its targets.
        sequences: number of its sequences.
    """

    loss: float
    targets: int
    sequences: int

    @property
    def perplexity(self) -> float:
        """exp(loss); inf if it is too large for a float."""
        return exp(self.loss) if self.loss < 700 else self.loss if self.loss != self.loss else inf


@dataclass(frozen=True)
class EvaluationResult(SourceLoss):
    """What an evaluation found, over all ranks.

    Attributes:
        loss: the mean over all targets; NaN without targets.
        targets: number of targets.
        sequences: number of sequences.
        sources: the same for each source of the plan, by name.
    """

    sources: Mapping[str, SourceLoss] = field(default_factory=dict)


def in_loss_of(contents: Contents) -> Callable[[Any], torch.Tensor]:
    """A function that returns which positions of a batch are in the loss: bool, in the shape of its targets.

    For unshifted labels, a position is in the loss if the label after it is.

    Raises:
        ValueError: the contents have no field that says so.
    """
    fields = contents.format.fields
    found = {each.word: name for name in contents.fields if isinstance(each := fields[name], Written)}
    if masks := MASKS & set(contents.fields):
        (mask,) = masks
        return lambda batch: _part(batch, mask) != 0
    if words.TARGETS in found and contents.ignored < 0:
        targets = found[words.TARGETS]
        return lambda batch: _part(batch, targets) != contents.ignored
    if words.LABELS in found:
        labels = found[words.LABELS]
        return lambda batch: torch.nn.functional.pad(_part(batch, labels)[..., 1:] != contents.ignored, (0, 1))
    needed = [name for name, each in fields.items() if isinstance(each, Written) and each.word in _DECIDE]
    raise ValueError(
        f"fields: expected one that says which tokens are in the loss ({', '.join(needed)}), found"
        f" {list(contents.fields)}; without it, losses cannot be divided by the number of targets"
    )


_DECIDE = {words.TARGETS, words.LABELS, words.LOSS_MASK, words.LABEL_MASK}


def _part(batch: Any, name: str) -> torch.Tensor:
    """A field of a batch. A tuple has its labels as the second item."""
    part: torch.Tensor = batch[1] if isinstance(batch, tuple | list) else batch[name]
    return part


class LossSums:
    """Sums over the microbatches of an evaluation. Adding does not wait for the device.

    Attributes:
        sums: float64[sources, 3], the sum of the losses, the targets and the sequences of each source on this rank.
    """

    def __init__(self, names: Sequence[str], in_loss: Callable[[Any], torch.Tensor]):
        """Sum for the sources with these names. in_loss: from `in_loss_of`."""
        self._names, self._in_loss = tuple(names), in_loss
        self.sums = torch.zeros(len(self._names), 3, dtype=torch.float64)

    def add(self, source: int, sequences: int, batch: Any, losses: torch.Tensor, reduction: Reduction) -> None:
        """Add a microbatch of one source.

        Args:
            source: number of the source.
            sequences: number of its sequences in the microbatch, which may also have rows of padding.
            batch: the microbatch.
            losses: a loss for each position, or one number; see `reduction`.
            reduction: what one number is, "mean" or "sum" over the targets; or "none" for a loss for each position.

        Raises:
            ValueError: `losses` has another size.
        """
        losses = losses.detach()
        if self.sums.device != losses.device and losses.device.type != "mps":  # which has no float64
            self.sums = self.sums.to(losses.device)
        losses = losses.to(self.sums.device, torch.float64).reshape(-1)
        in_loss = self._in_loss(batch).to(self.sums.device).reshape(-1)
        targets = in_loss.sum()
        if (size := 1 if reduction in ("mean", "sum") else in_loss.numel()) != losses.numel():
            raise ValueError(
                f"losses: expected {size} for reduction={reduction!r}, found {losses.numel()}; return a loss for each"
                ' position (reduction="none" of cross_entropy), or pass reduction="mean" or "sum" for one number'
            )
        if reduction == "none":
            loss = losses.where(in_loss, 0.0).sum()
        else:
            loss = (losses[0] * targets if reduction == "mean" else losses[0]).where(targets > 0, 0.0)
        self.sums[source] += torch.stack([loss, targets, torch.full_like(loss, sequences)])

    def result(self, sums: torch.Tensor) -> EvaluationResult:
        """The result of `sums`, those of one rank or added over ranks."""
        rows = sums.tolist()
        by_name = {name: _mean(*row) for name, row in zip(self._names, rows, strict=True)}
        total = _mean(*map(sum, zip(*rows, strict=True)))
        return EvaluationResult(total.loss, total.targets, total.sequences, by_name)


def _mean(loss: float, targets: float, sequences: float) -> SourceLoss:
    return SourceLoss(loss / targets if targets else float("nan"), int(targets), int(sequences))


def added_over_ranks(sums: torch.Tensor, world_size: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """`sums` added over the data-parallel ranks, on every rank.

    Args:
        sums: of this rank.
        world_size: number of data-parallel ranks.
        group: these ranks. Default: all processes, if there are as many.

    Raises:
        ConfigError: the group has another number of ranks.
    """
    if world_size == 1:
        return sums
    found = dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1
    if found != world_size:
        raise ConfigError(
            f"evaluation: expected a group of {world_size} data-parallel ranks, found {found} process{'es' * (found > 1)};"
            ' pass group=mesh["dp"].get_group(), or add `sums` of all ranks yourself'
        )
    total = sums.clone()
    if dist.get_backend(group) == "nccl" and not total.is_cuda:
        total = total.cuda()
    dist.all_reduce(total, group=group)
    return total
