"""A tiny Llama, and a Trainer that records its batches, for one process or several."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tokenstore import Plan
from tokenstore.trainers.huggingface import TokenTrainerMixin


def tiny_model() -> LlamaForCausalLM:
    """A model with the same weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    return LlamaForCausalLM(config)


class Recording(Trainer):
    """Records batches.

    Attributes:
        trained: (global_step, input_ids, loss).
        evaluated: input_ids of every microbatch, one list per evaluation.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.trained: list[tuple[int, Any, float]] = []
        self.evaluated: list[list[Any]] = []

    @property
    def ids(self) -> list[Any]:
        """input_ids of the trained batches."""
        return [ids for _, ids, _ in self.trained]

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        ids, update = inputs["input_ids"].numpy().copy(), self.state.global_step
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.trained.append((update, ids, loss.item()))
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self.evaluated.append([])
        return super().evaluation_loop(*args, **kwargs)

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.evaluated[-1].append(inputs["input_ids"].numpy().copy())
        return super().prediction_step(model, inputs, *args, **kwargs)


class TokenTrainer(TokenTrainerMixin, Recording):
    """The class that a user writes, with recording."""


def quiet_arguments(folder: Path, size: int, accumulation: int, **options: Any) -> TrainingArguments:
    """Arguments of a run on the CPU that saves a checkpoint after every update."""
    defaults = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no", "log_level": "error"}
    defaults |= {"save_strategy": "steps", "save_steps": 1, "save_only_model": False, "num_train_epochs": 1}
    defaults |= {"learning_rate": 0.1, "optim": "sgd", "ignore_data_skip": True, "seed": 0}
    return TrainingArguments(
        str(folder),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        **{**defaults, **options},
    )


def loss_by_hand(model: Any, plan: Plan) -> float:
    """The mean loss over all targets of a plan."""
    batches = [plan.batch(step) for step in range(plan.num_steps or 0)]
    ids, targets = (torch.from_numpy(np.concatenate([b[name] for b in batches])) for name in ("input_ids", "targets"))
    with torch.no_grad():
        logits = model(ids).logits
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100).item()
