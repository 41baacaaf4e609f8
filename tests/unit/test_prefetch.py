"""Reading ahead and the thread that makes batches: the same items, no thread remains, errors after the items before them."""

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import random_documents
from tokenstore import Plan, TokenLoader
from tokenstore.errors import CorruptionError
from tokenstore.store.files import major_faults
from tokenstore.store.maps import map_array, prefetch_pages
from tokenstore.torch_data import prefetch
from tokenstore.torch_data.options import check_contents
from tokenstore.torch_data.prefetch import FIRST_BURST, LONGEST_BURST, LOOK_EVERY, Bursts, Prefetcher, PrefetchStopped
from tokenstore.torch_data.tensors import BatchMaker


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    path = make_store("a", random_documents(3, 200, 60), shard_bytes=4000, length_index=True)
    return Plan.of(path, sequence_length=16, global_batch_size=12, num_steps=12, packing="best_fit")


def threads() -> list[threading.Thread]:
    """Those of us that live."""
    return [thread for thread in threading.enumerate() if thread.name == "tokenstore-ahead"]


def run_of(bursts: Bursts, batches: int) -> list[int]:
    """How far each of so many batches reads ahead."""
    return [bursts.reach() for _ in range(batches)]


class Disk:
    """Counts the faults that a test says there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.faults = 0
        monkeypatch.setattr(prefetch, "major_faults", lambda: self.faults)


def test_one_fault_is_one_short_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reclaimed page now and then does not keep a run reading ahead that has all else in memory."""
    disk, bursts = Disk(monkeypatch), Bursts(4)
    assert run_of(bursts, 300) == [4] + [0] * 299  # the first batch may well have to be waited for
    for _ in range(3):
        disk.faults += 1
        reaches = run_of(bursts, 300)
        assert set(reaches) == {0, 4}
        assert 0 < reaches.count(4) <= FIRST_BURST + 1
        assert reaches.index(4) < LOOK_EVERY


def test_bursts_grow_while_faults_continue_and_end_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, bursts = Disk(monkeypatch), Bursts(4)
    run_of(bursts, 300)
    lengths = []
    for _ in range(8):  # each fault soon after the burst before it
        disk.faults += 1
        reaches = run_of(bursts, LOOK_EVERY)
        while bursts.reach():
            reaches.append(4)
        lengths.append(reaches.count(4))
    assert lengths == sorted(lengths)
    assert lengths[-1] >= LONGEST_BURST
    assert sum(map(bool, run_of(bursts, 3 * LONGEST_BURST))) == 0
    disk.faults += 1
    assert run_of(bursts, 300).count(4) <= FIRST_BURST + 1


def test_without_readahead_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "major_faults", lambda: 1 / 0)
    assert set(run_of(Bursts(0), 50)) == {0}


class Asked:
    """The pages that a maker asked for; each batch is made of what was asked for before."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch):
        self.ranges: list[tuple[int, int]] = []
        monkeypatch.setattr("tokenstore.torch_data.tensors.prefetch_pages", self.ranges.extend)
        self.maker = BatchMaker(plan, check_contents(plan, "torch", None))
        self.places = [(step, 0, 12) for step in range(12)]

    def expected(self, first_row: int = 0) -> list[list[tuple[int, int]]]:
        """Of each batch, by itself."""
        sampler = self.maker.sampler
        planned = [sampler.plan(sampler.locate(*place))[0] for place in self.places]
        return [sampler.ranges(each, first_row) for each in planned]


@pytest.mark.parametrize("batches", [1, 2, 5, 50])
def test_pages_are_asked_for_in_order_and_ahead(plan: Plan, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is waited for, every batch is asked for once, in order, at most so many ahead, and given unchanged."""
    monkeypatch.setattr(prefetch, "major_faults", count().__next__)
    monkeypatch.setattr(prefetch, "PROBES", 0)
    asked = Asked(plan, monkeypatch)
    expected = asked.expected()
    for step, (place, batch) in enumerate(asked.maker.batches(asked.places, batches)):
        assert place[0] == step
        assert (batch["input_ids"].numpy() == plan.batch(step)["input_ids"]).all()
        number = next(n for n in range(13) if len(asked.ranges) == sum(map(len, expected[:n])))
        assert asked.ranges == [pages for each in expected[:number] for pages in each]
        assert min(step + 1, 12) <= number <= min(step + batches + 1, 12)
    assert number == 12


