"""Train a plan with DeepSpeed.

python -m tokenstore.examples.trainers.deepspeed_engine DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.deepspeed_engine DATA RUN
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from torch.nn import functional

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, Tiny, main, world
from tokenstore.trainers.common import evaluation_loader
from tokenstore.trainers.deepspeed import engine_loader, engine_rank


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    world()
    if not dist.is_initialized():
        os.environ |= {"LOCAL_RANK": "0"}  # DeepSpeed requires it
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Tiny(options.vocab_size)
    journal.watch(model, options.plan, options.eval_plan)
    config = {
        "train_batch_size": options.plan.global_batch_size(0),
        "train_micro_batch_size_per_gpu": options.microbatch,
        "zero_optimization": {"stage": 0},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, config=config, dist_init_required=False)
    # data
    loader = engine_loader(engine, options.plan, prefetch=options.workers)
    evaluation = evaluation_loader(
        options.eval_plan, rank=engine_rank(engine), device=engine.device, microbatch_size=options.microbatch
    )
    # end
    engine.load_checkpoint(str(options.run))
    journal.resumed(engine.global_steps)
    sums = torch.zeros(2)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, targets = engine(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten()
        loss = functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        count = (targets != -100).sum()
        sums.add_(torch.stack([loss.detach(), count]))
        return loss / count

    def mean() -> float:
        dist.all_reduce(sums)
        total, targets = sums.tolist()
        sums.zero_()
        return float(total / targets)

    for batch in loader:
        engine.backward(loss_of(batch))
        at_end = engine.is_gradient_accumulation_boundary()
        engine.step()
        if at_end:
            journal.loss(engine.global_steps - 1, mean())
            engine.save_checkpoint(str(options.run))
    engine.eval()
    with torch.no_grad():
        for batch in evaluation:
            loss_of(batch)
    journal.evaluated(mean())


if __name__ == "__main__":
    main(__doc__, train)
