"""Evaluate the model of train_gpt on documents it has not seen: each document once, on any number of processes.

    python -m tokenstore.examples.evaluate RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.evaluate RUN --microbatch 4

With `packing: none` a row is one document or a part of a long one. All ranks have equally many batches, so no rank waits for
another. The loss equals that of a loop over single documents, for any number of processes.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist

import tokenstore
from tokenstore.examples.model import GPT
from tokenstore.examples.steps import FIELDS, loss_sum, main, make_model


def load_model(checkpoint: Path, plan: tokenstore.Plan) -> GPT:
    """Load the model from a checkpoint of train_gpt."""
    model = make_model(plan)
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    return model.eval()


@torch.inference_mode()
def evaluate(model: GPT, plan: tokenstore.Plan, device: torch.device, microbatch: int | None) -> dict[str, float]:
    """Mean loss per target and number of targets over the plan and all ranks; number of batches of this rank."""
    evaluation = tokenstore.Evaluation(plan, microbatch_size=microbatch, fields=FIELDS, device=device)
    result = evaluation.run(lambda batch: loss_sum(model, batch), reduction="sum")
    return {"loss": result.loss, "targets": result.targets, "batches": len(evaluation)}


def work(folder: Path, device: torch.device, microbatch: int | None) -> None:
    """Evaluate the checkpoint of train_gpt; each rank prints its results."""
    plan = tokenstore.Plan(tokenstore.PlanConfig.load(folder / "evaluation.yaml"))
    found = evaluate(load_model(folder / "checkpoint.pt", plan).to(device), plan, device, microbatch)
    line = json.dumps({"rank": dist.get_rank(), **found}) + "\n"
    print(line, end="", flush=True)  # one write, because the ranks share their output


if __name__ == "__main__":
    main(__doc__, work)
