"""Calling for pages and the thread that makes batches: the same items, no thread left behind, errors where they belong."""

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
from tokenstore.torch_data.prefetch import Prefetcher, PrefetchStopped, with_prefetched_pages


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    path = make_store("a", random_documents(3, 200, 60), shard_bytes=4000, length_index=True)
    return Plan.of(path, sequence_length=16, global_batch_size=12, num_steps=12, packing="best_fit")


def threads() -> list[threading.Thread]:
    """Those of us that live."""
    return [thread for thread in threading.enumerate() if thread.name == "tokenstore-ahead"]


def rows_of(number: int) -> np.ndarray:
    return np.full((1, 2), number)


@pytest.mark.parametrize("batches", [1, 2, 5, 50])
def test_pages_are_called_for_in_order_and_ahead(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is waited for every item is called for once, in order, at most so many ahead, and given unchanged."""
    monkeypatch.setattr(prefetch, "major_faults", count().__next__)
    called: list[int] = []
    located = ((number, rows_of(number)) for number in range(30))
    for expected, (place, rows) in enumerate(with_prefetched_pages(located, lambda r: called.append(r[0, 0]), batches)):
        assert place == rows[0, 0] == expected
        assert called == list(range(len(called)))
        assert min(expected + 2, 30) <= len(called) <= min(expected + batches + 1, 30)
    assert len(called) == 30
    assert not list(with_prefetched_pages(iter(()), called.append, batches))


def test_pages_in_memory_are_soon_called_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing comes from the disk calling ends; one wait and it soon begins again, for a while."""
    waits = 0
    monkeypatch.setattr(prefetch, "major_faults", lambda: waits)
    monkeypatch.setattr(prefetch, "_KEEP_CALLING", 5)
    monkeypatch.setattr(prefetch, "_PROBES", 0)
    called: list[int] = []
    located = ((number, rows_of(number)) for number in count())
    given = with_prefetched_pages(located, lambda r: called.append(r[0, 0]), 1)
    assert [place for place, _ in islice(given, 18)] == list(range(18))
    assert called == [0, 1]
    waits = 3
    assert [place for place, _ in islice(given, 60)] == list(range(18, 78))
    assert called == [0, 1, *range(18, 24)]


def test_some_batches_find_out_whether_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before calling would end, a row of some batches is left out: if it has to be waited for, calling goes on without a
    gap; if not, it ends.
    """
    waits, called = 1, set()
    monkeypatch.setattr(prefetch, "_KEEP_CALLING", 20)
    monkeypatch.setattr(prefetch, "major_faults", lambda: waits)
    located = ((number, np.array([[number, 0], [number, 1]])) for number in count())
    given = with_prefetched_pages(located, lambda rows: called.update(map(tuple, rows.tolist())), 3)
    assert next(given)[0] == 0
    waits = 2
    for number, _ in islice(given, 200):
        missing = {(number, 0), (number, 1)} - called
        assert (number, 1) not in missing
        waits += len(missing)
    assert 0 < waits - 2 < 30
    assert len(list(islice(given, 60))) == 60
    assert max(called)[0] < 230


def test_damage_ahead_is_left_for_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: an error met while calling stops nothing that comes before it."""

    def refuse(rows: np.ndarray) -> None:
        raise CorruptionError("damaged")

    monkeypatch.setattr(prefetch, "major_faults", count().__next__)
    located = [(number, rows_of(number)) for number in range(9)]
    assert list(with_prefetched_pages(iter(located), refuse, 3)) == located


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


def test_an_error_comes_behind_the_items_before_it() -> None:
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


def test_who_asks_behind_the_end_does_not_wait_for_a_thread_that_is_slow_to_go() -> None:
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
    with pytest.raises(ValueError, match=f"{name}: expected a number of microbatches, 0 for none, found {value}"):
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
    assert (next(iterator)["input_ids"].numpy() == plan.batch(4)["input_ids"]).all()  # begins anew
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

    with pytest.raises(CorruptionError, match="expected ids below 300, found 65535"):
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
def test_a_forked_process_goes_on_by_itself(plan: Plan, pause: float) -> None:
    """The thread stays behind in the parent; the child gives what was made, then makes the rest, and neither hangs."""
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
