"""Train a plan with the Trainer of torchtitan, in either of its contracts, on the CPU.

    python -m tokenstore.examples.trainers.torchtitan_trainer DATA RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.torchtitan_trainer DATA RUN

torchtitan is written for GPUs. `on_the_cpu` changes what does not run without one; none of it concerns data.
If it is killed, the same command continues.
"""

import os
import socket
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torchtitan.tools.utils as titan_utils
from torch.nn import functional
from torch.nn.attention.flex_attention import create_mask

titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu  # before other modules import these names

import torchtitan.distributed.utils as distributed  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.components.validate import Validator  # noqa: E402
from torchtitan.config import CommConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from tokenstore.examples.trainers import journal  # noqa: E402
from tokenstore.examples.trainers.common import Options, main  # noqa: E402
from tokenstore.trainers.torchtitan import FLAT, PlanDataLoader  # noqa: E402

try:
    from torchtitan.components.checkpoint import CheckpointManager
except ImportError:  # the new contract
    from torchtitan.components.checkpointer import CheckpointManager


CPU: dict[str, Any] = {  # what torchtitan calls of the module of a device, besides what torch.cpu has
    "set_device": None,
    "get_device_name": "CPU",
    "get_device_properties": SimpleNamespace(total_memory=1 << 34),
    "reset_peak_memory_stats": None,
    "empty_cache": None,
    "memory_stats": {},
}


def flat_attention(
    self: Any, q_TNH: torch.Tensor, k_TNH: torch.Tensor, v_TNH: torch.Tensor, *, attention_masks: Any, **kwargs: Any
) -> torch.Tensor:
    """`dense_attention` of the new contract, whose tensors are float[B * L, heads, size]."""
    attended = dense_attention(self, q_TNH[None], k_TNH[None], v_TNH[None], attention_masks=attention_masks, **kwargs)
    return attended[0]


class NoTokenizer(BaseTokenizer):
    """A tokenizer for torchtitan, which asks for one and loads it. A plan's data are token ids, so it never encodes or decodes."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """No settings."""

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        """No text is encoded: a call means that torchtitan reads its own data instead of the plan."""
        raise RuntimeError("expected token ids from a plan, but torchtitan encodes text; check config.dataloader")

    def decode(self, *args: Any, **kwargs: Any) -> str:
        """No ids are decoded: torchtitan only trains here."""
        raise RuntimeError("expected training alone, but torchtitan decodes token ids, for which there is no tokenizer")

    def get_vocab_size(self) -> int:
        """Not used."""
        return 0


def dense_attention(
    self: Any,
    q_BLNH: torch.Tensor,
    k_BLNH: torch.Tensor,
    v_BLNH: torch.Tensor,
    *,
    attention_masks: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """FlexAttention on the CPU: the same mask, as a tensor. Tensors are float[B, L, heads, size]."""
    batch, length = q_BLNH.shape[:2]
    mask = create_mask(attention_masks.mask_mod, batch, 1, length, length, device="cpu")
    heads = [each.transpose(1, 2) for each in (q_BLNH, k_BLNH, v_BLNH)]
    options: dict[str, Any] = {"enable_gqa": kwargs.get("enable_gqa", False), "scale": kwargs.get("scale")}
    attended = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=mask, **options)
    return attended.transpose(1, 2)


def on_the_cpu() -> None:
    """Replace what needs a GPU."""
    FlexAttention.forward = flat_attention if FLAT else dense_attention
    distributed.set_pg_timeouts = lambda *args, **kwargs: None
    if "RANK" not in os.environ:  # one process, without torchrun
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        os.environ |= dict(zip(names, ("0", "0", "1", "1", "127.0.0.1", port), strict=True))
    for name, value in CPU.items():
        setattr(torch.cpu, name, lambda *args, value=value, **kwargs: value)


def configuration(options: Options) -> Any:
    """The configuration of a tiny Llama."""
    world_size, length = int(os.environ["WORLD_SIZE"]), options.plan.config.sequence_length
    batch_size = options.plan.global_batch_size(0)
    sizes: dict[str, Any] = (
        {
            "max_context_length": length,
            "num_tokens_per_microbatch_per_dp_rank": options.microbatch * length,
            "num_tokens_per_train_step": batch_size * length,
        }
        if FLAT
        else {"seq_len": length, "local_batch_size": options.microbatch, "global_batch_size": batch_size}
    )
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:1]
    # data
    dataloader = PlanDataLoader.Config(plan="plan.yaml", prefetch=options.workers)
    validation = PlanDataLoader.Config(plan="evaluation.yaml")
    # end
    return Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        tokenizer=NoTokenizer.Config(),
        dataloader=dataloader,
        validator=Validator.Config(enable=True, freq=options.plan.num_steps or 1, steps=-1, dataloader=validation),
        dump_folder=str(options.run),
        optimizer=default_adamw(lr=0.01),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
        training=TrainingConfig(
            steps=options.plan.num_steps or 0, mixed_precision_param="float32", disable_cuda_graphs=True, **sizes
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
        parallelism=ParallelismConfig(data_parallel_shard_degree=world_size, spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(enable=True, interval=1, last_save_model_only=False, keep_latest_k=0),
        comm=CommConfig(),
    )


def record(trainer: Any, options: Options) -> None:
    """Record what is trained, logged and restored."""
    journal.watch(trainer.model_parts[0], options.plan, options.eval_plan)
    processor, load = trainer.metrics_processor, trainer.checkpointer.load
    log, log_validation = processor.log, processor.log_validation

    def logged(step: int, global_avg_loss: float, *args: Any, **kwargs: Any) -> None:
        journal.loss(step - 1, global_avg_loss)
        log(step, global_avg_loss, *args, **kwargs)

    def validated(loss: float, step: int) -> None:
        if step == options.plan.num_steps:
            journal.evaluated(loss)
        log_validation(loss=loss, step=step)

    def loaded(*args: Any, **kwargs: Any) -> Any:
        found = load(*args, **kwargs)
        journal.resumed(trainer.step)
        return found

    validate = trainer.validator.validate

    def validating(*args: Any, **kwargs: Any) -> None:
        journal.write("evaluating")
        validate(*args, **kwargs)

    trainer.validator.validate = validating
    processor.log, processor.log_validation, trainer.checkpointer.load = logged, validated, loaded


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    on_the_cpu()
    trainer = configuration(options).build()
    for module in trainer.model_parts[0].modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other reductions that FSDP would use
    record(trainer, options)
    try:
        trainer.train()
    finally:
        trainer.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(__doc__, train)
