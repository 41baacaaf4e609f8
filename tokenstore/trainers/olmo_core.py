"""PlanDataLoader: train plans with the Trainer of OLMo-core.

    data_loader = PlanDataLoader(plan, work_dir=..., dp_process_group=train_module.dp_process_group)
    trainer = TrainerConfig(...).build(train_module, data_loader)

A batch is the rank's share of a step; the train module splits it into microbatches. An epoch of OLMo-core is a pass over the
plan, so `global_batch_size` in tokens is that of a step, and the Trainer's number of batches is the number of steps.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np
import torch
import torch.distributed as dist

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import check_updates, state_after, step_after, updates_per_pass

try:
    from olmo_core.data import DataLoaderBase
    from olmo_core.distributed.utils import get_rank, get_world_size
except ImportError as error:
    raise ImportError("OLMo-core is not installed; pip install ai2-olmo-core") from error


class PlanDataLoader(DataLoaderBase):
    """The steps of a plan, for one data-parallel rank of OLMo-core.

    A batch is a dict: `input_ids` and `labels`, int64[rows, sequence_length], where `labels` are the targets of the plan,
    with -100; and with `doc_lens=True`, `doc_lens`, int32[rows, n], the lengths of the pieces of documents in each row, with
    zeros at the end, and `max_doc_lens`, a list with the longest of each row. With them, documents do not attend to each
    other; this needs an attention backend for documents of several lengths, such as FlashAttention.

    A checkpoint resumes with any number of ranks. A plan with another history refuses it.

    Attributes:
        plan: the plan.

    Example:
        >>> loader = PlanDataLoader(Plan("plan.yaml"), work_dir="work", dp_process_group=train_module.dp_process_group)
    """

    def __init__(
        self,
        plan: Plan,
        *,
        work_dir: str,
        dp_process_group: "dist.ProcessGroup | None" = None,
        doc_lens: bool = False,
        **options: Unpack[AllOptions],
    ):
        """Make a loader. Nothing is read yet.

        Args:
            plan: the plan to train. It may be endless, with a `max_duration` in steps.
            work_dir: the working directory of OLMo-core, in which this loader writes nothing.
            dp_process_group: that of the train module. None: all processes are data-parallel.
            doc_lens: add `doc_lens` and `max_doc_lens`.
            options: options of TokenLoader, except `format`, `fields`, `microbatch_size` and `step`.

        Raises:
            ConfigError: stages of the plan differ in their batch size, for which OLMo-core has one number; or a step does not
                divide evenly among the ranks.
        """
        sizes = {stage.global_batch_size for stage in plan.schedule.stages}
        if len(sizes) > 1:
            raise ConfigError(
                f"global_batch_size: OLMo-core has one for the whole run, but the stages of the plan have {sorted(sizes)};"
                " make the stages equal, or train them as separate runs"
            )
        self.plan, self._doc_lens = plan, doc_lens
        fields = ("input_ids", "targets", *(("cu_seqlens",) if doc_lens else ()))
        rank = DataRank(get_rank(dp_process_group), get_world_size(dp_process_group))
        self._options: AllOptions = {"rank": rank, "fields": fields, **options}
        self._loader: TokenLoader[Any] = TokenLoader(plan, **self._options)
        super().__init__(
            work_dir=work_dir,
            global_batch_size=sizes.pop() * plan.config.sequence_length,
            dp_world_size=rank.world_size,
            dp_rank=rank.rank,
        )

    # ---- called by the Trainer

    @property
    def total_batches(self) -> int | None:
        """The steps of an epoch, without skipped ones; None if the plan is endless."""
        return updates_per_pass(self.plan)

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        """Set the number of the epoch. The order is that of the plan."""
        self._epoch: int | None = epoch or (self._epoch or 0) + 1

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        options: AllOptions = {**self._options, "step": step_after(self.plan, self.batches_processed)}
        for batch in TokenLoader(self.plan, **options):
            yield self._converted(batch)

    def global_num_tokens_in_batch(self, batch: Mapping[str, Any]) -> int:
        """The tokens of a step over all ranks, with padding."""
        return int(self.global_batch_size)

    def get_mock_batch(self) -> dict[str, Any]:
        """A batch of zeros for the Trainer's dry run, with the shapes of a real one."""
        length = self.plan.config.sequence_length
        rows = self.rank_batch_size // length
        ids = torch.zeros(rows, length, dtype=torch.int64)
        borders = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32)
        return self._converted({"input_ids": ids, "targets": ids.clone(), "cu_seqlens": borders})

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank."""
        state = state_after(self.plan, self.batches_processed)
        return {"plan": state, "batches_processed": self.batches_processed, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state. Raises: StateMismatchError: it is from a run with another history, or is damaged."""
        keys = ("plan", "batches_processed", "epoch")
        self.batches_processed = check_updates(self.plan, state_dict, keys, "batches_processed")
        self._epoch = state_dict["epoch"]

    def _converted(self, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        """A batch of a TokenLoader as the train module expects it."""
        converted: dict[str, Any] = {"input_ids": batch["input_ids"], "labels": batch["targets"]}
        if self._doc_lens:
            converted |= _document_lengths(batch["cu_seqlens"].numpy(), *batch["input_ids"].shape)
        return converted


def _document_lengths(borders: np.ndarray, num_rows: int, length: int) -> dict[str, Any]:
    """`doc_lens` and `max_doc_lens` of a batch, from int32[n + 1] borders of its pieces in the rows laid end to end."""
    rows, lengths = borders[:-1] // length, np.diff(borders)
    counts = np.bincount(rows, minlength=num_rows)
    within = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.zeros((num_rows, counts.max()), np.int32)
    table[rows, within] = lengths
    return {"doc_lens": torch.from_numpy(table), "max_doc_lens": table.max(axis=1).tolist()}
