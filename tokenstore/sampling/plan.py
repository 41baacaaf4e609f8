"""Plan: the pure function batch = f(step, rank), and the questions it answers by arithmetic."""

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.order.schedule import DROP, ERROR, STOP, Schedule, Stage, cursor_of, lay_out
from tokenstore.order.split import divisors_below, first_row
from tokenstore.order.weights import integer_shares
from tokenstore.order.windows import num_windows
from tokenstore.sampling.config import PlanConfig, SourceConfig
from tokenstore.sampling.identity import check_same_past, check_state, fingerprint_of, make_state, past_of
from tokenstore.sampling.sampler import Order, Sampler
from tokenstore.sampling.spans import DOCUMENT, DOCUMENT_START, LENGTH, START
from tokenstore.sampling.tables import Tables
from tokenstore.store import Store, open_store

_MANY_EPOCHS = 4  # beyond about four passes repeated text adds little (Muennighoff et al., 2023)


class Piece(NamedTuple):
    """Tokens [start, stop) of a document of a source."""

    source: str
    document: int
    start: int
    stop: int


@dataclass(frozen=True)
class SourceProgress:
    """A source after some steps.

    Attributes:
        sequences, tokens: of this source, exactly; those of skipped steps count as used.
        epochs: passes over it, exactly sequences / sequences an epoch.
        weight: its share of the sequences asked for in the stage the last step belongs to.
        realised_weight: its share of the sequences so far, over all stages.
    """

    sequences: int
    tokens: int
    epochs: float
    weight: float
    realised_weight: float


