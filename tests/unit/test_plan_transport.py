"""What a plan over stores at URLs will cost, against what it does cost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import random_documents
from tests.support.processes.command_lines import run_here
from tests.support.servers.range_server import RangeServer
from tokenstore import Plan, PlanConfig, RemoteOptions
from tokenstore.views.plan_transport import transport_of

DOCUMENTS = random_documents(8, 1500, 60)
STEPS = 20


@pytest.fixture
def served(range_server: RangeServer, make_store: Callable[..., Path], tmp_path: Path) -> RangeServer:
    """A store of 90 KB at s3://bucket/web."""
    range_server.add_folder("bucket/web", make_store("web", DOCUMENTS, shard_bytes=100_000, length_index=True))
    return range_server


def plan_over(tmp_path: Path, packing: str, transport: str) -> Plan:
    """A plan of 20 steps."""
    remote = RemoteOptions(cache=tmp_path / "cache", transport=transport, cache_limit="1 MB")
    return Plan.of({"web": "s3://bucket/web"}, 64, 8, packing=packing, num_steps=STEPS, remote=remote)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_spans_cost_what_was_announced(served: RangeServer, tmp_path: Path, packing: str) -> None:
    """Requests and bytes of exact ranges, up to those that happen to touch; P7: announcing fetches nothing."""
    plan = plan_over(tmp_path, packing, "spans")
    served.log.clear()
    announced = transport_of(plan, STEPS)
    assert announced is not None
    assert not served.gets("tokens-")
    for step in range(STEPS):
        plan.batch(step)
    tokens = served.gets("tokens-")
    assert len(tokens) == pytest.approx(announced.requests, rel=0.05)
    assert sum(record.num_bytes for record in tokens) == pytest.approx(announced.num_bytes, rel=0.02)
    assert announced.rows[0].cache_bytes == announced.rows[0].index_bytes


def test_rates_and_prices_are_proportional(served: RangeServer, tmp_path: Path) -> None:
    """A run of twice the speed makes twice the requests per second; 1,000 requests have one price."""
    plan = plan_over(tmp_path, "concat", "spans")
    slow, fast = (transport_of(plan, STEPS, speed, 0.5) for speed in (1000.0, 2000.0))
    assert slow is not None
    assert fast is not None
    assert fast.requests_per_second == pytest.approx(2 * slow.requests_per_second)
    assert slow.requests_per_second == pytest.approx(slow.requests * 1000 / slow.tokens)
    assert slow.price == pytest.approx(slow.requests * 0.5 / 1000)
    assert slow.price_per_hour == pytest.approx(slow.requests_per_second * 3600 * 0.5 / 1000)


def test_the_cache_limit_decides_about_a_mirror(served: RangeServer, tmp_path: Path) -> None:
    """Where the store fits it is mirrored; otherwise the reason is given. The same as the loader does."""
    plan = plan_over(tmp_path, "concat", "auto")
    announced = transport_of(plan, STEPS)
    assert announced is not None
    assert (announced.rows[0].transport, announced.rows[0].why_no_mirror) == ("mirror", "")
    assert announced.rows[0].cache_bytes > announced.rows[0].index_bytes
    assert plan.stores["web"].token_files.transport == "mirror"
    remote = RemoteOptions(cache=tmp_path / "other", cache_limit=5000)
    plan = Plan.of({"web": "s3://bucket/web"}, 64, 8, num_steps=STEPS, remote=remote)
    announced = transport_of(plan, STEPS)
    assert announced is not None
    assert (announced.rows[0].transport, announced.rows[0].why_no_mirror) == ("spans", "the cache may hold 5,000 bytes")
    assert plan.stores["web"].token_files.transport == "spans"


def test_the_command_shows_the_costs(served: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the stores at URLs; none for stores on disks."""
    monkeypatch.setenv("TOKENSTORE_TRANSPORT", "spans")
    fields = "sequence_length: 64\nglobal_batch_size: 8\nnum_steps: 40\nsources:\n  web: {path: PATH}\n"
    (tmp_path / "url.yaml").write_text(fields.replace("PATH", "'s3://bucket/web'"))
    (tmp_path / "disk.yaml").write_text(fields.replace("PATH", "web"))
    options = ("--cache", tmp_path / "cache", "--tokens-per-second", "1e6", "--request-price", "0.001")
    shown = run_here("plan", tmp_path / "url.yaml", *options).stdout
    assert "s3://bucket/web" in shown
    assert "at $0.001 per 1,000 requests" in shown
    assert "at 1,000,000 tokens per second: " in shown
    assert "Stores at URLs" not in run_here("plan", tmp_path / "disk.yaml").stdout


@pytest.mark.parametrize("transport", ["auto", "mirror"])
def test_mirrors_that_do_not_fit_together_are_announced(
    served: RangeServer, make_store: Callable[..., Path], tmp_path: Path, transport: str
) -> None:
    """Each store fits alone, both do not; slices of one store share its mirror."""
    served.add_folder("bucket/more", make_store("more", random_documents(9, 1500, 60), length_index=True))
    sources = {"web": "s3://bucket/web", "more": "s3://bucket/more"}
    remote = RemoteOptions(cache=tmp_path / "cache", transport=transport, cache_limit=100_000)
    announced = transport_of(Plan.of(sources, 64, 8, num_steps=STEPS, remote=remote), STEPS)
    assert announced is not None
    assert "and the cache may hold 100,000: " in announced.problem
    assert ("the run will be refused" in announced.problem) == (transport == "mirror")
    slices = {name: {"path": "s3://bucket/web", "take": f"{i}/2"} for i, name in enumerate("ab")}
    config = PlanConfig(sequence_length=64, global_batch_size=8, num_steps=STEPS, sources=slices)
    announced = transport_of(Plan(config, remote=remote), STEPS)
    assert announced is not None
    assert not announced.problem


@pytest.mark.parametrize(
    "option", [("--tokens-per-second", "nan"), ("--tokens-per-second", "-1"), ("--request-price", "-1")]
)
def test_rates_and_prices_that_are_no_amounts_are_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    """The message names the option, before the plan is read."""
    result = run_here("plan", tmp_path / "none.yaml", *option)
    assert (result.returncode, f"{option[0]}: expected a finite number" in result.stderr) == (2, True)
