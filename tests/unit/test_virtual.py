"""P7: 10^12 tokens and 10^9 documents through the order code, far into a run: exact, and without growing tables."""

import sys

import numpy as np
import pytest

from tests.support.calls import window_start
from tests.support.stores.virtual import VirtualStore, virtual_stores  # noqa: F401  # a fixture
from tests.support.twins import order as order_twin
from tokenstore import Plan
from tokenstore.batches.tables import OFFSET_KEY, SEQUENCE_KEY

TOKENS, DOCUMENTS, LENGTH = 10**12, 10**9, 2048


@pytest.fixture
def plan(virtual_stores: dict) -> Plan:  # noqa: F811
    virtual_stores["web"] = VirtualStore("web", TOKENS, DOCUMENTS)
    virtual_stores["code"] = VirtualStore("code", TOKENS // 3, DOCUMENTS // 7)
    weights = {"web": "0.999999", "code": "0.000001"}
    return Plan.of(
        {"web": "web", "code": "code"},
        sequence_length=LENGTH,
        global_batch_size=4096,
        weights=weights,
        packing="concat",
    )


@pytest.mark.parametrize("step", [0, 1, 10**7, 10**11])
def test_rows_far_into_a_run_are_exact(plan: Plan, step: int) -> None:
    """No overflow: rows of step 10^11 equal those of plain integers."""
    rows = plan.sampler().locate(step, 0, 4096)
    cursor = plan.schedule.cursor(step)
    for row, n in list(zip(rows.tolist(), order_twin.step_rows(0, step, cursor, 4096), strict=True))[::511]:
        name, number = plan.schedule.segments[0].at(n)
        assert [list(plan.stores)[row[0]], row[1]] == [name, number]
        before = plan.schedule.segments[0].count(name, n)
        assert number == before
        tokens = plan.stores[name].num_tokens
        start = window_start(0, name, tokens, LENGTH, number)
        assert start == order_twin.window_start(0, name, tokens, LENGTH, number)
        assert 0 <= start < tokens


def test_the_mixture_is_exact_far_into_a_run(plan: Plan) -> None:
    """P4 at 4 * 10^14 sequences with a weight of 10^-6."""
    after = plan.progress(10**11)
    total = 4096 * 10**11
    assert sum(p.sequences for p in after.values()) == total
    assert abs(after["code"].sequences - total // 10**6) <= 1
    assert after["web"].epochs == pytest.approx(total * 0.999999 * LENGTH / TOKENS, rel=1e-6)


def test_tables_grow_with_shards_only(plan: Plan) -> None:
    """A plan over 10^12 tokens takes kilobytes: nothing per document, sequence or step."""
    sampler = plan.sampler()
    sampler.locate(10**9, 0, 8)
    tables = sampler._tables
    assert tables.files.nbytes + tables.stores.nbytes + tables.sources.nbytes < 200_000
    assert sys.getsizeof(plan.state(10**9)["history"]) < 2000
    keys = {int(key) for key in tables.sources[:, [SEQUENCE_KEY, OFFSET_KEY]].ravel()}
    assert len(keys) == 4
    assert np.all(tables.files[:, 0] == 0)