class Plan:
    """An immutable plan over opened stores. Safe to share among threads and to pickle (by configuration)."""

    def __init__(self, config: PlanConfig):
        """Open the stores of `config` and lay the plan out.

        Raises:
            ConfigError: a plan that cannot be had: a source too short, mixed tokenizers, a source that would run out.
            TokenStoreError: a store that cannot be opened.
        """
        self.config = config
        self.stores = {name: open_store(config.sources[name].path) for name in sorted(config.sources)}
        _check_stores(self.stores)
        self.num_sequences = {name: self._sequences_of(name, store) for name, store in self.stores.items()}
        self.schedule = self._lay_out()
        self._order = Order(
            self.schedule,
            tuple(self.stores),
            config.seed,
            config.sequence_length,
            config.shuffle,
            config.cross_document_targets,
        )
        self._sampler = self.sampler()
        self._lock = threading.Lock()
        self._warn_of_many_epochs()

    @classmethod
    def of(
        cls,
        stores: str | Path | Mapping[str, str | Path],
        sequence_length: int,
        global_batch_size: int,
        seed: int = 0,
        weights: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Self:
        """The short form: one store, or several by name with their weights; `fields` are those of PlanConfig."""
        paths = dict(stores) if isinstance(stores, Mapping) else {Path(stores).name: stores}
        if unknown := sorted(set(weights or {}) - set(paths)):
            raise ConfigError(f"weights: expected names of stores ({', '.join(paths)}), found {unknown}")
        sources = {name: SourceConfig(path=str(path), weight=(weights or {}).get(name)) for name, path in paths.items()}
        config = PlanConfig(
            sequence_length=sequence_length, global_batch_size=global_batch_size, seed=seed, sources=sources, **fields
        )
        return cls(config)

    def __reduce__(self) -> tuple:
        paths = {name: str(store.path) for name, store in self.stores.items()}
        sources = {
            name: source.model_copy(update={"path": paths[name]}) for name, source in self.config.sources.items()
        }
        digests = {name: store.digest for name, store in self.stores.items()}
        return _reopen, (self.config.model_copy(update={"sources": sources}), digests)

    def __repr__(self) -> str:
        steps = "endless" if self.num_steps is None else f"{self.num_steps} steps"
        return f"Plan({', '.join(self.stores)}; {steps} of {self.global_batch_size(0)} x {self.config.sequence_length})"

    # ---- laying out

    def _sequences_of(self, name: str, store: Store) -> int:
        sequences = num_windows(store.num_tokens, self.config.sequence_length)
        if sequences == 0:
            raise ConfigError(
                f"source {name}: expected at least one sequence of {self.config.sequence_length} tokens,"
                f" found {store.num_tokens} tokens ({store.path}); use a shorter sequence_length or leave it out"
            )
        return sequences

    def _lay_out(self) -> Schedule:
        config = self.config
        stages = self._stages()
        word = config.num_steps if isinstance(config.num_steps, str) else None
        on_exhausted = {"first_exhausted": STOP, "all_exhausted": DROP}.get(word or "", config.on_exhausted or ERROR)
        epochs = {name: source.max_epochs or (1 if word else None) for name, source in config.sources.items()}
        limits = {name: limit * self.num_sequences[name] for name, limit in epochs.items() if limit}
        num_steps = None if isinstance(config.num_steps, str) else config.num_steps
        schedule = lay_out(stages, limits, on_exhausted, num_steps, sorted(config.skip_steps))
        if schedule.exhausted is not None:
            self._refuse(stages, schedule, num_steps)
        if schedule.num_steps == 0:
            raise ConfigError(
                f"plan: expected at least one step of {stages[0].global_batch_size} sequences,"
                f" found {schedule.end} sequences in all; use a smaller global_batch_size or more epochs"
            )
        return schedule

    def _stages(self) -> tuple[Stage, ...]:
        config = self.config
        weights: dict[str, Any] = {name: source.weight for name, source in config.sources.items() if source.weight}
        if not weights:  # all left out: every source ends its epochs with the others
            weights = dict(self.num_sequences)
        size = config.global_batch_size
        stages = [Stage(0, size, integer_shares(weights))]
        for stage in config.stages:
            size = stage.global_batch_size or size
            stages.append(Stage(stage.from_step, size, integer_shares(stage.weights)))
        return tuple(stages)

    def _refuse(self, stages: Sequence[Stage], schedule: Schedule, num_steps: int | None) -> None:
        """Say which source runs out, when, what it would need, and what would work."""
        cursor, name = schedule.exhausted or (0, "")
        allowed = self.config.sources[name].max_epochs
        if num_steps is None:
            need = "an endless plan needs any number"
        else:
            free = lay_out(stages, {}, ERROR, num_steps)
            needed = free.counts(cursor_of(stages, num_steps)).get(name, 0) / self.num_sequences[name]
            need = f"{num_steps} steps need {needed:.2f}"
        raise ConfigError(
            f"source {name}: expected it to last, found that it runs out in step {schedule.step_of(cursor)}:"
            f" {allowed} epochs of {self.num_sequences[name]} sequences are allowed, {need}. The longest plan that works has"
            f" num_steps: {schedule.num_steps}; or raise max_epochs, lower its weight, or set on_exhausted: drop or stop"
        )

    def _warn_of_many_epochs(self) -> None:
        if self.schedule.end is None:
            return
        for name, count in self.schedule.counts(self.schedule.end).items():
            epochs = count / self.num_sequences[name]
            if epochs > _MANY_EPOCHS and self.config.sources[name].max_epochs is None:
                warnings.warn(
                    f"source {name} is repeated {epochs:.1f} times in this plan; lower its weight or set max_epochs",
                    stacklevel=3,
                )

    # ---- what the plan is

    @property
    def num_steps(self) -> int | None:
        """Steps of the plan, skipped ones counted; None when it is endless."""
        return self.schedule.num_steps

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the whole plan, hex."""
        return fingerprint_of(self._past(None))

    def past(self, step: int) -> str:
        """Canonical JSON of everything that decided steps [0, step) and nothing else."""
        return self._past(step)

    def _past(self, step: int | None) -> str:
        constants = {
            "seed": self.config.seed,
            "sequence_length": self.config.sequence_length,
            "packing": self.config.packing,
            "shuffle": self.config.shuffle,
            "cross_document_targets": self.config.cross_document_targets,
        }
        identities = {
            name: {"digest": store.digest, "num_sequences": self.num_sequences[name]}
            for name, store in self.stores.items()
        }
        return past_of(self.schedule, constants, identities, step)

    def global_batch_size(self, step: int) -> int:
        """Sequences of `step` over all ranks."""
        return self.schedule.stage(step).global_batch_size

    def step_at(self, num_updates: int) -> int:
        """The step that comes after `num_updates` steps have been given: skipped ones are not counted as updates."""
        step = num_updates
        for start, stop in self.schedule.skip_steps:
            step += stop - start if start <= step else 0
        return step

    # ---- state

    def state(self, step: int, cursor: int | None = None) -> dict[str, int | str]:
        """The state of a run that is to give `step` next (or goes on inside it, at `cursor`)."""
        start = self.schedule.cursor(step)
        cursor = start if cursor is None else cursor
        return make_state(step, cursor, self.past(step if cursor == start else step + 1))

    def check_state(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """(step, sequences of it already given) of a state of this plan.

        Raises: StateMismatchError: the state is of another plan, another version, or damaged.
        """
        check_state(state)
        step, cursor = int(state["step"]), int(state["cursor"])
        start = self.schedule.cursor(step)
        past_end = step if cursor == start else step + 1
        check_same_past(str(state["past"]), self.past(past_end), past_end)
        return step, cursor - start

    # ---- the pure function

    def sampler(self) -> Sampler:
        """A new Sampler over this plan, for one thread."""
        tables = Tables(
            list(self.stores.values()), list(self.stores), list(self.num_sequences.values()), self.config.seed
        )
        return Sampler(self._order, tables)

    def batch(
        self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None
    ) -> dict[str, np.ndarray]:
        """What `rank` is given in `step`.

        Args:
            step: 0 <= step < num_steps, not skipped.
            rank, world_size: data-parallel rank and size.
            microbatch_size: sequences of a microbatch; the rank's microbatches stand one after the other. Left out: one.
        Returns: `input_ids` and `targets`, int64[global_batch_size / world_size, sequence_length]. A target is the token
            that follows in the document, -100 at the document's last token.
        """
        with self._lock:
            rows = self._rows(step, rank, world_size, microbatch_size)
            shape = (len(rows), self.config.sequence_length)
            batch = {"input_ids": np.empty(shape, np.int64), "targets": np.empty(shape, np.int64)}
            self._sampler.fill(rows, batch["input_ids"], batch["targets"])
            return batch

    def documents(
        self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None
    ) -> list[list[Piece]]:
        """The pieces of every sequence that `batch` gives for the same arguments, in the same order."""
        names = tuple(self.stores)
        with self._lock:
            sequences = []
            for row in self._rows(step, rank, world_size, microbatch_size):
                spans = self._sampler.spans(row)
                start = spans[:, START] - spans[:, DOCUMENT_START]
                columns = zip(spans[:, DOCUMENT].tolist(), start.tolist(), spans[:, LENGTH].tolist(), strict=True)
                sequences.append([Piece(names[row[0]], document, at, at + size) for document, at, size in columns])
            return sequences

    def _rows(self, step: int, rank: int, world_size: int, microbatch_size: int | None) -> np.ndarray:
        self.check_step(step)
        size = self.global_batch_size(step)
        microbatch_size = check_split(size, rank, world_size, microbatch_size)
        blocks = [
            self._sampler.locate(step, first_row(j, rank, world_size, microbatch_size), microbatch_size)
            for j in range(size // (world_size * microbatch_size))
        ]
        return np.concatenate(blocks)

    def check_step(self, step: int) -> None:
        """Refuse a step that the plan does not have, or skips."""
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            raise ValueError(f"step: expected one in 0..{self.num_steps}, found {step}")
        if self.schedule.is_skipped(step):
            raise ValueError(
                f"step: expected one that is not skipped, found {step}; skip_steps: {self.schedule.skip_steps}"
            )

    # ---- questions

    def progress(self, step: int) -> dict[str, SourceProgress]:
        """Every source after steps [0, step), exactly, without replay."""
        counts = self.schedule.counts(self.schedule.cursor(step))
        stage = self.schedule.stage(max(step - 1, 0))
        period, total = sum(stage.shares.values()), max(sum(counts.values()), 1)
        return {
            name: SourceProgress(
                sequences=counts.get(name, 0),
                tokens=counts.get(name, 0) * self.config.sequence_length,
                epochs=counts.get(name, 0) / self.num_sequences[name],
                weight=stage.shares.get(name, 0) / period,
                realised_weight=counts.get(name, 0) / total,
            )
            for name in self.stores
        }


def check_split(batch_size: int, rank: int, world_size: int, microbatch_size: int | None) -> int:
    """The microbatch size (the whole share of a rank if None), checked so that all ranks get equal microbatches (P5)."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank: expected 0 <= rank < world_size, found rank {rank} of {world_size}")
    if batch_size % world_size:
        raise ConfigError(
            f"world_size: expected a divisor of the global batch of {batch_size} sequences, found {world_size};"
            f" these would do: {divisors_below(batch_size, batch_size)}"
        )
    share = batch_size // world_size
    size = share if microbatch_size is None else microbatch_size
    if size < 1 or share % size:
        raise ConfigError(
            f"microbatch_size: expected a divisor of a rank's {share} sequences ({batch_size} over {world_size} ranks),"
            f" found {size}; these would do: {divisors_below(share, share)}"
        )
    return size


