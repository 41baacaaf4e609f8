"""PlanDataLoader: train plans with torchtitan, in a configuration in place of its own data loaders.

    config.dataloader = PlanDataLoader.Config(plan="plan.yaml")
    config.validator.dataloader = PlanDataLoader.Config(plan="val.yaml", infinite=False)

torchtitan has two contracts. Until August 2026, and in the wheels up to 0.3.0, a batch has rows, [B, L]. After that, a batch
is one row of tokens, [B * L], and its size is in tokens. This module follows the one that is installed.

The state is that of the plan and the same on every rank, so a run continues with any data-parallel degree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tokenstore.errors import ConfigError
from tokenstore.planning.plan import Plan
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.ranks import DataRank

if find_spec("torchtitan") is None:
    raise ImportError("torchtitan is not installed; pip install torchtitan")
FLAT = find_spec("torchtitan.components.data") is not None  # the new contract
if FLAT:
    from torchtitan.components.data.loader import BaseDataLoader
else:
    from torchtitan.components.dataloader import BaseDataLoader


class PlanDataLoader(BaseDataLoader):
    """The microbatches of a plan for one data-parallel rank, as `({"input", "positions"}, labels)`.

    A step of torchtitan is a step of the plan if `training.global_batch_size` (in sequences; in tokens in the new contract)
    is that of the plan. This is checked whenever a checkpoint is saved, because torchtitan does not pass it to its loader.

    Attributes:
        plan: the plan.
        Config: the configuration.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """The configuration of a PlanDataLoader.

        Attributes:
            plan: path of the plan file.
            infinite, repeat: whether an iteration continues where the last one stopped, as training does. If either is false,
                each iteration yields the whole plan, for validation. torchtitan sets `infinite` in 0.3.0, later `repeat`.
            prefetch: microbatches to make ahead in a thread, as in TokenLoader.
            nodes: as in TokenLoader.
        """

        plan: str
        infinite: bool = True
        repeat: bool = True
        prefetch: int = 0
        nodes: int | None = None

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        **kwargs: Any,
    ):
        """Make a loader. torchtitan calls this through `Config.build`.

        Args:
            config: the configuration.
            dp_world_size: number of data-parallel ranks.
            dp_rank: the data-parallel rank.
            seq_len, local_batch_size: tokens of a sequence, and sequences of a microbatch (0.3.0).
            max_context_length, num_tokens_per_batch: tokens of a sequence, and of a microbatch (new contract).
            kwargs: not used; the tokenizer, for example.

        Raises:
            ConfigError: the sizes are not those of the plan.
        """
        self.plan = plan = Plan(config.plan)
        length = plan.config.sequence_length
        if local_batch_size is None:
            local_batch_size = _sequences(num_tokens_per_batch or 0, length)
        name, found = ("max_context_length", max_context_length) if seq_len is None else ("seq_len", seq_len)
        if found is not None and found != length:
            raise ConfigError(
                f"training.{name}: expected {length}, the sequence_length of the plan, found {found}; set it in"
                " torchtitan's configuration"
            )
        endless = config.infinite and config.repeat
        self._loader: TokenLoader[Any] = TokenLoader(
            plan,
            rank=DataRank(dp_rank, dp_world_size),
            nodes=config.nodes,
            microbatch_size=local_batch_size,
            format="torchtitan_flat" if FLAT else "torchtitan",
            prefetch=config.prefetch,
            restart=not endless,
            skip_empty=not endless,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        return iter(self._loader)

    def __len__(self) -> int:
        """Microbatches per rank in the whole plan. Raises: TypeError: the plan is endless."""
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """The state of the plan.

        Raises: ConfigError: the loader is inside a step, so a step of torchtitan is not a step of the plan.
        """
        if not self._loader.step_ended:
            expected = self.plan.global_batch_size(self._loader.step)
            raise ConfigError(
                f"training.global_batch_size: a step of torchtitan ended inside step {self._loader.step} of the plan; expected"
                f" {expected} sequences, or {expected * self.plan.config.sequence_length} tokens in the new contract"
            )
        return dict(self._loader.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state. Raises: StateMismatchError: it is from a run with another history."""
        self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Release memory maps and stop the prefetching thread."""
        self._loader.close()


def _sequences(num_tokens: int, length: int) -> int:
    """Sequences in a microbatch of tokens. Raises: ConfigError: it is not a whole number."""
    if num_tokens < 1 or num_tokens % length:
        raise ConfigError(
            f"num_tokens_per_microbatch_per_dp_rank: expected a multiple of {length}, the sequence_length of the plan, found"
            f" {num_tokens}; set it in torchtitan's configuration"
        )
    return num_tokens // length
