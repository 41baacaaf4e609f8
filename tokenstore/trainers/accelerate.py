"""A loader for a training loop with Accelerate: on its device, for its data-parallel ranks, in its checkpoints.

accelerator = Accelerator(gradient_accumulation_steps=2)
loader = prepare_plan(accelerator, plan, microbatch_size=4)     # 4 x 2 x ranks = the plan's global_batch_size
accelerator.load_state("checkpoint")                            # continues the loader too, with any number of ranks
for batch in loader:
    with accelerator.accumulate(model): ...
"""

from typing import Any, Unpack

from tokenstore.errors import how_to_install
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.evaluation import Evaluation
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import AllOptions
from tokenstore.torch_data.ranks import DataRank
from tokenstore.trainers.common import check_accumulation, evaluation_loader, microbatches_per_step

try:
    from accelerate import Accelerator
except ImportError as error:
    raise ImportError(f"accelerate is not installed; {how_to_install('huggingface')}") from error


def prepare_plan(accelerator: Accelerator, plan: Plan, **options: Unpack[AllOptions]) -> TokenLoader[Any]:
    """A TokenLoader for the process of an Accelerator.

    Its batches are on `accelerator.device`. `accelerator.save_state` and `load_state` save and restore it, with any number
    of ranks. Make the loaders of a program always in the same order, because Accelerate numbers them.

    Args:
        accelerator: its gradient_accumulation_steps must be the microbatches of a rank in a step.
        plan: the plan to train.
        options: options of TokenLoader. `rank` and `device` are those of the Accelerator by default.

    Raises:
        ConfigError: an update would not be a step of the plan.

    Example:
        >>> loader = prepare_plan(accelerator, Plan("plan.yaml"), microbatch_size=4, format="hf")
    """
    loader: TokenLoader[Any] = TokenLoader(plan, **_own_options(accelerator, options))
    expected = microbatches_per_step(plan, _ranks(options).world_size, options.get("microbatch_size"))
    check_accumulation("gradient_accumulation_steps", accelerator.gradient_accumulation_steps, expected, plan)
    accelerator.register_for_checkpointing(loader)
    return loader


def prepare_evaluation(accelerator: Accelerator, plan: Plan, **options: Unpack[AllOptions]) -> Evaluation:
    """The Evaluation of a plan for the process of an Accelerator, on its device: every token once, over all ranks.

    Args:
        accelerator: the Accelerator.
        plan: the plan to evaluate. It must not be endless.
        options: options of TokenLoader, as in `prepare_plan`.

    Raises:
        ConfigError: the plan is endless.

    Example:
        >>> prepare_evaluation(accelerator, plan, format="hf").run(lambda batch: model(**batch).loss, reduction="mean").loss
    """
    return evaluation_loader(plan, **_own_options(accelerator, options))


def data_rank(accelerator: Accelerator) -> DataRank:
    """The data-parallel rank of this process. Ranks of tensor, context and sequence parallelism count as one."""
    parallel = accelerator.parallelism_config
    sizes = [getattr(parallel, f"{kind}_size", 1) or 1 for kind in ("tp", "cp", "sp")] if parallel else []
    peers = 1
    for size in sizes:
        peers *= size
    return DataRank(accelerator.process_index // peers, accelerator.num_processes // peers)


def _own_options(accelerator: Accelerator, options: AllOptions) -> AllOptions:
    """`options`, with the rank and the device of the Accelerator as defaults."""
    if options.get("rank") is None:
        options["rank"] = data_rank(accelerator)
    if "device" not in options:
        options["device"] = accelerator.device
    return options


def _ranks(options: AllOptions) -> DataRank:
    """The rank in complete options."""
    rank = options["rank"]
    return rank if isinstance(rank, DataRank) else DataRank(int(rank or 0), int(options.get("world_size") or 1))
