"""Random plans over packed sources and pools, and a slow twin of a whole plan, built on the order and packing twins."""

import copy
import warnings
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.stores.forge import forge
from tests.support.twins import lanes as lanes_twin
from tests.support.twins import order as order_twin
from tests.support.twins import packing as packing_twin
from tokenstore import Plan, PlanConfig
from tokenstore.planning.source_config import DocumentRange, SourceConfig

VOCABULARIES = (300, 70_000)
SIZES = [(40, 30), (7, 200), (120, 9), (1, 64), (60, 1), (25, 80), (2, 3)]  # documents, longest
WINDOWED = range(len(SIZES) - 1)  # stores of at least 64 tokens, so `concat` gets a sequence at any length used here
PAD = 5
BATCH = 24
HORIZON = 20  # steps of an endless plan that are checked
SLICES = (
    {"fraction": "1/3"},
    {"take": "1/3"},
    {"documents": {"min_tokens": 2, "max_tokens": 40}},
    {"documents": {"min_tokens": 3}, "take": "1/2", "fraction": 0.75},
    {"take": "0/2", "fraction": "4/5"},
)
BALANCES = (None, None, "attention", {"attention": 3, "linear": 7})
LOCALITIES = (
    None,
    {"block_sequences": 1, "lanes": 3},
    {"block_sequences": 4, "lanes": 2},
    {"block_sequences": 7, "lanes": 50},
)
REPEATS = ("0.5", "2.5", "0.3333", "1", "3", "0.75")

Stores = dict[int, list[tuple[Path, list[list[int]]]]]


class Pool(dict):
    """A dict with a short repr, for hypothesis's failing examples."""

    def __repr__(self) -> str:
        return "Pool()"


def make_stores(folder: Path) -> Stores:
    """{vocabulary: [(path, documents)]}: stores of several shapes and many shards, with length indexes and a pad id."""
    stores: Stores = Pool()
    for vocabulary in VOCABULARIES:
        stores[vocabulary] = []
        for i, (count, longest) in enumerate(SIZES):
            documents = random_documents(i, count, longest, vocabulary)
            if i in WINDOWED:
                documents[0] = (documents[0] * 64)[:64]
            path = write_store(folder / f"{vocabulary}-{i}", documents, vocabulary, shard_bytes=500, length_index=True)
            forge(path, lambda body: body["tokenizer"].update(pad_id=PAD))
            stores[vocabulary].append((path, documents))
    return stores


@st.composite
def cases(
    draw: st.DrawFn,
    packings: Sequence[str] = ("best_fit", "none"),
    stages: bool = True,
    skips: bool = True,
    most_steps: int = 10,
) -> dict:
    """Fields of a PlanConfig, with the number of a store instead of its path, and the extra field `vocabulary`."""
    packing = draw(st.sampled_from(packings))
    names = draw(st.lists(st.text("bcd", min_size=1, max_size=2), min_size=1, max_size=4, unique=True))
    numbers = st.sampled_from(WINDOWED) if packing == "concat" else st.integers(0, len(SIZES) - 1)
    weight = st.sampled_from(["1", "0.5", "0.3", "0.05", "0.7"])
    sources: dict[str, dict] = {name: {"path": draw(numbers)} for name in names}
    drawn = list(names)
    if packing != "concat" and draw(st.booleans()):
        members = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        repeats = {name: draw(st.sampled_from(REPEATS)) for name in members}
        pool = draw(st.sampled_from(["a", "ca", "e"]))  # sorts before, between or after the other names
        sources[pool] = {"pool": draw(st.sampled_from([members, repeats]))}
        drawn = [name for name in names if name not in members] + [pool]
    if packing != "concat":
        for name in names:
            sources[name] |= draw(st.sampled_from([{}, {}, *SLICES]))
    for name in drawn:
        sources[name]["weight"] = draw(weight)
    shuffle = draw(st.booleans())
    if packing == "concat" and shuffle:
        for name in names:
            sources[name]["locality"] = draw(st.sampled_from(LOCALITIES))
    length = draw(st.integers(1, 64))
    divisors = [each for each in range(1, length + 1) if length % each == 0]
    multiple = 12  # as of all sizes here, so that each step can be divided
    later, step, ramps = [], 0, stages and draw(st.booleans())
    for _ in range(draw(st.integers(0, 2)) if stages else 0):
        step += draw(st.integers(1, 4))
        used = draw(st.lists(st.sampled_from(drawn), min_size=1, unique=True))
        weights = {n: draw(weight) for n in used} if draw(st.booleans()) else None
        sizes = st.sampled_from([12, 48] if weights is None else [None, 12, 48])
        later.append({"from_step": step, "weights": weights, "global_batch_size": draw(sizes)})
        if ramps and draw(st.booleans()):
            later[-1] |= {
                "batch_ramp": {"to": 36 + 24 * len(later), "steps": draw(st.integers(1, 5)), "multiple_of": multiple},
                "global_batch_size": draw(st.sampled_from([None, 12])),
            }
    start = draw(st.integers(0, most_steps))
    ranges = [[], [[start, start + 2]], [[start, start + 1], [start + 3, start + 4]]]
    return {
        "vocabulary": draw(st.sampled_from(VOCABULARIES)),
        "packing": packing,
        "sequence_length": length,
        "align": None if packing == "concat" else draw(st.sampled_from([None, *divisors])),
        "balance": draw(st.sampled_from(BALANCES)),
        "global_batch_size": BATCH,
        "sources": sources,
        "seed": draw(st.integers(-(2**70), 2**70)),
        "shuffle": shuffle,
        "num_steps": draw(st.integers(1, most_steps)),
        "stages": later,
        "batch_ramp": {"to": 36, "steps": 3, "multiple_of": multiple} if ramps and draw(st.booleans()) else None,
        "skip_steps": draw(st.sampled_from(ranges)) if skips else [],
        "last_batch": draw(st.sampled_from([None, "drop", "pad"])),
    }