def _check_stores(stores: Mapping[str, Store]) -> None:
    """All stores speak of the same tokens; the same store twice is worth a warning."""
    identities: dict[tuple, str] = {}
    digests: dict[str, str] = {}
    for name, store in stores.items():
        tokenizer = store.manifest.tokenizer
        identities.setdefault((tokenizer.kind, tokenizer.sha256, store.vocab_size), name)
        other = digests.setdefault(store.digest, name)
        if other != name:
            warnings.warn(f"sources {other} and {name} are the same store ({store.digest[:12]}...)", stacklevel=4)
    if len(identities) > 1:
        rows = ", ".join(
            f"{name}: {kind} {(sha or '')[:12]} with {size} ids" for (kind, sha, size), name in identities.items()
        )
        raise ConfigError(
            f"sources: expected stores of one tokenizer, found {len(identities)} ({rows}); build them with the same tokenizer"
        )


def _reopen(config: PlanConfig, digests: Mapping[str, str]) -> Plan:
    """Unpickle a plan: open its stores again, which must still be the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said where the plan was made first
        plan = Plan(config)
    for name, store in plan.stores.items():
        if store.digest != digests[name]:
            raise CorruptionError(
                f"source {name}: expected the store {digests[name]}, found {store.digest} ({store.path});"
                " it was replaced while a run was using it; start the run again"
            )
    return plan
