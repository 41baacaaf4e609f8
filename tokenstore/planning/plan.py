"""Plan: the pure function batch = f(step, rank), and everything else that can be computed about a run."""

import copy
import pickle
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack

from tokenstore.batches.packings import Packings
from tokenstore.batches.sampler import Order
from tokenstore.collector import paused_collector
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.planning.amend import Changes, amended_config
from tokenstore.planning.config import PlanConfig
from tokenstore.planning.feasibility import (
    check_stores,
    lay_out_plan,
    open_stores,
    pad_id,
    warn_if_suspicious,
    warn_of_padding,
    warn_of_shared_documents,
)
from tokenstore.planning.find import Finder, Occurrence
from tokenstore.planning.history import check_unchanged
from tokenstore.planning.notebook import plan_html
from tokenstore.planning.plan_fields import RunFields
from tokenstore.planning.progress import PieceLengths, SourceProgress, metrics_of, piece_lengths, progress_of
from tokenstore.planning.resolve import resolve_sources
from tokenstore.planning.source_config import Number, SourceConfig, SourceFields
from tokenstore.planning.step_rows import StepRows
from tokenstore.store import RemoteOptions
from tokenstore.store.files import renew_after_fork
from tokenstore.text import clip


class Plan(StepRows):
    """An immutable plan over opened stores. Can be shared among threads and pickled (by configuration).

    Attributes:
        config: the configuration.
        allow_links: as in `open_store`, absolute.
        remote: as in `open_store`.
        stores: the opened stores, by the names of their sources.
        sources: the sources that sequences are drawn from, sorted by name.
        num_sequences: sequences per epoch of each of them, by name.
        schedule: which source each sequence of the run comes from (ORD-5).
        pad_id: the token id that fills unused positions (ORD-11).

    Example:
        >>> plan = Plan.of({"web": "stores/web"}, sequence_length=2048, global_batch_size=64)
        >>> plan.batch(step=0, rank=0, world_size=8)["input_ids"].shape
        (8, 2048)
    """

    @paused_collector()
    def __init__(
        self,
        config: PlanConfig | str | Path,
        allow_links: str | Path | None = None,
        remote: RemoteOptions | None = None,
    ):
        """Open the stores of `config` and compute the schedule.

        Args:
            config: a configuration, or the path of a plan.yaml (or JSON) file.
            allow_links, remote: as in `open_store`. They are not part of the plan, its states or its fingerprint.

        Raises:
            ConfigError: the plan is infeasible: a source is too short or would run out, or stores have different tokenizers.
            TokenStoreError: a store cannot be opened.
        """
        config = PlanConfig.load(config) if isinstance(config, str | Path) else config
        self.config = config = copy.deepcopy(config)  # the caller may change theirs
        self.allow_links = None if allow_links is None else Path(allow_links).absolute()
        self.remote = remote
        self.stores = open_stores(config, self.allow_links, remote)
        check_stores(self.stores)
        self.sources = resolve_sources(config, self.stores)
        self.num_sequences = {source.name: source.num_sequences for source in self.sources}
        self.schedule = lay_out_plan(config, self.num_sequences)
        self.pad_id = pad_id(self.sources, self.schedule)
        self._order = Order(
            self.schedule,
            tuple(self.num_sequences),
            config.seed,
            config.sequence_length,
            config.packing != "concat",
            config.shuffle,
            config.cross_document_targets,
            self.pad_id,
            config.align or 0,
            config.row_costs,
            tuple(source.lanes for source in self.sources) if any(source.lanes for source in self.sources) else (),
        )
        for source in self.sources:
            if source.lanes is not None and (files := self.stores[source.name].token_files) is not None:
                files.prefer_blocks()
        self._renew()
        renew_after_fork(self, Plan._renew)
        used = {name for stage in self.schedule.stages for name in stage.shares}
        warn_of_shared_documents(self.sources)
        warn_of_padding([source for source in self.sources if source.name in used], config.sequence_length)
        warn_if_suspicious(config, self.num_sequences, self.schedule)

    @classmethod
    def of(
        cls,
        stores: str | Path | Mapping[str, str | Path],
        sequence_length: int,
        global_batch_size: int,
        seed: int = 0,
        weights: Mapping[str, Number] | None = None,
        allow_links: str | Path | None = None,
        remote: RemoteOptions | None = None,
        **fields: Unpack[RunFields],
    ) -> Self:
        """Create a plan without a configuration object.

        Args:
            stores: the path or URL of one store, or several by name.
            sequence_length, global_batch_size, seed: as in `PlanConfig`.
            weights: weights of the stores, by name. Default: in proportion to their sequences.
            allow_links, remote: as in `open_store`.
            fields: any other fields of `PlanConfig`.

        Raises:
            ConfigError, TokenStoreError: as in `Plan`.
        """
        paths = dict(stores) if isinstance(stores, Mapping) else {Path(stores).name: stores}
        if unknown := sorted(set(weights or {}) - set(paths)):
            raise ConfigError(f"weights: expected names of stores ({', '.join(paths)}), found {unknown}")
        sources: dict[str, SourceConfig | SourceFields] = {
            name: {"path": str(path), "weight": (weights or {}).get(name)} for name, path in paths.items()
        }
        config = PlanConfig(
            sequence_length=sequence_length, global_batch_size=global_batch_size, seed=seed, sources=sources, **fields
        )
        return cls(config, allow_links, remote)

    def __reduce__(self) -> tuple[Callable[[bytes], "Plan"], tuple[bytes]]:
        found: dict[str, dict[str, Any]] = {
            name: {"path": store.place, "version": store.version} for name, store in self.stores.items()
        }
        sources = {name: replace(source, **found.get(name, {})) for name, source in self.config.sources.items()}
        digests = {name: store.digest for name, store in self.stores.items()}
        config = replace(self.config, sources=sources)
        packed = zlib.compress(pickle.dumps((config, digests, self.allow_links, self.remote)))
        return _reopen, (packed,)  # compressed, because it is sent to every worker

    def amended(self, from_step: int, **changes: Unpack[Changes]) -> "Plan":
        """A plan with the same steps [0, from_step) and other steps after them.

        A state that was saved at or before `from_step` resumes in it. Stages after `from_step` stay. The versions of the
        stores are set in the new configuration, so that it keeps its history when they grow. `config.save` writes it to a file.

        Args:
            from_step: the first step that may change: 1 or more.
            changes: one or more of `weights` (of all sources that take part from then on), `global_batch_size`,
                `batch_ramp`, `sources` (new ones by name, with a weight in `weights`), `skip_steps` (ranges to skip too) and
                `num_steps` (a number, `first_exhausted`, `all_exhausted` or `endless`).

        Raises:
            ConfigError: a change is invalid, or the new plan is infeasible.
            StateMismatchError: steps before `from_step` would change too.
            ValueError: the plan has no such step.

        Example:
            >>> plan = plan.amended(5000, weights={"web": 0.5, "code": 0.5})
            >>> plan.config.save("plan.yaml")
        """
        from_step = self.check_start(from_step)
        versions = {name: store.version for name, store in self.stores.items()}
        sources = {
            name: replace(source, version=versions[name]) if name in versions else source
            for name, source in self.config.sources.items()
        }
        config = amended_config(replace(self.config, sources=sources), self.num_sequences, from_step, changes)
        plan = Plan(config, self.allow_links, self.remote)
        check_unchanged("amend", self.history(from_step), plan.history(from_step), from_step)
        return plan

    def __repr__(self) -> str:
        steps = "endless" if self.num_steps is None else f"{self.num_steps} steps"
        names = clip(", ".join(self.num_sequences), 80)
        return f"Plan({names}; {steps} of {self.global_batch_size(0)} x {self.config.sequence_length})"

    def _repr_html_(self) -> str:
        return plan_html(self)

    # ---- where the run is, and where documents are

    def progress(self, step: int) -> dict[str, SourceProgress]:
        """Progress of every source after steps [0, step), computed without replay. `step` is at most num_steps."""
        length = self.config.sequence_length
        return progress_of(self.schedule, self.sources, self._piece_lengths, length, self.check_start(step))

    def metrics(self, step: int) -> dict[str, int | float]:
        """`progress(step)` as a flat dict of numbers for the log of a run; `tokenstore.planning.progress` lists the keys."""
        return metrics_of(self.check_start(step), self.progress(step), self.config.sequence_length)

    @cached_property
    def _piece_lengths(self) -> dict[str, PieceLengths | None]:
        return {source.name: piece_lengths(source, self.config.sequence_length) for source in self.sources}

    def find(
        self, source: str, document: int, epoch: int | None = None, steps: range | tuple[int, int] | None = None
    ) -> Iterator[Occurrence]:
        """Yield each appearance of a document: (epoch, step, row, start, stop) of each of its pieces, in order of step.

        Skipped steps are omitted. In an endless plan the iterator is endless, so take a part of it, or pass `epoch` or `steps`.

        Args:
            source: name of a source with a path; for a pool, of the member.
            document: number of the document in its store.
            epoch: only this pass (from 0) over the source, or over the pool it belongs to.
            steps: only steps in [first, last); steps after the plan's end are ignored.

        Raises:
            ValueError: unknown source, or invalid epoch or steps.
            IndexError: the store has no such document.
        """
        return self._finder.find(source, document, epoch, None if steps is None else self._steps_of(steps))

    @cached_property
    def _finder(self) -> Finder:
        packings = Packings(self.sources, self.stores, self.config.seed, self.config.shuffle)
        config = self.config
        return Finder(self.schedule, self.sources, packings, config.seed, config.sequence_length, config.shuffle)


def as_plan(plan: Plan | str | Path) -> Plan:
    """`plan` itself, or the plan in the file at that path."""
    if not isinstance(plan, Plan | str | Path):
        raise TypeError(f"plan: expected a Plan or the path of a plan file, found {type(plan).__name__}")
    return plan if isinstance(plan, Plan) else Plan(plan)


def _reopen(packed: bytes) -> Plan:
    """Unpickle a plan: open its stores again. Their content must be the same."""
    config, digests, allow_links, remote = pickle.loads(zlib.decompress(packed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown where the plan was created
        plan = Plan(config, allow_links, remote)
    for name, store in plan.stores.items():
        if store.digest != digests[name]:
            raise CorruptionError(
                f"source {name}: expected the store {digests[name]}, found {store.digest} ({store.place});"
                " it was replaced while a run was using it; restart the run"
            )
    return plan
