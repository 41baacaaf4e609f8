"""Plan: the pure function batch = f(step, rank), and everything else that can be computed about a run."""

import copy
import operator
import pickle
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import numpy as np

from tokenstore.batches.dealing import Dealer
from tokenstore.batches.packings import Packings
from tokenstore.batches.sampler import Order, Place, Sampler
from tokenstore.batches.tables import Tables
from tokenstore.errors import ConfigError, CorruptionError
from tokenstore.order.rank_rows import check_split, first_row
from tokenstore.planning.amend import Changes, amended_config
from tokenstore.planning.config import Number, PlanConfig, RunFields, SourceConfig, SourceFields
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
from tokenstore.planning.pieces import Piece, SequenceInfo, piece_of
from tokenstore.planning.progress import PieceLengths, SourceProgress, metrics_of, piece_lengths, progress_of
from tokenstore.planning.resolve import resolve_sources
from tokenstore.planning.timeline import Timeline
from tokenstore.store import RemoteOptions
from tokenstore.store.files import renew_after_fork
from tokenstore.text import clip


class Arrays(TypedDict):
    """The batch of a rank: two int64[sequences, sequence_length] arrays."""

    input_ids: np.ndarray
    targets: np.ndarray


class Plan(Timeline):
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
        )
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
        plan = Plan(config, self.allow_links)
        check_unchanged("amend", self.history(from_step), plan.history(from_step), from_step)
        return plan

    def __repr__(self) -> str:
        steps = "endless" if self.num_steps is None else f"{self.num_steps} steps"
        names = clip(", ".join(self.num_sequences), 80)
        return f"Plan({names}; {steps} of {self.global_batch_size(0)} x {self.config.sequence_length})"

    def _repr_html_(self) -> str:
        return plan_html(self)

    # ---- the pure function

    def _renew(self) -> None:
        """A lock and a sampler that no other thread has used."""
        self._lock = threading.Lock()
        self._own: tuple[Sampler, Dealer] | None = None

    @property
    def _sampler(self) -> Sampler:
        """The plan's own sampler, for the thread that holds the lock. A loader has another, and never needs this one."""
        if self._own is None:
            sampler = self.sampler()
            self._own = sampler, self.dealer(sampler)
        return self._own[0]

    @property
    def _dealer(self) -> Dealer:
        """The dealer of the plan's own sampler, for the thread that holds the lock."""
        return (self._own or (self._sampler, self.dealer(self._sampler)))[1]

    def sampler(self) -> Sampler:
        """A new Sampler over this plan, for use by one thread."""
        tables = Tables(self.stores, self.sources, self.config.seed)
        return Sampler(self._order, tables, Packings(self.sources, self.stores, self.config.seed, self.config.shuffle))

    def dealer(self, sampler: Sampler) -> Dealer:
        """A new Dealer over this plan, which uses `sampler`."""
        return Dealer(self._order, sampler)

    def batch(self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None) -> Arrays:
        """The batch of `rank` at `step`.

        Args:
            step: 0 <= step < num_steps, not skipped.
            rank, world_size: data-parallel rank, and number of ranks.
            microbatch_size: sequences per microbatch, as in the loader: it decides which rows of the step belong to this rank.
                The microbatches are concatenated. Default: all sequences of the rank are one microbatch.

        Returns:
            `input_ids` and `targets`, int64[global_batch_size / world_size, sequence_length]. A target is the next token of the
            document, and -100 at the document's last token.

        Raises:
            ValueError: the plan has no such step, or the global batch cannot be divided in this way.
            CorruptionError: a store is damaged or was replaced.
        """
        with self._lock:
            rows = self._rows(step, rank, world_size, microbatch_size)
            shape = (len(rows), self.config.sequence_length)
            batch: Arrays = {"input_ids": np.empty(shape, np.int64), "targets": np.empty(shape, np.int64)}
            self._sampler.fill(rows, batch["input_ids"], batch["targets"])
            return batch

    def documents(
        self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None
    ) -> list[list[Piece]]:
        """The pieces of each sequence that `batch` returns for the same arguments, in the same order."""
        names = tuple(self.stores)
        with self._lock:
            rows = self._rows(step, rank, world_size, microbatch_size)
            return [[piece_of(names, span) for span in spans.tolist()] for spans in self._sampler.spans(rows)]

    def sequence(self, sequence_id: int) -> SequenceInfo:
        """Look up a sequence by its global number, as in the batch field `sequence_ids`: where it is, and its documents.

        Numbers count the rows of all steps, on all ranks: row r of step s has the number of sequences before step s, plus r. So it
        does not depend on the number of ranks. Skipped steps count, and their sequences can be looked up too.

        Args:
            sequence_id: 0 or more, below the number of sequences of the plan.

        Raises:
            IndexError: the plan has no such sequence.

        Example:
            >>> info = plan.sequence(batch["sequence_ids"][3])
            >>> info.step, [piece.document for piece in info.pieces]
        """
        number = operator.index(sequence_id)
        end = self.schedule.cursor(self.last_start)
        if not 0 <= number < end:
            raise IndexError(f"sequence: expected a number in 0..{end - 1}, found {number}")
        step = self.schedule.step_of(number)
        row = number - self.schedule.cursor(step)
        with self._lock:
            located = self._sampler.locate(step, row, 1)
            (spans,) = self._sampler.spans(located)
        source, k = located[0].tolist()
        if source < 0:
            return SequenceInfo(step, row, None, None, None, ())
        names, stores = tuple(self.num_sequences), tuple(self.stores)
        pieces = tuple(piece_of(stores, span) for span in spans.tolist())
        return SequenceInfo(step, row, names[source], k, k // self.num_sequences[names[source]], pieces)

    def rows(self, step: int, rank: int = 0, world_size: int = 1, microbatch_size: int | None = None) -> np.ndarray:
        """The numbers in the step of the sequences that `batch` returns for the same arguments, in the same order.

        `find` and `SequenceDataset` use these numbers too. They do not depend on the number of ranks, the microbatch size or
        `balance`.

        Returns: int64[global_batch_size / world_size], numbers in 0..global_batch_size - 1.
        """
        with self._lock:
            places = self._places(step, rank, world_size, microbatch_size)
            return np.concatenate([self._dealer.numbers(place, rank, world_size) for place in places])

    def rows_of_place(self, place: Place, rank: int, world_size: int) -> Sequence[int]:
        """The numbers of the rows of one microbatch; see `Dealer.numbers`."""
        if self.config.row_costs is None:
            return range(place[1], place[1] + place[2])
        with self._lock:
            return [int(number) for number in self._dealer.numbers(place, rank, world_size)]

    def rank_of(self, step: int, row: int, world_size: int, microbatch_size: int | None = None) -> int:
        """The rank that receives row number `row` of a step.

        Raises: ValueError: the plan has no such step or row, or the global batch cannot be divided in this way.
        """
        size = self._places(step, 0, world_size, microbatch_size)[0][2]
        if not 0 <= row < self.global_batch_size(step):
            raise ValueError(f"row: expected 0 to {self.global_batch_size(step) - 1}, found {row}")
        with self._lock:
            return self._dealer.rank_of(operator.index(step), row, world_size, size)

    def _rows(self, step: int, rank: int, world_size: int, microbatch_size: int | None) -> np.ndarray:
        places = self._places(step, rank, world_size, microbatch_size)
        return self._dealer.locate_places(places, rank, world_size)

    def _places(self, step: int, rank: int, world_size: int, microbatch_size: int | None) -> list[Place]:
        """(step, first row, number of rows) of each microbatch of a rank."""
        self.check_step(step)
        step = operator.index(step)
        size = self.global_batch_size(step)
        microbatch_size = check_split(size, rank, world_size, microbatch_size)
        count = size // (world_size * microbatch_size)
        return [(step, first_row(j, rank, world_size, microbatch_size), microbatch_size) for j in range(count)]

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
