"""Train a plan with the GPTModel of Megatron-core (local layers) on the CPU.

    python -m tokenstore.examples.trainers.megatron_core DATA RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.megatron_core DATA RUN

The iterators are those that `datasets_provider` makes for Megatron-LM's `pretrain`, which needs a GPU. Megatron-LM's
arguments are a stand-in with the names that the provider reads. If it is killed, the same command continues.
"""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, main, world
from tokenstore.trainers.megatron import datasets_provider


def arguments(options: Options, consumed_samples: int) -> SimpleNamespace:
    """What Megatron-LM's get_args() returns, as far as the provider reads it."""
    args = SimpleNamespace(
        dataloader_type="external",
        micro_batch_size=options.microbatch,
        global_batch_size=options.plan.global_batch_size(0),
        seq_length=options.plan.config.sequence_length,
        consumed_train_samples=consumed_samples,
    )
    training: Any = ModuleType("megatron.training")
    training.get_args = lambda: args
    sys.modules["megatron.training"] = training
    return args


def on_the_cpu() -> None:
    """Replace what needs a GPU: the device of buffers, and random states, which nothing here uses."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)


def make_model(options: Options) -> GPTModel:
    """A tiny GPT."""
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=options.vocab_size,
        max_sequence_length=options.plan.config.sequence_length,
        position_embedding_type="learned_absolute",
    )


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    rank, world_size = world()
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    on_the_cpu()
    parallel_state.initialize_model_parallel()
    torch.manual_seed(0)
    model = make_model(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    path = options.run / "checkpoint.pt"
    saved = torch.load(path, weights_only=True) if path.exists() else {"consumed": 0, "model": model.state_dict()}
    model.load_state_dict(saved["model"])
    args = arguments(options, saved["consumed"])
    # data
    provider = datasets_provider(options.plan, options.eval_plan, attention_mask=True, prefetch=options.workers)
    # end
    iterator, evaluation, _ = provider((0, 0, 0))
    first = args.consumed_train_samples // args.global_batch_size
    journal.resumed(first)
    sums = torch.zeros(2)

    def add(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss_func of Megatron-LM: the sum of the losses where loss_mask is 1."""
        losses = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
        loss: torch.Tensor = (losses * batch["loss_mask"]).sum()
        sums.add_(torch.stack([loss.detach(), batch["loss_mask"].sum()]))
        with torch.no_grad():
            scores = model(batch["tokens"], batch["position_ids"], batch["attention_mask"])
        rows = batch["tokens"].numpy()
        journal.batch(rows, model.training, journal.by_hand(rows, scores, options.plan, options.eval_plan))
        return loss

    def mean() -> tuple[float, float]:
        dist.all_reduce(sums)
        total, targets = sums.tolist()
        sums.zero_()
        return total / targets, targets

    for step in range(first, options.plan.num_steps or 0):
        for _ in range(args.global_batch_size // (args.micro_batch_size * world_size)):
            journal.kill_here()
            add(next(iterator)).backward()
        loss, targets = mean()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= targets
        optimizer.step()
        optimizer.zero_grad()
        journal.loss(step, loss)
        args.consumed_train_samples += args.global_batch_size
        if rank == 0:
            torch.save({"consumed": args.consumed_train_samples, "model": model.state_dict()}, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
    model.eval()
    with torch.no_grad():
        for _ in range(len(evaluation)):
            add(next(evaluation))
    journal.evaluated(mean()[0])


if __name__ == "__main__":
    main(__doc__, train)
