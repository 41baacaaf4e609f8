"""Train a plan with the Trainer of OLMo-core.

python -m tokenstore.examples.trainers.olmo_core_trainer DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.olmo_core_trainer DATA RUN
"""

from typing import Any

import torch
import torch.distributed as dist
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerTrainModuleConfig
from olmo_core.train.train_module.transformer import TransformerDataParallelConfig

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, main, world
from tokenstore.trainers.common import evaluation_loader
from tokenstore.trainers.olmo_core import PlanDataLoader


class Record(Callback):
    """Records the reported losses and the position that was restored."""

    def pre_train(self) -> None:
        """Called after the checkpoint was loaded."""
        journal.resumed(self.trainer.global_step)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Called with the metrics of a step, numbered from 1."""
        if "train/CE loss" in metrics:
            journal.loss(step - 1, metrics["train/CE loss"])


@torch.no_grad()
def evaluate(module: Any, options: Options) -> None:
    """Evaluate a plan: the sum of the losses over the number of targets."""
    sums = torch.zeros(2, dtype=torch.float64)
    for batch in evaluation_loader(options.eval_plan, microbatch_size=options.microbatch):
        output = module.eval_batch({"input_ids": batch["input_ids"]}, labels=batch["targets"])
        sums += torch.tensor([output.ce_loss.sum(), (batch["targets"] != -100).sum()])
    if dist.is_initialized():
        dist.all_reduce(sums)
    journal.evaluated((sums[0] / sums[1]).item())


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    _, world_size = world()
    prepare_training_environment(seed=0, backend="gloo" if world_size > 1 else None)
    length = options.plan.config.sequence_length
    model = TransformerConfig.llama_like(d_model=16, vocab_size=options.vocab_size, n_layers=1, n_heads=1).build()
    scores: list[torch.Tensor] = []
    model.lm_head.w_out.register_forward_hook(lambda module, args, output: scores.__setitem__(slice(None), [output]))
    journal.watch(model, options.plan, options.eval_plan, logits=lambda output: scores[0])
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=options.microbatch * length,
        max_sequence_length=length,
        optim=AdamWConfig(lr=0.01, fused=False),
        dp_config=TransformerDataParallelConfig(name=DataParallelType.ddp) if world_size > 1 else None,
    ).build(model, device=torch.device("cpu"))
    # data
    data_loader = PlanDataLoader(
        options.plan, work_dir=str(options.run), dp_process_group=module.dp_process_group, prefetch=options.workers
    )
    # end
    trainer = TrainerConfig(
        save_folder=str(options.run),
        save_overwrite=True,
        device="cpu",
        max_duration=Duration.epochs(1),
        metrics_collect_interval=1,
        callbacks={"checkpointer": CheckpointerCallback(save_interval=1, save_async=False), "record": Record()},
    ).build(module, data_loader)
    trainer.fit()
    evaluate(module, options)


if __name__ == "__main__":
    main(__doc__, train)
