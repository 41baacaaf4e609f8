"""A plan against a slow twin that walks the run one sequence at a time: P1, P2, P3, P4, P5, P10."""

import copy
import pickle
import warnings
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.twins import lanes as lanes_twin
from tests.support.twins import order as order_twin
from tests.support.twins.packed_plans import LOCALITIES
from tokenstore import Plan, PlanConfig, TokenLoader
from tokenstore.errors import ConfigError, StateMismatchError

VOCABULARIES = (300, 70_000)
SIZES = [(40, 30), (7, 200), (300, 9), (1, 64), (90, 1), (25, 80)]  # documents, longest
ALL = ("best_fit", "concat", "none")


class Pool(dict):
    """A dict with a short repr, for hypothesis's failing examples."""

    def __repr__(self) -> str:
        return "Pool()"


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """{vocabulary: [(path, documents)]}: stores of several shapes with many shards, as uint16 and as uint32."""
    folder = tmp_path_factory.mktemp("pool")
    stores = Pool()
    for vocabulary in VOCABULARIES:
        stores[vocabulary] = []
        for i, (count, longest) in enumerate(SIZES):
            documents = random_documents(i, count, longest, vocabulary)
            documents[0] = (documents[0] * 64)[:64]  # at least one sequence of every length used here
            path = write_store(folder / f"{vocabulary}-{i}", documents, vocabulary, shard_bytes=500, length_index=True)
            stores[vocabulary].append((path, documents))
    return stores


def quietly(config: PlanConfig) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one store under several names, many epochs: on purpose here
        return Plan(config)


@st.composite
def configs(
    draw: st.DrawFn,
    most_sources: int = 8,
    most_steps: int = 14,
    least_weight: str = "0.01",
    packings: tuple[str, ...] = ("concat",),
) -> dict:
    """(vocabulary, fields of a PlanConfig with numbers of stores instead of paths)."""
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=most_sources, unique=True))
    weight = st.sampled_from(["1", "0.5", "0.3", "0.05", least_weight, "0.7"])
    stages, step = [], 0
    for _ in range(draw(st.integers(0, 2))):
        step += draw(st.integers(1, 6))
        used = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        weights = {n: draw(weight) for n in used} if draw(st.booleans()) else None
        sizes = st.sampled_from([24, 48] if weights is None else [None, 24, 48])
        stages.append({"from_step": step, "weights": weights, "global_batch_size": draw(sizes)})
    start = draw(st.integers(0, most_steps))
    packing, shuffle = draw(st.sampled_from(packings)), draw(st.booleans())
    sources = {n: {"path": draw(st.integers(0, len(SIZES) - 1)), "weight": draw(weight)} for n in names}
    if packing == "concat" and shuffle:
        for source in sources.values():
            source["locality"] = draw(st.sampled_from(LOCALITIES))
    return {
        "vocabulary": draw(st.sampled_from(VOCABULARIES)),
        "sequence_length": draw(st.integers(1, 64)),
        "global_batch_size": 24,
        "sources": sources,
        "packing": packing,
        "seed": draw(st.integers(-(2**70), 2**70)),
        "shuffle": shuffle,
        "num_steps": draw(st.integers(1, most_steps)),
        "stages": stages,
        "skip_steps": draw(st.sampled_from([[], [[start, start + 2]], [[start, start + 1], [start + 3, start + 4]]])),
        "cross_document_targets": draw(st.booleans()) if packing == "concat" else False,
    }


def plan_of(pool: dict, case: dict) -> tuple[Plan, dict]:
    """The plan, and the documents of its sources."""
    case = copy.deepcopy(case)
    stores = pool[case.pop("vocabulary")]
    documents = {}
    for name, source in case["sources"].items():
        source["path"], documents[name] = str(stores[source["path"]][0]), stores[source["path"]][1]
    return quietly(PlanConfig(**case)), documents


