"""Loaders with the contracts of training scripts that are no packages. They replace the scripts' own loaders.

    nanoGPT          get_batch = GetBatch({"train": "plan.yaml", "val": "val.yaml"}, batch_size, device=device,
                                          accumulation=gradient_accumulation_steps, start=lambda: iter_num)
    nanochat         train_loader = batches_with_state("plan.yaml", B, T, device=device, resume_state_dict=...)
                     build_val_loader = lambda: batches_of("val.yaml", B, T, device=device)
    modded-nanogpt   train_loader = varlen_stream("plan.yaml", num_tokens, max_documents, bigrams=get_bigram_hash)

They were tested with nanoGPT at commit 3adf61e, and against the contracts of nanochat at 92d63d4 and modded-nanogpt at f411b3d.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import (
    PlacedLoader,
    check_accumulation,
    evaluation_loader,
    microbatches_per_step,
    step_after,
)

Pair = tuple[torch.Tensor, torch.Tensor]


class GetBatch:
    """`get_batch(split)` of nanoGPT: int64[batch_size, L] tokens and targets, on a device.

    With gradients enabled, "train" yields the microbatches of this rank in order, from the step `start()` on. A script may
    fetch a batch ahead, since its own number of iterations is the position. Without gradients, as in nanoGPT's
    `estimate_loss`, a split begins anew each time and training keeps its position. There all microbatches are those of rank 0
    of 1, because only the master process of nanoGPT evaluates. A plan that ends begins again.

    Example:
        >>> get_batch = GetBatch({"train": "plan.yaml", "val": "val.yaml"}, 12, accumulation=5, start=lambda: iter_num)
        >>> X, Y = get_batch("train")
    """

    def __init__(
        self,
        plans: Mapping[str, Plan | str | Path],
        batch_size: int,
        *,
        accumulation: int,
        start: Callable[[], int],
        device: torch.device | str | None = None,
        ignore_index: int = -1,
    ):
        """Make the function. Nothing is read yet.

        Args:
            plans: a plan, or the path of a plan file, for each split. "train" is required.
            batch_size: sequences per microbatch and rank.
            accumulation: microbatches per rank and update.
            start: returns the number of updates so far. It is called at the first training batch.
            device: where batches are returned. None: the CPU.
            ignore_index: the target of tokens that are not in the loss. That of nanoGPT's model is -1.

        Raises:
            ConfigError: an update would not be a step of the plan.
        """
        self.plans = {split: as_plan(plan) for split, plan in plans.items()}
        self._options: dict[str, Any] = {
            "microbatch_size": batch_size,
            "device": _known(device),
            "ignore_index": ignore_index,
        }
        plan = self.plans["train"]
        expected = microbatches_per_step(plan, DataRank.from_environment().world_size, batch_size)
        check_accumulation("gradient_accumulation_steps", accumulation, expected, plan)
        self._start = start
        self._train: Iterator[Any] | None = None
        self._evaluations: dict[str, Iterator[Any]] = {}

    def __call__(self, split: str) -> Pair:
        """The next batch of a split."""
        if not torch.is_grad_enabled():
            return _pair(next(self._evaluation(split)))
        self._evaluations.clear()
        if self._train is None:
            self._train = self._training()
        return _pair(next(self._train))

    def _training(self) -> Iterator[Any]:
        plan, step = self.plans["train"], self._start()
        while True:
            yield from TokenLoader(plan, step=step_after(plan, step), **self._options)
            step = 0

    def _evaluation(self, split: str) -> Iterator[Any]:
        if split not in self._evaluations:
            plan, place = self.plans[split], DataRank(0, 1)
            loader = PlacedLoader(plan, lambda: 0, rank=place, skip_empty=plan.num_steps is not None, **self._options)
            self._evaluations[split] = _again(loader)
        return self._evaluations[split]


def batches_with_state(
    plan: Plan | str | Path,
    batch_size: int,
    length: int,
    *,
    device: torch.device | str | None = None,
    resume_state_dict: Mapping[str, Any] | None = None,
    ignore_index: int = -1,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]:
    """The loader of nanochat: `(inputs, targets, state)`, int64[batch_size, length], without end.

    The state is the position before its batch. nanochat fetches a batch ahead and saves the state of the batch it has not
    trained yet; that batch is the first one of the resumed run. Its keys `epoch`, `pq_idx` and `rg_idx`, which nanochat
    prints, are the pass over the plan, the step, and the sequences of the step before the batch.

    Args:
        plan: a plan, or the path of a plan file.
        batch_size: sequences per batch and rank.
        length: the sequence length.
        device: where batches are returned. None: the CPU.
        resume_state_dict: a state to continue from, with any number of ranks. None: the start of the plan.
        ignore_index: the target of tokens that are not in the loss.

    Raises:
        ConfigError: `length` is not that of the plan, or a step does not divide evenly among the ranks.
        StateMismatchError: the state is from a run with another history.
    """
    plan = _of_length(plan, length)
    loader: TokenLoader[Any] = TokenLoader(
        plan, microbatch_size=batch_size, device=_known(device), ignore_index=ignore_index, inside_step="continue"
    )
    state = dict(resume_state_dict or {})
    epoch = state.pop("epoch", 1)
    loader.load_state_dict({name: value for name, value in state.items() if name not in ("pq_idx", "rg_idx")})
    return _with_state(loader, epoch)


def _with_state(loader: TokenLoader[Any], epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]:
    while True:
        iter(loader)
        while True:
            state = loader.state_dict()
            step, given = loader.plan.check_state(state)
            try:
                batch = next(loader)
            except StopIteration:
                break
            yield *_pair(batch), {**state, "epoch": epoch, "pq_idx": step, "rg_idx": given}
        epoch += 1


def batches_of(
    plan: Plan | str | Path,
    batch_size: int,
    length: int,
    *,
    device: torch.device | str | None = None,
    ignore_index: int = -1,
) -> Iterator[Pair]:
    """The validation loader of nanochat: `(inputs, targets)` of this rank, from the start of a plan, without end.

    Every token is in one batch if as many batches are taken as the plan has: `len(evaluation_loader(plan, ...))`.
    Arguments are those of `batches_with_state`.

    Raises: ConfigError: the plan is endless, or `length` is not that of the plan.
    """
    loader = evaluation_loader(
        _of_length(plan, length), microbatch_size=batch_size, device=_known(device), ignore_index=ignore_index
    )
    return map(_pair, _again(loader))


def varlen_stream(
    plan: Plan | str | Path,
    num_tokens: int,
    max_documents: int,
    *,
    no_target: int,
    device: torch.device | str | None = None,
    step: int = 0,
    bigrams: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Generator[tuple[Any, ...], tuple[int, int, int] | None, None]:
    """The loader of modded-nanogpt: a flat stream of tokens with the cumulative lengths of its documents.

    Every batch begins with a document, or with a part of a long one: use a plan with `packing: best_fit`. A batch is
    `(inputs int32[T], targets int64[T], cum_lengths int32[max_documents])`, T tokens per rank. `cum_lengths` begins with 0 and
    is filled with T. With `bigrams` two more items follow: its result on the device, and as a numpy array.

    The script may send `(num_tokens, max_seq_len, accumulation)` to change the size of the following batches. max_seq_len is
    not used: the length of a document's part is at most the plan's sequence_length.

    Args:
        plan: a plan, or the path of a plan file.
        num_tokens: tokens of a batch over all ranks: a multiple of the plan's sequence_length and the number of ranks.
        max_documents: the size of `cum_lengths`.
        no_target: the target of tokens that have none, such as the last one of a document. The losses of this script ignore no
            token, so pass the id that begins a document, which it predicts there.
        device: where batches are returned. None: the CPU.
        step: the step to start at.
        bigrams: called with int32[T] inputs.

    Raises:
        ConfigError: the number of tokens does not divide evenly; or the plan has a packing other than best_fit and none.
        ValueError: a batch has more than max_documents - 1 documents.
    """
    plan = as_plan(plan)
    if plan.config.packing == "concat":
        raise ConfigError("packing: rows of concat begin inside documents; use packing best_fit")
    return _stream(plan, num_tokens, max_documents, no_target, _known(device), step, bigrams)


def _stream(
    plan: Plan,
    num_tokens: int,
    max_documents: int,
    no_target: int,
    device: torch.device | str | None,
    step: int,
    bigrams: Callable[[torch.Tensor], torch.Tensor] | None,
) -> Generator[tuple[Any, ...], tuple[int, int, int] | None, None]:
    state = plan.state(plan.check_start(step))
    while True:
        loader = _stream_loader(plan, num_tokens, max_documents, device)
        loader.load_state_dict(state)
        for batch in loader:
            inputs = batch["input_ids"].flatten().to(torch.int32)
            targets = batch["targets"].flatten()
            items: tuple[Any, ...] = (inputs, targets.masked_fill(targets == -100, no_target), batch["cu_seqlens"])
            if bigrams is not None:
                hashed = bigrams(inputs.cpu())
                items += (hashed.to(inputs.device, non_blocking=True), hashed.numpy())
            sent = yield items
            if sent is not None:
                num_tokens, state = sent[0] // sent[2], loader.state_dict()
                break
        else:
            return


def _stream_loader(
    plan: Plan, num_tokens: int, max_documents: int, device: torch.device | str | None
) -> TokenLoader[Any]:
    length, ranks = plan.config.sequence_length, DataRank.from_environment().world_size
    if num_tokens < 1 or num_tokens % (length * ranks):
        raise ConfigError(
            f"num_tokens: expected a multiple of sequence_length x ranks = {length * ranks}, found {num_tokens}"
        )
    return TokenLoader(
        plan,
        microbatch_size=num_tokens // (length * ranks),
        fields=("input_ids", "targets", "cu_seqlens"),
        max_documents=max_documents - 1,
        device=device,
        inside_step="continue",
    )


def _pair(batch: Mapping[str, torch.Tensor]) -> Pair:
    return batch["input_ids"], batch["targets"]


def _again(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader, again and again."""
    while True:
        yield from loader


def _known(device: torch.device | str | None) -> torch.device | str | None:
    """A device that batches can be copied to; None for the CPU."""
    return None if device is None or str(device) == "cpu" else device


def _of_length(plan: Plan | str | Path, length: int) -> Plan:
    """A plan. Raises: ConfigError: its sequence length is another one."""
    plan = as_plan(plan)
    if plan.config.sequence_length != length:
        raise ConfigError(
            f"sequence length: expected {plan.config.sequence_length}, that of the plan, found {length};"
            " change the script's setting"
        )
    return plan
