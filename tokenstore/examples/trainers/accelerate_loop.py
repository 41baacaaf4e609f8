"""Train a plan with a loop over Accelerate.

python -m tokenstore.examples.trainers.accelerate_loop DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.accelerate_loop DATA RUN
"""

import torch
from accelerate import Accelerator
from torch.nn import functional

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, Tiny, main, world
from tokenstore.trainers.accelerate import prepare_evaluation, prepare_plan


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    _, world_size = world()
    accumulation = options.plan.global_batch_size(0) // (options.microbatch * world_size)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = Tiny(options.vocab_size)
    journal.watch(model, options.plan, options.eval_plan)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    # data
    loader = prepare_plan(accelerator, options.plan, microbatch_size=options.microbatch, prefetch=options.workers)
    evaluation = prepare_evaluation(accelerator, options.eval_plan, microbatch_size=options.microbatch)
    # end
    saved = sorted(options.run.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    if saved:
        accelerator.load_state(str(saved[-1]))
    journal.resumed(loader.step)

    def loss_of(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits, targets = model(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten()
        loss = functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        return loss, torch.stack([loss.detach(), (targets != -100).sum()])

    sums = torch.zeros(2)
    for batch in loader:
        with accelerator.accumulate(model):
            loss, counts = loss_of(batch)
            accelerator.backward(loss)
            sums += counts
            if accelerator.sync_gradients:  # the mean over all targets of the step, instead of a mean of means
                total, targets = accelerator.reduce(sums).tolist()
                for parameter in model.parameters():
                    parameter.grad *= world_size * accumulation / targets
                journal.loss(loader.step - 1, total / targets)
                sums.zero_()
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.save_state(str(options.run / f"step-{loader.step}"))
    model.eval()
    with torch.no_grad():
        sums = torch.stack([loss_of(batch)[1] for batch in evaluation]).sum(0)
    total, targets = accelerator.reduce(sums).tolist()
    journal.evaluated(total / targets)


if __name__ == "__main__":
    main(__doc__, train)