def test_some_batches_find_out_whether_a_burst_still_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the end of a burst some batches come without their first row: if it must be waited for, no gap follows."""
    disk, bursts = Disk(monkeypatch), Bursts(3)
    run_of(bursts, 50)
    waiting = [((), number) for number in range(9)]
    disk.faults, num_probes, gaps = 1, 0, 0
    while not bursts.reach():
        pass
    for _ in range(4000):
        probes = sum(first_row for _, first_row in bursts.due(waiting))
        num_probes += probes
        disk.faults += probes if num_probes <= 8 else 0  # then all is in memory
        gaps += not bursts.reach() and num_probes <= 8
    assert (gaps, bursts.reach()) == (0, 0)
    assert 8 < num_probes <= 12


def test_damage_ahead_is_left_for_its_batch(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an error met while planning several batches stops nothing that comes before it, and comes again if asked again."""
    maker = BatchMaker(plan, check_contents(plan, "torch", None))
    real = maker.sampler.plan_places

    def refuse(places: list[tuple], *arguments: object) -> list:
        if any(place[0] == 7 for place in places):
            raise CorruptionError("damaged")
        return real(places, *arguments)

    monkeypatch.setattr(maker.sampler, "plan_places", refuse)
    for readahead in (0, 3, 50):
        given = maker.batches([(step, 0, 12) for step in range(12)], readahead)
        assert [next(given)[0][0] for _ in range(7)] == list(range(7))
        with pytest.raises(CorruptionError):
            next(given)


def test_calling_for_pages_cannot_fail(tmp_path: Path) -> None:
    """It is advice: overlapping, empty, one byte at a border, or where nothing is mapped at all."""
    (tmp_path / "x").write_bytes(bytes(20_000))
    array, _ = map_array(tmp_path / "x", np.dtype("<u2"), 10_000)
    at = array.ctypes.data
    prefetch_pages([])
    prefetch_pages([(at + 4095, 2), (at, 5000), (at + 12_288, 1), (at + 19_998, 2), (1 << 46, 9000)])
    assert not array.any()
    assert major_faults() >= 0


def test_the_thread_gives_the_items_and_the_end() -> None:
    """All items in order, then the end, again and again; never more ahead than asked for."""
    made = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    given = Prefetcher(items(), 3)
    for number in range(50):
        assert next(given) == number
        assert len(made) <= number + 1 + 3
    assert list(given) == []
    given.close()
    assert not threads()


def test_an_error_follows_the_items_before_it() -> None:
    """Whatever is raised in the thread is raised to who asks, with its traceback, when it is its turn."""

    class Stopped(BaseException):
        pass

    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise Stopped

    given = Prefetcher(items(), 8)
    assert [next(given), next(given)] == [1, 2]
    with pytest.raises(Stopped) as raised:
        next(given)
    assert raised.traceback[-1].name == "items"
    with pytest.raises(PrefetchStopped):
        next(given)


def test_next_after_the_end_does_not_wait_for_a_slow_thread() -> None:
    given = Prefetcher(iter([1]), 2)
    assert list(given) == [1]
    given._thread = SimpleNamespace(is_alive=lambda: True)
    with pytest.raises(PrefetchStopped):
        next(given)


def test_closing_ends_the_thread_and_twice_is_once() -> None:
    """After close the thread is gone, and what is asked for says so."""
    given = Prefetcher(iter(count()), 2)
    assert next(given) == 0
    given.close()
    given.close()
    assert not threads()
    with pytest.raises(PrefetchStopped):
        list(given)  # what was made may still be taken


