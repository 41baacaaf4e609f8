"""Train a plan with `litgpt pretrain`.

python -m tokenstore.examples.trainers.litgpt_pretrain DATA RUN --microbatch 2
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.litgpt_pretrain DATA RUN --microbatch 1
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # a tiny model on the CPU is not worth compiling

import lightning as L
import litgpt.pretrain
import torch
from litgpt import Config
from litgpt.args import EvalArgs, TrainArgs

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, main
from tokenstore.trainers.litgpt import TokenData


def record(options: Options) -> None:
    """Record what litgpt trains, logs and restores. On the CPU, use DDP in place of FSDP."""
    parts: Any = litgpt.pretrain

    class Model(litgpt.pretrain.GPT):
        def __init__(self, config: Config):
            super().__init__(config)
            journal.watch(self, options.plan, options.eval_plan)

    class Fabric(L.Fabric):
        def __init__(self, devices: int, strategy: Any, **kwargs: Any):
            super().__init__(devices=devices, strategy="ddp" if devices > 1 else "auto", accelerator="cpu", **kwargs)

        def log_dict(self, metrics: Any, step: int | None = None) -> None:
            if "loss" in metrics:
                journal.loss(metrics["step"] - 1, metrics["loss"])

        def load(self, path: Any, state: Any = None, strict: bool = True, **kwargs: Any) -> Any:
            remainder = super().load(path, state, strict=strict, **kwargs)
            journal.resumed(state["step_count"])
            return remainder

    def validate(*args: Any, **kwargs: Any) -> torch.Tensor:
        journal.write("evaluating")
        loss: torch.Tensor = whole(*args, **kwargs)
        journal.evaluated(loss.item())
        return loss

    whole, parts.validate = parts.validate, validate
    parts.GPT, parts.L = Model, SimpleNamespace(Fabric=Fabric)


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    record(options)
    sys.argv[1:] = ["tiny"]  # litgpt parses them again when it saves
    if not list(options.run.glob("step-*")):
        journal.resumed(0)
    length = options.plan.config.sequence_length
    # data
    data = TokenData("plan.yaml", "evaluation.yaml", prefetch=options.workers)
    # end
    batch_size = options.plan.global_batch_size(0)
    litgpt.pretrain.setup(
        "tiny",
        Config(
            name="tiny",
            block_size=length,
            padded_vocab_size=options.vocab_size + 5,
            n_layer=1,
            n_head=1,
            n_embd=16,
            intermediate_size=16,
        ),
        out_dir=options.run,
        precision="32-true",
        data=data,
        train=TrainArgs(
            save_interval=1,
            global_batch_size=batch_size,
            micro_batch_size=options.microbatch,
            max_tokens=(options.plan.num_steps or 0) * batch_size * length,
            max_seq_length=length,
            lr_warmup_steps=0,
            max_norm=1.0,
            tie_embeddings=False,
        ),
        eval=EvalArgs(interval=1000, max_iters=1000, final_validation=True),
        resume="auto",
        devices=int(os.environ.get("WORLD_SIZE", 1)),
        logger_name="csv",
    )


if __name__ == "__main__":
    main(__doc__, train)
