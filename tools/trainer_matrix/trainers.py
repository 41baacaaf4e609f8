"""The trainers of the matrix, and what is run of each."""

from dataclasses import dataclass, field

SCENARIOS = ("uninterrupted", "resumed", "other world", "other workers", "mid-step state", "evaluation")


@dataclass(frozen=True)
class Trainer:
    """A row of the matrix.

    Attributes:
        title: its name in the matrix.
        example: its module in tokenstore.examples.trainers.
        package: the distribution whose version is shown.
        environment: the environment of .ci/trainers that has it; "base" is the one that also runs the default tests.
        loss: what the trainer reports as the loss of a step: the mean over all "targets"; over "microbatches" of rank 0, each
            a mean over its targets; over "ranks", likewise; or the "last" microbatch of rank 0.
        scaled: whether the microbatch size is halved with twice the ranks, because the trainer counts microbatches of a rank.
        whole_steps: whether a batch is a rank's whole share of a step, which the trainer divides into microbatches itself.
        inside: whether the example saves inside a step; otherwise a run that is killed there starts the step again.
        lag: steps by which the last checkpoint may be older than the kill, because the trainer saves in the background.
        not_run: {scenario: the reason why it is not run}.
        needs: names of checkouts that the example imports, because they are no packages.
        launcher: whether torchrun starts the ranks. Otherwise the example has --ranks.
    """

    title: str
    example: str
    package: str
    environment: str = "base"
    loss: str = "targets"
    scaled: bool = False
    whole_steps: bool = False
    inside: bool = False
    lag: int = 0
    not_run: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    launcher: bool = True

    @property
    def folder(self) -> str:
        """The folder of its runs."""
        return self.title.replace(" ", "-").replace(",", "")


_PER_WORKER = "its state is per worker; use TokenNode"
TRAINERS = (
    Trainer("torch.distributed.checkpoint", "plain", "torch", inside=True),
    Trainer("Hugging Face Trainer", "hf", "transformers"),
    Trainer("Lightning", "lightning_module", "lightning"),
    Trainer("torchdata nodes", "torchdata_nodes", "torchdata", inside=True),
    Trainer(
        "torchdata StatefulDataLoader",
        "stateful_dataloader",
        "torchdata",
        inside=True,
        not_run={"other world": _PER_WORKER, "other workers": _PER_WORKER},
    ),
    Trainer("accelerate", "accelerate_loop", "accelerate"),
    Trainer("TRL SFTTrainer", "trl_sft", "trl", "trl"),
    Trainer("DeepSpeed", "deepspeed_engine", "deepspeed", "deepspeed"),
    Trainer("torchtitan", "torchtitan_trainer", "torchtitan", "torchtitan"),
    Trainer("torchtitan, new contract", "torchtitan_trainer", "torchtitan", "torchtitan", needs=("torchtitan",)),
    Trainer("Megatron-core", "megatron_core", "megatron-core", "megatron"),
    Trainer(
        "nanoGPT",
        "nanogpt",
        "torch",
        loss="last",
        needs=("nanogpt",),
        not_run={
            "other workers": "get_batch has no workers",
            "evaluation": "estimate_loss takes some microbatches only",
        },
    ),
    Trainer("JAX", "jax_loop", "jax", "jax", inside=True),
    Trainer("litgpt", "litgpt_pretrain", "litgpt", "litgpt", loss="microbatches", scaled=True),
    Trainer("OLMo-core", "olmo_core_trainer", "ai2-olmo-core", "olmo", loss="ranks", whole_steps=True),
    Trainer("Ray Train", "ray_train", "ray", "ray", launcher=False, lag=1),
    Trainer("Grain", "grain_dataset", "grain", inside=True),
)
