"""The loss of the model that train_gpt left on documents it has not seen: each document once, on any number of processes.

    python -m tools.examples.evaluate RUN
    torchrun --nproc-per-node 2 -m tools.examples.evaluate RUN --microbatch 4

With `packing: none` a row is one document, or a part of a long one, and the last step is filled with empty rows. So all
ranks are given equally many batches, nobody waits for a rank that has none, and empty rows count nothing: the loss is
that of a loop over the documents one by one, whatever the number of processes.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist

import tokenstore
from tools.examples.model import GPT
from tools.examples.steps import FIELDS, StepSums, loss_sum, main, make_model


def load_model(checkpoint: Path, plan: tokenstore.Plan) -> GPT:
    """The model of a checkpoint of train_gpt."""
    model = make_model(plan)
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    return model.eval()


@torch.inference_mode()
def evaluate(model: GPT, plan: tokenstore.Plan, device: torch.device, microbatch: int | None) -> dict[str, float]:
    """Loss a target over the whole plan and all ranks, the number of targets, and of batches this rank was given."""
    loader = tokenstore.TokenLoader(plan, microbatch_size=microbatch, fields=FIELDS)
    sums = StepSums(device)
    for batch in loader:
        sums.add(loss_sum(model, {name: tensor.to(device) for name, tensor in batch.items()}), batch)
    loss, num_targets, _ = sums.finish()
    return {"loss": loss, "targets": num_targets, "batches": len(loader)}


def work(folder: Path, device: torch.device, microbatch: int | None) -> None:
    """Evaluate what train_gpt left; each rank prints what it has found."""
    plan = tokenstore.Plan(tokenstore.PlanConfig.load(folder / "evaluation.yaml"))
    found = evaluate(load_model(folder / "checkpoint.pt", plan).to(device), plan, device, microbatch)
    line = json.dumps({"rank": dist.get_rank(), **found}) + "\n"
    print(line, end="", flush=True)  # in one write: the ranks share an output


if __name__ == "__main__":
    main(__doc__, work)