@st.composite
def limited(draw: st.DrawFn, case: dict, words: bool = True) -> dict:
    """A case in which sources run out: max_epochs with `drop` or `stop`, or num_steps as `first_` or `all_exhausted`."""
    case = copy.deepcopy(case)
    word = draw(st.sampled_from([None, "first_exhausted", "all_exhausted"])) if words else None
    if word:
        case["num_steps"] = word
    else:
        case["on_exhausted"] = draw(st.sampled_from(["drop", "stop"]))
    staged = any(stage["weights"] for stage in case["stages"])
    without_weights = bool(word) and not staged and draw(st.booleans())
    for source in case["sources"].values():
        if "weight" in source:
            source["max_epochs"] = draw(st.sampled_from([None, 1, 2, 3]))
            source["weight"] = None if without_weights else source["weight"]
    return case


def quietly(config: PlanConfig) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one store under several names and many epochs, on purpose
        return Plan(config)


def plan_of(stores: Stores, case: dict) -> tuple[Plan, dict[str, list[list[int]]]]:
    """The plan, and the documents of each source that has a path."""
    case = copy.deepcopy(case)
    those = stores[case.pop("vocabulary")]
    documents = {}
    for name, source in case["sources"].items():
        if "path" in source:
            source["path"], documents[name] = str(those[source["path"]][0]), those[source["path"]][1]
            if not slice_of(SourceConfig(**source), documents[name]):  # refused: a slice without documents
                for field in ("documents", "take", "fraction"):
                    source.pop(field, None)
    return quietly(PlanConfig(**case)), documents


def slice_of(source: SourceConfig, documents: list[list[int]]) -> list[int]:
    """Numbers of the documents in the slice of a source, by position."""
    lengths = source.documents or DocumentRange()
    part, parts = source.take or (0, 1)
    p, q = (source.fraction or Fraction(1)).as_integer_ratio()
    sizes = tuple(map(len, documents))
    return packing_twin.slice_of(sizes, lengths.min_tokens, lengths.max_tokens, part, parts, p, q)


