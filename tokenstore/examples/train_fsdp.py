"""Train the same GPT with FSDP2 and torch.distributed.checkpoint; the losses are those of train_gpt.

    python -m tokenstore.examples.data RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.train_fsdp RUN --microbatch 2
    python -m tokenstore.examples.train_fsdp RUN

Every process holds and saves a part of the weights. A checkpoint can be loaded into any number of processes; the loader's
state in it is the same on every rank. If a mesh has more dimensions, for tensor or pipeline parallelism for example,
`DataRank.from_mesh` finds the data-parallel ones: ranks along the others must load the same batches.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import tokenstore
from tokenstore.examples.model import GPT
from tokenstore.examples.steps import CHECKPOINT_EVERY, FIELDS, StepSums, loss_sum, main, make_model, report, update


class Training(Stateful):
    """Model and optimizer in the form that torch.distributed.checkpoint needs. A TokenLoader is Stateful already."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """The state of model and optimizer."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore model and optimizer."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def newest(folder: Path) -> Path | None:
    """The last complete checkpoint: .metadata is written when all ranks are done."""
    return max((path.parent for path in folder.glob("step-*/.metadata")), default=None)


def shard(model: GPT, mesh: DeviceMesh) -> FSDPModule:
    """Shard in place: the weights of a block are gathered when it is used, all others with the whole model."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(folder: Path, device: torch.device, microbatch: int | None) -> None:
    """Train to the end of the plan, from the newest checkpoint if there is one."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    plan = tokenstore.Plan(tokenstore.PlanConfig.load(folder / "plan.yaml"))
    place = tokenstore.DataRank.from_mesh(mesh)
    loader = tokenstore.TokenLoader(plan, rank=place, microbatch_size=microbatch, fields=FIELDS, device=device)
    model = make_model(plan).to(device)
    sharded = shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = {"training": Training(model, optimizer), "loader": loader}
    if checkpoint := newest(folder / "checkpoints"):
        dcp.load(state, checkpoint_id=checkpoint)

    sums = StepSums(device)
    for batch in loader:
        sharded.set_requires_gradient_sync(
            loader.step_ended
        )  # exchange gradients only at the last microbatch of a step
        loss = loss_sum(model, batch)
        loss.backward()
        sums.add(loss, batch)
        if loader.step_ended:
            mean, num_targets, rows = sums.finish()
            update(model, optimizer, num_targets)
            report(loader.step - 1, mean, rows, loader.metrics())
            if loader.step % CHECKPOINT_EVERY == 0 or loader.step == plan.num_steps:
                dcp.save(state, checkpoint_id=folder / "checkpoints" / f"step-{loader.step:09}")


if __name__ == "__main__":
    main(__doc__, train)
