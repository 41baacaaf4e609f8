"""Train with a mixture decided online: every few steps, sources with a higher validation loss get more weight.

    python -m tokenstore.examples.data RUN
    python -m tokenstore.examples.online_mixture RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.online_mixture RUN --microbatch 2

Each decision becomes a stage of RUN/online.yaml. If the run is killed, the same command resumes it from the checkpoint and that
file: a step that was decided before the kill is not decided again. Each step prints a line of JSON; `rows` is a checksum of
its sequences, and a decision prints its weights.
"""

import json
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.examples.steps import CHECKPOINT_EVERY, FIELDS, StepSums, loss_sum, main, make_model, report, update
from tokenstore.examples.train_gpt import load, save

DECIDE_EVERY = 6
VALIDATION_ROWS = 8  # per source, from step 0 of a plan over the source alone


def validation_batches(plan: Plan) -> dict[str, dict[str, torch.Tensor]]:
    """A batch of each source. A real run would take them from held-out stores."""
    batches = {}
    for name, store in plan.stores.items():
        alone = Plan.of({name: store.path}, plan.config.sequence_length, VALIDATION_ROWS, seed=1)
        batches[name] = next(TokenLoader(alone, rank=0, world_size=1, fields=FIELDS))
    return batches


@torch.inference_mode()
def decide(model: nn.Module, batches: dict[str, dict[str, torch.Tensor]], device: torch.device) -> dict[str, float]:
    """Weights in proportion to the validation losses per token, the same on every rank."""
    losses = []
    for batch in batches.values():
        loss = loss_sum(model, {name: tensor.to(device) for name, tensor in batch.items()})
        losses.append(loss.item() / int((batch["targets"] >= 0).sum()))
    decided = [[round(loss / sum(losses), 4) for loss in losses]]  # rounded, so that the plan file is easy to read
    dist.broadcast_object_list(decided)  # ranks may add floats in another order
    return dict(zip(batches, decided[0], strict=True))


def amend(plan: Plan, weights: dict[str, float], step: int, path: Path) -> Plan:
    """The plan with these weights from `step` on, written to `path` by one rank before any rank continues."""
    plan = plan.amended(step, weights=weights)
    if dist.get_rank() == 0:
        plan.config.save(path, "Written by online_mixture: a stage for every decision.")
        print(json.dumps({"decided": step, "weights": weights}), flush=True)
    dist.barrier()
    return plan


def train(folder: Path, device: torch.device, microbatch: int | None) -> None:
    """Train to the end of the plan, from the checkpoint if there is one."""
    online, checkpoint = folder / "online.yaml", folder / "online.pt"
    plan = Plan(PlanConfig.load(online if online.exists() else folder / "plan.yaml"))
    dist.barrier()  # no rank amends the file before all have read it
    loader = TokenLoader(plan, microbatch_size=microbatch, fields=FIELDS, prefetch=1)
    model = DistributedDataParallel(make_model(plan).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if checkpoint.exists():
        load(checkpoint, model.module, optimizer, loader)
    batches, sums = validation_batches(plan), StepSums(device)
    for batch in loader:
        with nullcontext() if loader.step_ended else model.no_sync():
            loss = loss_sum(model, {name: tensor.to(device) for name, tensor in batch.items()})
            loss.backward()
        sums.add(loss, batch)
        if loader.step_ended:
            mean, num_targets, rows = sums.finish()
            update(model, optimizer, num_targets)
            step = loader.step
            report(step - 1, mean, rows, loader.metrics())
            decided = any(stage.from_step >= step for stage in loader.plan.config.stages)  # before the run was killed
            if step % DECIDE_EVERY == 0 and step != plan.num_steps and not decided:
                loader.switch_plan(amend(loader.plan, decide(model.module, batches, device), step, online))
            if dist.get_rank() == 0 and (step % CHECKPOINT_EVERY == 0 or step == plan.num_steps):
                save(checkpoint, model.module, optimizer, loader)


if __name__ == "__main__":
    main(__doc__, train)
