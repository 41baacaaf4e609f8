"""TokenDataset: a plan for `torch.utils.data.DataLoader`, in exact order for any number of workers."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from tokenstore.sampling.plan import Plan
from tokenstore.torch_data.batches import BatchMaker, check_fields
from tokenstore.torch_data.loader import check_start, data_rank
from tokenstore.torch_data.position import Split


class TokenDataset(IterableDataset):
    """Whole microbatches of a plan: use `DataLoader(TokenDataset(plan, ...), batch_size=None, num_workers=n)`.

    Worker w of n gives microbatches w, w + n, ...; DataLoader asks its workers in turn, so the order is that of one
    process. TokenLoader is faster and keeps its own state; this is for code that insists on a DataLoader. It pickles by
    configuration, so workers may be forked or spawned.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        microbatch_size: int | None = None,
        step: int = 0,
        fields: Sequence[str] | None = None,
        format: str = "torch",
        max_documents: int | None = None,
    ):
        """Arguments are those of TokenLoader."""
        rank, world_size = data_rank(rank, world_size)
        self.plan = plan
        self.step = check_start(plan, step)
        self._split = Split(plan, rank, world_size, microbatch_size)
        self._fields, self._max_documents = check_fields(fields, format), max_documents

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        length = self.plan.config.sequence_length
        maker = BatchMaker(self.plan.sampler(), length, self._fields, False, self._max_documents)
        for step, row, num_rows, _, _ in islice(self._split.places(self.step, 0), first, None, stride):
            yield maker.make(step, row, num_rows)
