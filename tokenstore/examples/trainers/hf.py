"""Train a plan with the Trainer of transformers.

python -m tokenstore.examples.trainers.hf DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.hf DATA RUN
"""

import os
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, main
from tokenstore.trainers.huggingface import TokenTrainerMixin


class TokenTrainer(TokenTrainerMixin, Trainer):
    """The Trainer of transformers, for plans."""

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Record the losses of steps and evaluations."""
        if "loss" in logs:
            journal.loss(self.state.global_step - 1, logs["loss"])
        if "eval_loss" in logs:
            journal.evaluated(logs["eval_loss"])
        super().log(logs, *args, **kwargs)


def arguments(options: Options) -> dict[str, Any]:
    """Arguments of a run on the CPU that saves after every step."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    return {
        "output_dir": str(options.run),
        "per_device_train_batch_size": options.microbatch,
        "gradient_accumulation_steps": options.plan.global_batch_size(0) // (options.microbatch * world_size),
        "per_device_eval_batch_size": options.microbatch,
        "num_train_epochs": 1,
        "learning_rate": 0.01,
        "ignore_data_skip": True,
        "eval_strategy": "epoch",
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "use_cpu": True,
        "ddp_backend": "gloo" if world_size > 1 else None,
        "report_to": [],
        "disable_tqdm": True,
    }


def model(options: Options, record: bool = True) -> LlamaForCausalLM:
    """A tiny Llama. Its forward passes are recorded if `record`."""
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    made = LlamaForCausalLM(LlamaConfig(vocab_size=options.vocab_size, **sizes))
    if record:
        journal.watch(made, options.plan, options.eval_plan)
    return made


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    # data
    loader_options = {
        "fields": ("input_ids", "labels", "shift_labels", "position_ids"),
        "prefetch": options.workers,
    }
    plans: dict[str, Any] = {
        "train_plan": options.plan,
        "eval_plan": options.eval_plan,
        "loader_options": loader_options,
    }
    # end
    trainer = TokenTrainer(model(options), TrainingArguments(**arguments(options)), **plans)
    last = get_last_checkpoint(str(options.run))
    journal.resumed(int(last.rpartition("-")[2]) if last else 0)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(__doc__, train)