def twin_batch(plan: Plan, documents: dict, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(input_ids, targets) of a whole step, by plain integers and lists."""
    config = plan.config
    stages = [(0, 24, order_twin.integer_shares({n: s.weight for n, s in config.sources.items()}))]
    for stage in config.stages:
        cursor = stages[-1]
        steps = stage.from_step - (config.stages[len(stages) - 2].from_step if len(stages) > 1 else 0)
        size = stage.global_batch_size or cursor[1]
        shares = None if stage.weights is None else order_twin.integer_shares(stage.weights)
        stages.append((cursor[0] + steps * cursor[1], size, shares))
    number = sum(stage.from_step <= step for stage in config.stages)
    first = ([0] + [stage.from_step for stage in config.stages])[number]
    cursor, size = stages[number][0] + (step - first) * stages[number][1], stages[number][1]
    run = order_twin.stream([(c, shares) for c, _, shares in stages[: number + 1]], {}, "error", cursor + size)
    rows = []
    for n in order_twin.step_rows(config.seed, step, cursor, size, config.shuffle):
        name, k = run[n]
        tokens = sum(map(len, documents[name]))
        local = config.sources[name].locality
        locality = local and (local.block_sequences, local.lanes)
        start = lanes_twin.window_start(config.seed, name, tokens, config.sequence_length, k, config.shuffle, locality)
        rows.append(order_twin.window(documents[name], start, config.sequence_length, config.cross_document_targets))
    return np.array([ids for ids, _ in rows]), np.array([targets for _, targets in rows])


def split(data: st.DataObject, *sizes: int) -> tuple[int, int]:
    """(world size, microbatch size) whose product divides all `sizes`."""
    divisors = [d for d in range(1, min(sizes) + 1) if all(size % d == 0 for size in sizes)]
    block = data.draw(st.sampled_from(divisors))
    world = data.draw(st.sampled_from([w for w in (1, 2, 3, 4, 8) if block % w == 0]))
    return world, block // world


@given(case=configs())
def test_every_batch_equals_the_slow_twin(pool: dict, case: dict) -> None:
    """P6: kernels, maps and arithmetic equal walking the run by hand."""
    plan, documents = plan_of(pool, case)
    for step in range(min(plan.num_steps, 8)):
        if not plan.schedule.is_skipped(step):
            batch = plan.batch(step)
            ids, targets = twin_batch(plan, documents, step)
            assert (batch["input_ids"] == ids).all()
            assert (batch["targets"] == targets).all()


@given(case=configs(packings=ALL), data=st.data())
def test_any_split_over_ranks_gives_the_same_step(pool: dict, case: dict, data: st.DataObject) -> None:
    """P2, P5: world size and microbatch size decide which rank gets a row, not which rows there are; all get equally
    many.
    """
    plan, _ = plan_of(pool, case)
    step = data.draw(st.integers(0, plan.num_steps - 1))
    if plan.schedule.is_skipped(step):
        return
    whole = plan.batch(step)["input_ids"]
    world, size = split(data, len(whole))
    for rank in range(world):
        mine = plan.batch(step, rank, world, size)["input_ids"]
        assert (mine == whole[order_twin.rank_rows(len(whole), rank, world, size)]).all()
        assert len(mine) == len(whole) // world


@settings(max_examples=20)
@given(case=configs(most_steps=6, packings=ALL), data=st.data())
def test_resuming_at_any_microbatch_gives_the_rest(pool: dict, case: dict, data: st.DataObject) -> None:
    """P1, P2: resuming from any state, also inside a step and with other ranks, continues the same run."""
    plan, _ = plan_of(pool, case)
    world, size = split(data, 24)
    loaders = [TokenLoader(plan, rank=r, world_size=world, microbatch_size=size) for r in range(world)]
    states, given_rows = [loaders[0].state_dict()], []
    for batches in zip(*loaders, strict=True):
        given_rows += [row for batch in batches for row in batch["input_ids"].numpy()]
        states.append(loaders[0].state_dict())
        assert [loader.state_dict() for loader in loaders[1:]] == [states[-1]] * (world - 1)
    for state in [*data.draw(st.lists(st.sampled_from(states), max_size=2)), states[-1]]:
        inside = state["cursor"] - plan.schedule.cursor(state["step"])
        world, size = split(data, 24, plan.global_batch_size(state["step"]) - inside)
        again = quietly(plan.config) if data.draw(st.booleans()) else pickle.loads(pickle.dumps(plan))
        options = {"world_size": world, "microbatch_size": size, "inside_step": "continue"}
        loaders = [TokenLoader(again, rank=r, **options) for r in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
        rest = [row for batches in zip(*loaders, strict=True) for b in batches for row in b["input_ids"].numpy()]
        skipped = sum(plan.global_batch_size(step) for step in range(state["step"]) if plan.schedule.is_skipped(step))
        expected = given_rows[state["cursor"] - skipped :]
        assert len(rest) == len(expected)
        assert all((a == b).all() for a, b in zip(rest, expected, strict=True))


@given(case=configs(most_sources=50, least_weight="1e-6", packings=ALL))
def test_the_mixture_is_within_one_after_every_step(pool: dict, case: dict) -> None:
    """P4: up to 50 sources with weights from 1e-6 to 1, at every step, counted in the batches."""
    plan, _ = plan_of(pool, {**case, "sequence_length": 1, "skip_steps": []})
    counts: dict[str, int] = {}
    for step in range(plan.num_steps):
        for pieces in plan.documents(step):
            counts[pieces[0].source] = counts.get(pieces[0].source, 0) + 1
        after = plan.progress(step + 1)
        assert {name: p.sequences for name, p in after.items() if p.sequences} == counts
        segment = plan.schedule.segments[-1]
        for segment in plan.schedule.segments:
            if segment.start <= plan.schedule.cursor(step + 1) <= segment.end:
                period = sum(segment.shares.values())
                for name, share in segment.shares.items():
                    count = counts.get(name, 0) - segment.base.get(name, 0)
                    assert abs(count * period - share * (plan.schedule.cursor(step + 1) - segment.start)) < period


@given(case=configs(packings=ALL))
def test_documents_name_the_origin_of_every_token(pool: dict, case: dict) -> None:
    """plan.documents lists the pieces whose tokens are the batch; after them is padding, with `concat` none."""
    plan, documents = plan_of(pool, case)
    step = plan.schedule.next_step(0)
    if step >= plan.num_steps:
        return
    batch = plan.batch(step)
    for row, targets, pieces in zip(batch["input_ids"], batch["targets"], plan.documents(step), strict=True):
        tokens = [t for p in pieces for t in documents[p.source][p.document][p.start : p.stop]]
        empty = len(row) - len(tokens)
        assert row.tolist() == tokens + [0] * empty
        assert targets[len(tokens) :].tolist() == [-100] * empty
        assert tokens
        assert empty == 0 or case["packing"] != "concat"


def test_an_epoch_of_concat_gives_every_token_once(pool: dict) -> None:
    """P3: an epoch uses all except T mod L tokens once, and the next epoch is cut elsewhere."""
    path, documents = pool[300][0]
    total = sum(map(len, documents))
    plan = Plan.of(path, sequence_length=7, global_batch_size=1, num_steps="first_exhausted", packing="concat")
    assert plan.num_steps == total // 7
    seen = {
        (p.document, i)
        for k in range(plan.num_steps)
        for row in plan.documents(k)
        for p in row
        for i in range(p.start, p.stop)
    }
    assert len(seen) == plan.num_steps * 7 == total - total % 7


class TestIdentity:
    """P10: a state resumes in a plan with the same history, and in no other."""

    CASE: ClassVar[dict] = {
        "vocabulary": 300,
        "packing": "concat",
        "sequence_length": 8,
        "global_batch_size": 24,
        "sources": {"a": {"path": 0, "weight": "0.6"}, "b": {"path": 1, "weight": "0.4"}},
        "num_steps": 20,
    }

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"seed": 1}, "seed was 0, is 1"),
            ({"sequence_length": 9}, "sequence_length was 8, is 9"),
            ({"packing": "best_fit"}, 'packing was "concat", is "best_fit"'),
            ({"shuffle": False}, "shuffle was true, is false"),
            ({"global_batch_size": 48}, "stages[0].global_batch_size was 24, is 48"),
            (
                {"sources": {"a": {"path": 0, "weight": "0.5"}, "b": {"path": 1, "weight": "0.4"}}},
                "stages[0].shares.a was 3, is 5",
            ),
            (
                {"sources": {"a": {"path": 2, "weight": "0.6"}, "b": {"path": 1, "weight": "0.4"}}},
                "sources.a.digest was",
            ),
            ({"skip_steps": [[4, 5]]}, "skip_steps[0] was null, is [4, 5]"),
            ({"stages": [{"from_step": 9, "weights": {"a": "1"}}]}, "stages[1] was null"),
            ({"stages": [{"from_step": 9, "global_batch_size": 48}]}, "stages[1] was null"),
        ],
    )
    def test_a_changed_history_is_refused_with_the_field(self, pool: dict, change: dict, field: str) -> None:
        """The message names the field that differs, with its old and new value."""
        state = plan_of(pool, self.CASE)[0].state(10)
        other, _ = plan_of(pool, {**self.CASE, **change})
        with pytest.raises(StateMismatchError) as error:
            TokenLoader(other).load_state_dict(state)
        assert field in str(error.value)

    @pytest.mark.parametrize(
        "change",
        [
            {"stages": [{"from_step": 10, "weights": {"b": "1"}}]},
            {"skip_steps": [[10, 12]]},
            {"num_steps": 15},
            {"stages": [{"from_step": 10, "global_batch_size": 48}]},
            {"sources": {**CASE["sources"], "c": {"path": 2, "weight": 0}}},
            {"sources": {n: {**s, "max_epochs": 1000} for n, s in CASE["sources"].items()}},
        ],
    )
    def test_a_change_from_the_resumed_step_on_is_accepted(self, pool: dict, change: dict) -> None:
        """A stage, skip, source, length or limit that begins at the resumed step does not change the history."""
        plan, _ = plan_of(pool, self.CASE)
        other, _ = plan_of(pool, {**self.CASE, **change})
        loader = TokenLoader(other)
        loader.load_state_dict(plan.state(10))
        assert loader.step == 10
        assert all((plan.batch(k)["input_ids"] == other.batch(k)["input_ids"]).all() for k in range(10))
        if change.keys() & {"stages", "skip_steps"}:
            with pytest.raises(StateMismatchError):
                TokenLoader(other).load_state_dict(plan.state(13))

    def test_omitted_and_restated_weights_are_two_histories(self, pool: dict) -> None:
        """A stage without weights continues the interleave, one that repeats them restarts it: their histories
        differ.
        """
        omitted = {**self.CASE, "stages": [{"from_step": 3, "global_batch_size": 48}]}
        weights = {"a": "0.6", "b": "0.4"}
        restated = {**self.CASE, "stages": [{"from_step": 3, "global_batch_size": 48, "weights": weights}]}
        one, other = plan_of(pool, omitted)[0], plan_of(pool, restated)[0]
        TokenLoader(other).load_state_dict(one.state(3))
        with pytest.raises(StateMismatchError, match=r"stages\[1\].shares was null, is \{"):
            TokenLoader(other).load_state_dict(one.state(4))

    def test_a_stage_that_changes_nothing_is_not_in_the_history(self, pool: dict) -> None:
        """The same batch size again is the same plan."""
        one, _ = plan_of(pool, self.CASE)
        other, _ = plan_of(pool, {**self.CASE, "stages": [{"from_step": 3, "global_batch_size": 24}]})
        assert one.fingerprint == other.fingerprint

    def test_names_of_sources_decide_not_paths_or_order(self, pool: dict) -> None:
        """The same stores under the same names, in another order of keys, are the same plan."""
        one, _ = plan_of(pool, self.CASE)
        other, _ = plan_of(pool, {**self.CASE, "sources": dict(reversed(self.CASE["sources"].items()))})
        assert one.fingerprint == other.fingerprint
        assert (one.batch(3)["input_ids"] == other.batch(3)["input_ids"]).all()

    def test_a_foreign_state_is_refused(self, pool: dict) -> None:
        """Another shape, another version, a damaged history: each has its own message."""
        loader = TokenLoader(plan_of(pool, self.CASE)[0])
        state = loader.state_dict()
        loader.load_state_dict({})
        for bad, text in [
            ({"_num_yielded": 3}, "StatefulDataLoader"),
            ({**state, "state_version": 99}, "state version"),
            ({**state, "fingerprint": "0"}, "damaged"),
            ({"step": 3}, "expected the keys"),
        ]:
            with pytest.raises(StateMismatchError, match=text):
                loader.load_state_dict(bad)

    def test_inside_a_step_a_rest_that_does_not_divide_is_refused(self, pool: dict) -> None:
        """The message offers sizes that divide it, and the start of the step."""
        plan, _ = plan_of(pool, self.CASE)
        loader = TokenLoader(plan, microbatch_size=1)
        next(iter(loader))
        assert not loader.step_ended
        with pytest.raises(ConfigError, match=r'23 sequences left in step 0.*inside_step="rewind"'):
            TokenLoader(plan, microbatch_size=2).load_state_dict(loader.state_dict())


@given(case=configs(least_weight="0.2", packings=("best_fit", "concat")), data=st.data())
def test_limits_equal_counting_by_hand(pool: dict, case: dict, data: st.DataObject) -> None:
    """P3: max_epochs with drop, stop, first_exhausted and all_exhausted equal counting by hand; no source exceeds
    its limit.
    """
    word = data.draw(st.sampled_from([None, "first_exhausted", "all_exhausted"]))
    case = {**copy.deepcopy(case), "sequence_length": data.draw(st.integers(16, 64)), "skip_steps": [], "stages": []}
    case["num_steps"] = word or case["num_steps"]
    if word is None:
        case["on_exhausted"] = data.draw(st.sampled_from(["drop", "stop"]))
    for source in case["sources"].values():
        source["max_epochs"] = data.draw(st.sampled_from([None, 1, 2]))
    if word and data.draw(st.booleans()):
        for source in case["sources"].values():
            source["weight"] = None
    try:
        plan, _ = plan_of(pool, case)
    except ConfigError as error:
        if "at least one step" not in str(error):
            raise
        return
    limits = {n: (s.max_epochs or (1 if word else 0)) * plan.num_sequences[n] for n, s in plan.config.sources.items()}
    limits = {name: limit for name, limit in limits.items() if limit}
    on_exhausted = {"first_exhausted": "stop", "all_exhausted": "drop"}.get(word) or case["on_exhausted"]
    weights = {n: s.weight for n, s in plan.config.sources.items() if s.weight} or plan.num_sequences
    num_sequences = sum(limits.values()) + 24 if word else 24 * case["num_steps"]
    run = order_twin.stream([(0, order_twin.integer_shares(weights))], limits, on_exhausted, num_sequences)
    assert plan.num_steps == len(run) // 24
    for step in range(plan.num_steps):
        rows = order_twin.step_rows(plan.config.seed, step, 24 * step, 24, plan.config.shuffle)
        assert [pieces[0].source for pieces in plan.documents(step)] == [run[n][0] for n in rows]
    after = plan.progress(plan.num_steps)
    assert all(after[name].sequences <= limit for name, limit in limits.items())