class Twin:
    """The run of a configuration, walked one sequence at a time.

    Attributes:
        num_sequences: sequences per epoch of every source that is used.
        run: [(source, number)] of every sequence, up to the end or to HORIZON steps.
        ends: whether the run ends.
        num_steps: steps of the plan; None if it is endless.
    """

    def __init__(self, config: PlanConfig, documents: dict[str, list[list[int]]]):
        self.config, self.documents = config, documents
        # A slice is packed like a store that has only its documents, in the order of the store
        self.chosen = {name: sorted(slice_of(config.sources[name], documents[name])) for name in documents}
        self.members = {name: self._members(name) for name in config.drawn_sources}
        self.num_sequences = {name: self._epoch(name) for name in config.drawn_sources}
        word = config.num_steps if isinstance(config.num_steps, str) else None
        limits = {name: config.sources[name].max_epochs or (1 if word else 0) for name in config.drawn_sources}
        limits = {name: epochs * self.num_sequences[name] for name, epochs in limits.items() if epochs}
        how = {"first_exhausted": "stop", "all_exhausted": "drop"}.get(word) or config.on_exhausted or "error"
        last = HORIZON if config.num_steps is None else config.num_steps
        asked = sum(limits.values()) * 100 + BATCH if word else self.cursor(last)
        weights = {n: s.weight for n, s in config.sources.items() if s.weight} or self.num_sequences
        later = [(self.cursor(s.from_step), s.weights and order_twin.integer_shares(s.weights)) for s in config.stages]
        self.run = order_twin.stream([(0, order_twin.integer_shares(weights)), *later], limits, how, asked)
        self.ends = config.num_steps is not None or len(self.run) < asked
        self.num_steps = self._num_steps() if self.ends else None

    def _members(self, name: str) -> list[str]:
        return sorted(self.config.sources[name].repeats) or [name]

    def repeat(self, source: str, member: str) -> Fraction:
        return Fraction(self.config.sources[source].repeats.get(member, 1))

    def twins(self, source: str) -> tuple:
        """Members as the packing twin takes them."""
        repeats = [(member, self.repeat(source, member)) for member in self.members[source]]
        lengths = {m: tuple(len(self.documents[m][d]) for d in self.chosen[m]) for m, _ in repeats}
        return tuple((lengths[m], r.numerator, r.denominator) for m, r in repeats)

    def _epoch(self, name: str) -> int:
        if self.config.packing == "concat":
            return sum(map(len, self.documents[name])) // self.config.sequence_length
        config = self.config
        return packing_twin.classes_of(self.twins(name), config.sequence_length, config.packing, config.align or 1)[2]

    def size(self, step: int, settings: int | None = None) -> int:
        """Sequences of a step; settings: only so many batch sizes of the configuration count."""
        config, size = self.config, 0
        given = [(0, config.global_batch_size, config.batch_ramp)]
        given += [(s.from_step, s.global_batch_size, s.batch_ramp) for s in config.stages]
        for i, (first, own, ramp) in enumerate(given[:settings]):
            if first <= step and (own or ramp):
                size = own or self.size(first, i)
                if ramp:
                    sizes = [*order_twin.ramp(size, ramp.to, ramp.steps, ramp.multiple_of), ramp.to]
                    size = sizes[min(step - first, ramp.steps)]
        return size

    def cursor(self, step: int) -> int:
        return sum(self.size(k) for k in range(step))

    def _num_steps(self) -> int:
        step = cursor = 0
        while cursor + self.size(step) <= len(self.run):
            cursor, step = cursor + self.size(step), step + 1
        return step + (cursor < len(self.run) and self.config.pads_last_batch)

    @cached_property
    def given_steps(self) -> list[int]:
        """The steps that are not skipped, up to the end or the horizon."""
        last = HORIZON if self.num_steps is None else self.num_steps
        return [k for k in range(last) if not any(a <= k < b for a, b in self.config.skip_steps)]

    def sequences(self, step: int) -> list[tuple[str, int] | None]:
        """(source, number) of each row; None for a row of padding."""
        rows = order_twin.step_rows(self.config.seed, step, self.cursor(step), self.size(step), self.config.shuffle)
        return [self.run[n] if n < len(self.run) else None for n in rows]

    def pieces(self, source: str, number: int) -> list[tuple[str, int, int, int]]:
        """(source with a path, document, start, stop) of a packed sequence."""
        packed = packing_twin.packed_sequence(*self._packed(source, number))
        names = self.members[source]
        return [(names[m], self.chosen[names[m]][document], start, stop) for m, document, start, stop in packed]

    def _packed(self, source: str, number: int) -> tuple:
        """The arguments of the packing twin for a sequence."""
        config, twins = self.config, self.twins(source)
        align = config.align or 1
        return twins, config.sequence_length, config.seed, source, number, config.packing, config.shuffle, align

    def costs(self, step: int) -> list[int]:
        """What each row costs."""
        config = self.config
        a, b = config.row_costs or (1, 0)
        return [
            order_twin.cost(self._measured(*each) if each else [], config.sequence_length, a, b)
            for each in self.sequences(step)
        ]

    def _measured(self, source: str, number: int) -> list[int]:
        """The tokens of each piece of a sequence, as the costs count them."""
        config = self.config
        if config.packing != "concat":
            return packing_twin.rooms(*self._packed(source, number))
        lengths = [len(document) for document in self.documents[source]]
        return order_twin.window_pieces(lengths, self.window_start(source, number), config.sequence_length)

    def window_start(self, source: str, number: int) -> int:
        """The stream position at which a sequence of `concat` begins."""
        config = self.config
        num_tokens, length = sum(map(len, self.documents[source])), config.sequence_length
        local = config.sources[source].locality
        locality = local and (local.block_sequences, local.lanes)
        return lanes_twin.window_start(config.seed, source, num_tokens, length, number, config.shuffle, locality)

    def rank_rows(self, step: int, rank: int, world_size: int, microbatch_size: int) -> list[int]:
        """The rows of a step that a rank gets."""
        if self.config.balance is None:
            return order_twin.rank_rows(self.size(step), rank, world_size, microbatch_size)
        return order_twin.balanced_rows(self.costs(step), rank, world_size, microbatch_size)

    def batch(self, step: int) -> tuple[list, np.ndarray, np.ndarray]:
        """(pieces, input_ids, targets) of a whole step."""
        length = self.config.sequence_length
        rows = [self.pieces(*sequence) if sequence else [] for sequence in self.sequences(step)]
        ids = np.full((len(rows), length), PAD)
        targets = np.full_like(ids, -100)
        for r, row in enumerate(rows):
            sizes = [stop - start for *_, start, stop in row]
            places = packing_twin.places_in_row(sizes, length, self.config.align or 1)
            for (source, document, start, stop), (at, _) in zip(row, places, strict=True):
                tokens = self.documents[source][document]
                ids[r, at : at + stop - start] = tokens[start:stop]
                targets[r, at : at + stop - start] = [*tokens[start + 1 : stop + 1], -100][: stop - start]
        return rows, ids, targets