def test_who_forgets_it_ends_the_thread() -> None:
    """An iterator that is dropped, or collected in a cycle, leaves neither a thread nor what it made."""
    for _ in range(3):
        next(Prefetcher(iter(count()), 2))
    assert not threads()
    cycle: list[object] = [Prefetcher(iter(count()), 2)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not threads()


def test_many_are_opened_and_closed_at_once() -> None:
    """Closing races with making: a hundred times, with no thread left and no hang."""
    for number in range(100):
        given = Prefetcher(iter(range(5)), 1 + number % 3)
        assert list(islice(given, number % 7)) == list(range(min(number % 7, 5)))
        given.close()
    assert not threads()


@pytest.mark.parametrize(("name", "value"), [("readahead", -1), ("prefetch", -2)])
def test_negative_numbers_are_refused(plan: Plan, name: str, value: int) -> None:
    """The message names the argument."""
    with pytest.raises(ValueError, match=f"{name}: expected 0 or more microbatches, found {value}"):
        TokenLoader(plan, **{name: value})


def test_closing_or_leaving_a_loader_ends_its_thread(plan: Plan) -> None:
    """close(), the end of the plan, a loader forgotten: no thread stays, and the place is kept; a loop left early keeps it."""
    loader = TokenLoader(plan, prefetch=3)
    for step, _ in enumerate(loader):
        if step == 2:
            break
    assert loader.step == 3
    assert len(threads()) == 1
    loader.close()
    assert not threads()
    iterator = iter(loader)
    next(iterator)
    assert len(threads()) == 1
    loader.close()
    assert not threads()
    assert (next(iterator)["input_ids"].numpy() == plan.batch(4)["input_ids"]).all()  # begins again
    assert [sum(1 for _ in loader), len(threads())] == [7, 0]
    iterator = iter(loader)
    next(iterator)
    del loader, iterator
    assert not threads()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_iterators_of_one_loader_share_its_position(plan: Plan, prefetch: int) -> None:
    """However many ask in turn, each batch is given once, in order."""
    loader = TokenLoader(plan, prefetch=prefetch)
    askers = [iter(loader), iter(loader), loader]
    for step in range(12):
        assert (next(askers[step % 3])["input_ids"].numpy() == plan.batch(step)["input_ids"]).all()


def test_a_loader_is_pickled_with_its_thread_at_work(plan: Plan) -> None:
    """What is sent elsewhere knows what was given, not what was made ahead."""
    loader = TokenLoader(plan, prefetch=2, readahead=3)
    iterator = iter(loader)
    next(iterator)
    data = pickle.dumps(loader)
    assert len(data) < 65536
    again = pickle.loads(data)
    assert again.state_dict() == loader.state_dict() == plan.state(1)
    assert (next(iter(again))["input_ids"].numpy() == plan.batch(1)["input_ids"]).all()


def until_damage(loader: TokenLoader) -> tuple[list, int]:
    """The batches before the damage, and where the loader is then."""
    batches = []

    def take() -> None:
        batches.extend(batch["input_ids"].tolist() for batch in loader)

    with pytest.raises(CorruptionError, match="expected token ids below 300, found 65535"):
        take()
    return batches, loader.step


def test_damage_is_raised_at_its_batch(make_store: Callable[..., Path]) -> None:
    """P9: with readahead and a thread the batches before the damage come, then the error, and the state is in front of it."""
    path = make_store("a", random_documents(3, 200, 60), shard_bytes=4000)
    tokens = path / "tokens-00002.bin"
    tokens.chmod(0o644)
    with open(tokens, "r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xff")
    plan = Plan.of(path, sequence_length=16, global_batch_size=4, num_steps=60, packing="concat")
    taken = [until_damage(TokenLoader(plan, **ahead)) for ahead in ({"readahead": 0}, {"readahead": 3, "prefetch": 3})]
    assert taken[0] == taken[1]
    assert taken[0][1] == len(taken[0][0]) > 0
    assert not threads()


def _go_on(iterator: Iterator, plan: Plan, step: int) -> None:
    for k, batch in zip(range(step, 12), iterator, strict=True):
        assert (batch["input_ids"].numpy() == plan.batch(k)["input_ids"]).all()
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_forked_process_continues_by_itself(plan: Plan, pause: float) -> None:
    """The thread stays in the parent. The child yields finished items, then makes the rest, and neither hangs."""
    iterator = iter(TokenLoader(plan, prefetch=2))
    next(iterator)
    time.sleep(pause)
    child = multiprocessing.get_context("fork").Process(target=_go_on, args=(iterator, plan, 1))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert (next(iterator)["input_ids"].numpy() == plan.batch(1)["input_ids"]).all()


_ENDINGS = {
    "return": "",
    "interrupt": "import signal; signal.raise_signal(signal.SIGINT)",
    "waiting": (
        "import _thread, signal, threading, time\n"
        "threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()\n"
        "from tokenstore.torch_data.prefetch import Prefetcher\n"
        "next(Prefetcher(iter(lambda: time.sleep(0.6), 1), 1))\n"
        "next(Prefetcher((time.sleep(1.5) for _ in 'a'), 1))"
    ),
}


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        pytest.param("return", 0, marks=pytest.mark.deep),
        pytest.param("interrupt", -2, marks=pytest.mark.deep),
        ("waiting", -2),
    ],
)
def test_a_process_ends_with_its_thread_at_work(plan: Plan, ending: str, code: int) -> None:
    """A script that returns or is interrupted with an iteration open ends at once, also while it waits for a batch."""
    path = next(iter(plan.stores.values())).path
    script = (
        "import tokenstore\n"
        f"plan = tokenstore.Plan.of({str(path)!r}, 16, 12)\n"
        "iterator = iter(tokenstore.TokenLoader(plan, prefetch=4))\n"
        f"next(iterator)\n{_ENDINGS[ending]}\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    assert ("KeyboardInterrupt" in done.stderr) == (code == -2)
    assert "Fatal" not in done.stderr
