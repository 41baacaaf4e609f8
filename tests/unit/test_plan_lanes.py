"""What `tokenstore plan` says about lanes: the cache they need, what costs quality or bytes, and what would suit a source."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import random_documents, write_store
from tests.support.processes.command_lines import ok
from tests.support.report_pages import check_page
from tests.support.servers.range_server import RangeServer
from tokenstore import Plan, PlanConfig, RemoteOptions, TokenLoader
from tokenstore.report.plan_page import plan_page
from tokenstore.report.plan_report import plan_report
from tokenstore.views.plan_locality import Advice, advise, localities_of
from tokenstore.views.plan_transport import transport_of

LENGTH, BATCH = 96, 16


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 2,300 sequences of 384 bytes."""
    return write_store(tmp_path_factory.mktemp("s") / "web", random_documents(2, 1500, 300, 70_000), 70_000, 400_000)


@pytest.fixture
def plan_at(path: Path, range_server: RangeServer, tmp_path: Path) -> Callable[..., Plan]:
    """plan_at(locality, place, limit) is a plan of two epochs over the store."""
    range_server.add_folder("bucket/web", path)

    def plan(locality: Any, place: str = "s3://bucket/web", limit: int | None = None) -> Plan:
        config = PlanConfig(
            sequence_length=LENGTH,
            global_batch_size=BATCH,
            sources={"web": {"path": place, "locality": locality}},
            packing="concat",
            num_steps=280,
        )
        return Plan(config, remote=RemoteOptions(cache=tmp_path / "cache", cache_limit=limit))

    return plan


def test_advice_follows_batch_cache_and_corpus() -> None:
    """Lanes cover a step; blocks are of 4 MiB, ten per lane, and two per lane fit into the cache of a node."""
    sequence, corpus = 4096, 10**8
    assert advise(1024, sequence, corpus, True, None) == Advice(1024, 1024, 2 * 1024 << 22)
    assert advise(1000, sequence, corpus, True, None) == advise(961, sequence, corpus, True, None)
    assert advise(1024, sequence, corpus, False, None) == Advice(1024, 4096, 2 * 4096 << 22)
    assert advise(1024, sequence, corpus, True, None, nodes=8) == Advice(1024, 1024, 2 * 128 << 22)
    assert advise(1024, sequence, corpus, True, 1 << 32) == Advice(512, 1024, 1 << 32)
    assert advise(1024, sequence, corpus, True, 1 << 32, nodes=8) == Advice(1024, 1024, 1 << 30)
    assert advise(1024, sequence, corpus, False, 1 << 32) == Advice(512, 1024, 1 << 32)  # four times would be 512 KiB
    assert advise(64, sequence, 64_000, True, None) == Advice(100, 64, 2 * 64 * 100 * sequence)
    assert advise(1024, sequence, 64_000, True, None) is None


@pytest.mark.parametrize(
    ("locality", "texts"),
    [
        ({"block_sequences": 20, "lanes": 8}, ["8 lanes for up to 16 sequences in a step: .*; use 16 lanes or more"]),
        (
            {"block_sequences": 20, "lanes": 16},
            ["not built with --shuffle-documents", "about 14% of the bytes are fetched"],
        ),
        ({"block_sequences": 2, "lanes": 64}, []),
    ],
)
def test_what_costs_quality_or_bytes_is_a_warning(
    plan_at: Callable[..., Plan], path: Path, locality: Any, texts: list[str]
) -> None:
    (row,) = localities_of(plan_at(locality, str(path)), 280)
    assert len(row.warnings) == len(texts)
    for text, warning in zip(texts, row.warnings, strict=True):
        assert re.search(text, warning)


def test_the_cost_of_blocks_is_announced(plan_at: Callable[..., Plan], range_server: RangeServer) -> None:
    """Requests, bytes and cache, against what a run takes."""
    plan = plan_at({"block_sequences": 20, "lanes": 8})
    announced = transport_of(plan, 280)
    assert announced is not None
    (row,) = announced.rows
    assert row.transport == "blocks"
    assert row.cache_bytes - row.index_bytes == localities_of(plan, 280)[0].cache_bytes == 2 * 8 * (20 * LENGTH + 1) * 4
    assert transport_of(plan, 280, nodes=4).rows[0].cache_bytes < row.cache_bytes
    range_server.log.clear()
    list(TokenLoader(plan, rank=0, world_size=1))
    fetched = range_server.gets("tokens-")
    assert sum(record.num_bytes for record in fetched) == pytest.approx(row.num_bytes, rel=0.05)
    assert len(fetched) == pytest.approx(row.requests, rel=0.25)  # some rows are fetched by themselves


def test_a_cache_that_is_too_small_is_announced(plan_at: Callable[..., Plan]) -> None:
    found = transport_of(plan_at({"block_sequences": 20, "lanes": 8}, limit=50_000), 280)
    assert found is not None
    assert (found.rows[0].transport, found.rows[0].why_no_mirror) == ("spans", "the cache may hold 50,000 bytes")


def test_the_command_advises(path: Path, tmp_path: Path) -> None:
    """For a source with warnings, in the table and as JSON; `--nodes` divides the cache."""
    fields = "sequence_length: 96\nglobal_batch_size: 2\nnum_steps: 40\npacking: concat\nsources:\n"
    (tmp_path / "plan.yaml").write_text(
        f"{fields}  web: {{path: '{path}', locality: {{block_sequences: 600, lanes: 1}}}}\n"
    )
    out = ok("plan", tmp_path / "plan.yaml")
    assert "warning: source web: 1 lane for up to 2 sequences in a step" in out
    found = json.loads(ok("plan", tmp_path / "plan.yaml", "--json", "--nodes", "2"))["locality"]
    assert [row["lanes"] for row in found] == [1]


def test_the_page_of_a_plan_shows_what_the_command_prints(path: Path, plan_at: Callable[..., Plan]) -> None:
    """Blocks and lanes, warnings, and the advice; nothing for a plan without lanes."""
    report = plan_report(plan_at({"block_sequences": 20, "lanes": 8}, str(path)), samples=0)
    row = replace(report.locality[0], advice=Advice(block_sequences=40, lanes=16, cache_bytes=3_000_000))
    assert (
        row.advice_text == "for a new run, locality: {block_sequences: 40, lanes: 16} suits it (3 MB of cache per node)"
    )
    found = check_page(plan_page(replace(report, locality=(row,)))).text
    assert all(text in found for text in [row.advice_text, *row.warnings])
    assert "blocks of neighbouring sequences" not in check_page(plan_page(plan_report(plan_at(None, str(path))))).text
