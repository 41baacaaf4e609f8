"""Temperature, pools and infeasible mixtures: ORD-3, ORD-12, and every error with its remedies."""

import re
import warnings
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.twins import order as order_twin
from tokenstore import Plan, PlanConfig
from tokenstore.errors import ConfigError
from tokenstore.order.weights import tempered

BASE = {"sequence_length": 8, "global_batch_size": 4}
POOL = {"a": {"path": "a"}, "b": {"path": "b"}, "p": {"pool": ["a", "b"]}}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three stores with length indexes, of very different sizes."""
    folder = tmp_path_factory.mktemp("stores")
    sizes = {"a": (50, 40), "b": (6, 30), "c": (200, 20)}
    return {
        name: str(write_store(folder / name, random_documents(i, *size), length_index=True))
        for i, (name, size) in enumerate(sizes.items())
    }


def plan_of(sources: dict, **fields: object) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Plan(PlanConfig(**BASE, sources=sources, **fields))


# ---- temperature


@given(
    sizes=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 10**12), min_size=1, max_size=6),
    hundredths=st.integers(100, 1200),
)
def test_tempered_weights_are_exact_roots(sizes: dict[str, int], hundredths: int) -> None:
    """ORD-3: the integer part of size ** (1 / temperature) * 2**32, computed without floats."""
    weights = tempered(sizes, Decimal(hundredths) / 100)
    p, q = (Decimal(hundredths) / 100).as_integer_ratio()
    for name, size in sizes.items():
        exact = size**q << 32 * p
        assert weights[name] ** p <= exact < (weights[name] + 1) ** p
    with localcontext(prec=60):
        for name, size in sizes.items():
            real = (Decimal(size).ln() * 100 / hundredths).exp() * 2**32
            assert abs(weights[name] - real) < 1 + Decimal("1e-20")


@pytest.mark.parametrize("temperature", ["1", "1.5", "2", "3.33", "100"])
def test_shares_of_a_plan_follow_the_temperature(paths: dict[str, str], temperature: str) -> None:
    """ORD-3: shares follow (sequences per epoch) ** (1 / temperature), by high-precision decimals."""
    plan = plan_of({n: {"path": path} for n, path in paths.items()}, temperature=temperature)
    with localcontext(prec=60):
        roots = {n: (Decimal(k).ln() / Decimal(temperature)).exp() * 2**32 for n, k in plan.num_sequences.items()}
        roots = {n: int(root + Decimal("1e-20")) for n, root in roots.items()}
    assert dict(plan.schedule.stages[0].shares) == order_twin.integer_shares(roots)


def test_higher_temperatures_are_more_even(paths: dict[str, str]) -> None:
    """1 is proportional and equal to no temperature; a pool is one source of its size."""
    sources = {n: {"path": path} for n, path in paths.items()}
    assert plan_of(sources, temperature=1).fingerprint == plan_of(sources).fingerprint
    spread = []
    for temperature in (1, "1.4", 2, "5.5", 100):
        weights = [row.weight for row in plan_of(sources, temperature=temperature).progress(0).values()]
        spread.append(max(weights) / min(weights))
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 1.1 < spread[0]
    pooled = plan_of({**sources, "p": {"pool": {"a": 2, "b": "0.5"}}}, temperature=2)
    squares = {name: row.weight**2 / pooled.num_sequences[name] for name, row in pooled.progress(0).items()}
    assert list(squares) == ["c", "p"]
    assert squares["c"] == pytest.approx(squares["p"], rel=1e-4)


# ---- configurations that contradict themselves


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"sources": POOL, "packing": "concat"},
            "sources.p.pool: only valid with packing best_fit or none, found packing concat",
        ),
        ({"sources": {"a": {}}}, "sources.a: expected either a path or a pool, found neither"),
        (
            {"sources": {**POOL, "p": {"path": "x", "pool": ["a"]}}},
            "sources.p: expected either a path or a pool, found both",
        ),
        ({"sources": {**POOL, "p": {"pool": []}}}, "sources.p.pool: expected at least one source, found none"),
        ({"sources": {**POOL, "p": {"pool": {}}}}, "sources.p.pool: expected at least one source, found none"),
        (
            {"sources": {**POOL, "p": {"pool": ["a", "z"]}}},
            "sources.p.pool: expected names of sources with a path, found 'z'",
        ),
        (
            {"sources": {**POOL, "p": {"pool": ["p"]}}},
            "sources.p.pool: expected names of sources with a path, found 'p'",
        ),
        (
            {"sources": {**POOL, "q": {"pool": ["p"]}}},
            "sources.q.pool: expected names of sources with a path, found 'p'",
        ),
        (
            {"sources": {**POOL, "p": {"pool": ["a", "a"]}}},
            "sources.p.pool: a source is listed twice; write {name: 2} to repeat it",
        ),
        (
            {"sources": {**POOL, "a": {"path": "a", "weight": 1}}},
            "sources.a: a member of a pool has no weight or max_epochs; set them on p",
        ),
        (
            {"sources": {**POOL, "a": {"path": "a", "max_epochs": 2}}},
            "sources.a: a member of a pool has no weight or max_epochs; set them on p",
        ),
        ({"sources": {**POOL, "q": {"pool": ["b"]}}}, "sources.b: is a member of two pools, p and q; keep it in one"),
        (
            {"sources": {"a": {"path": "a", "weight": 1}}, "temperature": 2},
            "temperature: cannot be combined with weights; remove the temperature or all weights",
        ),
        ({"sources": POOL, "temperature": "0.99"}, "temperature: expected 1 or more, found '0.99'"),
        ({"sources": POOL, "temperature": 101}, "temperature: expected at most 100, found 101"),
        (
            {"sources": POOL, "temperature": "1.234"},
            "temperature: expected at most 2 digits after the point, found '1.234'",
        ),
        (
            {"sources": POOL, "cross_document_targets": True},
            "cross_document_targets: only valid with packing concat, found packing best_fit",
        ),
        (
            {"sources": POOL, "cross_document_targets": True, "packing": "none"},
            "cross_document_targets: only valid with packing concat, found packing none",
        ),
        ({"sources": POOL, "last_batch": "keep"}, "last_batch: expected one of 'drop' or 'pad', found 'keep'"),
        (
            {"sources": POOL, "packing": "bestfit"},
            "packing: expected one of 'best_fit', 'concat' or 'none', found 'bestfit'",
        ),
        (
            {"sources": {**POOL, "p": {"pool": ["a"], "weight": 1}}, "stages": [{"from_step": 3, "weights": {"a": 1}}]},
            "stages[0].weights: expected names of sources (b, p), found ['a']",
        ),
    ],
)
def test_contradictions_are_errors(change: dict, text: str) -> None:
    """One sentence with the field and the rule."""
    with pytest.raises(ConfigError) as error:
        PlanConfig(**BASE, **change)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("repeat", "rule"),
    [
        ("1.23456", "expected at most 4 digits after the point"),
        (0.33333, "expected at most 4 digits after the point"),
        (0, "expected 0.0001 or more"),
        (-1, "expected 0.0001 or more"),
        (101, "expected at most 100"),
        ("x", "expected a number"),
        (float("inf"), "expected a finite number"),
        (float("nan"), "expected a finite number"),
        (None, "expected a number"),
    ],
)
def test_wrong_repeat_factors_are_named(repeat: object, rule: str) -> None:
    """The message names pool and member, the rule and what was found."""
    with pytest.raises(ConfigError) as error:
        PlanConfig(**BASE, sources={**POOL, "p": {"pool": {"a": repeat}}})
    assert f"sources.p.pool.a: {rule}, found {repeat!r}" in str(error.value)


def test_a_wrong_repeat_factor_is_the_only_thing_named() -> None:
    """{a: 1.23456} is a pool with a wrong factor, not a wrong list."""
    with pytest.raises(ConfigError) as error:
        PlanConfig(**BASE, sources={**POOL, "p": {"pool": {"a": 1.23456}}})
    assert "expected a list" not in str(error.value)


def test_all_contradictions_are_named_at_once() -> None:
    """Pools, options and steps in one message."""
    sources = {**POOL, "a": {"path": "a", "weight": 1}, "p": {"pool": ["a", "z"]}}
    with pytest.raises(ConfigError) as error:
        PlanConfig(**BASE, sources=sources, packing="concat", temperature=2, skip_steps=[[3, 3]])
    for text in ("a member of a pool has no weight", "found 'z'", "packing concat", "temperature:", "skip_steps:"):
        assert text in str(error.value)


def test_pools_from_a_file(tmp_path: Path, paths: dict[str, str]) -> None:
    """Both forms of a pool in YAML; 0.3333 means 3333/10000; paths of members are relative to the file."""
    for name, path in paths.items():
        (tmp_path / name).symlink_to(path)
    file = tmp_path / "plan.yaml"
    file.write_text(
        "sequence_length: 8\nglobal_batch_size: 4\ntemperature: 1.5\nsources:\n  a: {path: a}\n  b: {path: b}\n"
        "  c: {path: c}\n  p: {pool: {a: 0.3333, b: 3}}\n  q: {pool: [c]}\n"
    )
    plan = Plan(PlanConfig.load(file))
    assert [(m.name, str(m.repeat)) for s in plan.sources for m in s.members] == [
        ("a", "3333/10000"),
        ("b", "3"),
        ("c", "1"),
    ]
    assert list(plan.num_sequences) == ["p", "q"]


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_a_store_without_length_index_says_what_to_run(tmp_path: Path, paths: dict[str, str], packing: str) -> None:
    """FMT-9: the message names the source, its path, the command to run, and the packing that needs no index."""
    bare = write_store(tmp_path / "bare", random_documents(9, 50, 20))
    for sources in ({"x": {"path": str(bare)}}, {"x": {"path": str(bare)}, "p": {"pool": ["x"]}}):
        with pytest.raises(ConfigError) as error:
            plan_of({**sources, "a": {"path": paths["a"]}}, packing=packing)
        assert f"source x: expected a length index for packing {packing}, found none ({bare})" in str(error.value)
        assert f"run `tokenstore index {bare}`, or use packing: concat" in str(error.value)
    assert plan_of({"x": {"path": str(bare)}}, packing="concat", num_steps=3).num_steps == 3


# ---- mixtures that run out


@st.composite
def mixtures(draw: st.DrawFn) -> dict:
    """Sources, some of them with limited epochs, in stages, and with a pool."""
    sources: dict[str, dict] = {name: {"path": name} for name in "abc"}
    names = list("abc")
    if draw(st.booleans()):
        sources["p"] = {"pool": {"b": draw(st.sampled_from([1, "0.5", "2.5"]))}}
        names = ["a", "c", "p"]
    weight = st.sampled_from([1, "0.5", "0.3", "0.01"])
    for name in names:
        sources[name] |= {"weight": draw(weight), "max_epochs": draw(st.sampled_from([None, 1, 2, 5]))}
    stages = []
    if draw(st.booleans()):
        used = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        size = draw(st.sampled_from([None, 8]))
        weights = {name: draw(weight) for name in used}
        stages = [{"from_step": draw(st.integers(1, 60)), "weights": weights, "global_batch_size": size}]
    return {
        "sources": sources,
        "stages": stages,
        "packing": draw(st.sampled_from(["best_fit", "none"])),
        "num_steps": draw(st.sampled_from([None, 30, 300, 3000])),
        "shuffle": draw(st.booleans()),
    }


def refusal(paths: dict[str, str], case: dict) -> str | None:
    """The message if the mixture is rejected; None if it is accepted."""
    sources = {n: {**s, "path": paths[s["path"]]} if "path" in s else s for n, s in case["sources"].items()}
    try:
        plan = plan_of(sources, **{key: value for key, value in case.items() if key != "sources"})
    except ConfigError as error:
        return str(error)
    assert plan.num_steps == case["num_steps"]
    return None


def check_refusal(paths: dict[str, str], case: dict) -> None:
    """The message names source, step, epochs and the longest plan: that one is accepted, one step more is not."""
    text = refusal(paths, case)
    if text is None:
        return
    found = re.match(
        r"source (\w+): runs out at step (\d+) \((endless plan|(\d+) steps need ([\d.]+) epochs);"
        r" max_epochs is (\d+), (\d+) sequences per epoch\); ",
        text,
    )
    assert found, text
    name, step, _, steps, needed, epochs, _ = found.groups()
    assert int(epochs) == case["sources"][name]["max_epochs"]
    assert (steps is None) == (case["num_steps"] is None)
    assert steps is None or (int(steps) == case["num_steps"] and float(needed) >= int(epochs))
    longest = re.search(r"; set num_steps to (\d+), raise max_epochs", text)
    if longest is None:
        assert step == "0"
    else:
        assert longest[1] == step
        assert refusal(paths, {**case, "num_steps": int(step)}) is None
    one_more = refusal(paths, {**case, "num_steps": int(step) + 1})
    assert one_more is not None
    assert one_more.startswith(f"source {name}: runs out at step {step} (")


@given(case=mixtures())
def test_a_mixture_that_runs_out_is_refused_with_the_longest_plan(paths: dict[str, str], case: dict) -> None:
    """P5, ORD-5: over random plans; last_batch drop."""
    check_refusal(paths, {**case, "last_batch": "drop"})


@given(case=mixtures(), last=st.sampled_from(["pad", None]))
def test_the_same_with_a_padded_last_batch(paths: dict[str, str], case: dict, last: str | None) -> None:
    """P5, ORD-11: padding completes the last step of a plan, it does not extend a source."""
    check_refusal(paths, {**case, "last_batch": last})


@pytest.mark.parametrize("fields", [{"on_exhausted": "drop"}, {"on_exhausted": "stop"}, {"num_steps": "all_exhausted"}])
def test_all_remedies_in_the_message_work(paths: dict[str, str], fields: dict) -> None:
    """More epochs, a lower weight, drop or stop each make the rejected mixture feasible."""
    sources = {"a": {"path": paths["a"], "weight": 1, "max_epochs": 1}, "c": {"path": paths["c"], "weight": 1}}
    with pytest.raises(ConfigError, match=r"raise max_epochs, lower its weight, or set on_exhausted: drop or stop"):
        plan_of(sources, num_steps=80)
    assert plan_of(sources, **{"num_steps": 80, **fields}).num_steps
    assert plan_of({**sources, "a": {**sources["a"], "max_epochs": 5}}, num_steps=80).num_steps == 80
    assert plan_of({**sources, "a": {**sources["a"], "weight": "0.01"}}, num_steps=80).num_steps == 80
