"""datasets_provider: train plans with Megatron-LM, started with `--dataloader-type external`.

    pretrain(datasets_provider("plan.yaml", "val.yaml"), model_provider, ModelType.encoder_or_decoder, forward_step)

The position is `args.consumed_train_samples`, which is in Megatron's checkpoints. So no state of the data is saved, and a run
continues with any number of data-parallel ranks and any microbatch size.

Only Megatron-core is a package; `datasets_provider` reads Megatron-LM's arguments where it is called by `pretrain`. In a loop
of your own with Megatron-core, use `microbatches`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

import torch

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan, as_plan
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import evaluation_loader, step_after_sequences

try:
    from megatron.core import parallel_state
except ImportError as error:
    raise ImportError("Megatron-core is not installed; pip install megatron-core") from error

FIELDS = ("tokens", "labels", "loss_mask", "position_ids")
Provider = Callable[..., tuple[Any, Any, Any]]


def datasets_provider(
    plan: Plan | str | Path,
    val_plan: Plan | str | Path | None = None,
    test_plan: Plan | str | Path | None = None,
    *,
    attention_mask: bool = False,
    **options: Unpack[AllOptions],
) -> Provider:
    """The first argument of Megatron-LM's `pretrain`: a function that makes its data iterators.

    Args:
        plan: the plan to train, or the path of its file.
        val_plan: a plan to evaluate, or None. Set `--eval-iters` to its microbatches, so that an evaluation is a whole pass;
            or `--full-validation`, which does so itself.
        test_plan: likewise for the test at the end.
        attention_mask: add a dense mask, for the local transformer layer; see `microbatches`. Also leave Megatron's option
            `--no-create-attention-mask-in-dataloader` off.
        options: options of TokenLoader, such as `prefetch` and `pin_memory`.

    Example:
        >>> pretrain(datasets_provider("plan.yaml"), model_provider, ModelType.encoder_or_decoder, forward_step)
    """
    training = as_plan(plan)
    others = [None if each is None else as_plan(each) for each in (val_plan, test_plan)]

    def provide(train_val_test_num_samples: Any = None, vp_stage: int | None = None) -> tuple[Any, Any, Any]:
        """Iterators over the microbatches of training, validation and test.

        Raises: ConfigError: Megatron's arguments are not those of the plans.
        """
        from megatron.training import get_args

        args = get_args()
        if args.dataloader_type != "external":
            raise ConfigError(f"--dataloader-type: expected external, found {args.dataloader_type}")
        own: AllOptions = {"microbatch_size": args.micro_batch_size, **options}
        for each in (training, *others):
            if each is not None and args.seq_length != each.config.sequence_length:
                raise ConfigError(
                    f"--seq-length: expected {each.config.sequence_length}, the sequence_length of the plan, found"
                    f" {args.seq_length}"
                )
        step = step_after_sequences(training, args.consumed_train_samples)
        if args.global_batch_size != training.global_batch_size(step):
            raise ConfigError(
                f"--global-batch-size: expected {training.global_batch_size(step)}, that of step {step} of the plan, found"
                f" {args.global_batch_size}"
            )
        evaluations = [None if each is None else Evaluations(each, attention_mask, own) for each in others]
        trained = microbatches(training, args.consumed_train_samples, attention_mask=attention_mask, **own)
        return trained, evaluations[0], evaluations[1]

    return provide


def microbatches(
    plan: Plan, consumed_samples: int = 0, *, attention_mask: bool = False, **options: Unpack[AllOptions]
) -> Iterator[dict[str, torch.Tensor]]:
    """The microbatches of this data-parallel rank, as Megatron's `get_batch` expects them from its iterator.

    A batch is a dict: `tokens`, `labels`, `position_ids`, int64[B, L]; `loss_mask`, float32[B, L]; and with `attention_mask` a
    mask of that name, bool[B, 1, L, L], which is True where a token must not be attended to: later tokens, and tokens of
    other documents of the row.

    Args:
        plan: the plan.
        consumed_samples: sequences trained so far, over all ranks: the position in the plan.
        attention_mask: whether to add the mask. It has L x L elements for each row.
        options: options of TokenLoader. By default, `rank` is that of Megatron's data-parallel group.

    Raises:
        ConfigError: `consumed_samples` is inside a step, or a step does not divide evenly among the ranks.

    Example:
        >>> iterator = microbatches(Plan("plan.yaml"), args.consumed_train_samples, microbatch_size=4)
    """
    own: AllOptions = {**_own_options(options, attention_mask), "step": step_after_sequences(plan, consumed_samples)}
    loader: TokenLoader[Any] = TokenLoader(plan, **own)
    return map(with_mask, loader) if attention_mask else loader


class Evaluations:
    """A plan to evaluate, again and again: both an iterator and, for `--full-validation`, an iterable with a length."""

    def __init__(self, plan: Plan, attention_mask: bool, options: AllOptions):
        """Read nothing yet. Raises: ConfigError: the plan is endless."""
        self._loader = evaluation_loader(plan, **_own_options(options, attention_mask))
        self._attention_mask = attention_mask
        self._batches = self._again()

    def __len__(self) -> int:
        """Microbatches of this rank in a pass, without empty ones. The same on every rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return map(with_mask, self._loader) if self._attention_mask else iter(self._loader)

    def __next__(self) -> dict[str, torch.Tensor]:
        return next(self._batches)

    def _again(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield from self


def with_mask(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch with `attention_mask`, bool[B, 1, L, L], in place of `document_ids`."""
    documents = batch["document_ids"]
    length = documents.shape[1]
    same = documents[:, None, :, None] == documents[:, None, None, :]
    earlier = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    rest = {name: tensor for name, tensor in batch.items() if name != "document_ids"}
    return {**rest, "attention_mask": ~(same & earlier)}


def _own_options(options: AllOptions, attention_mask: bool) -> AllOptions:
    """`options`, with Megatron's data-parallel rank as the default."""
    rank = DataRank(parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size())
    fields = (*FIELDS, "document_ids") if attention_mask else FIELDS
    return {"rank": rank, "format": "megatron", "fields": fields, **options}
