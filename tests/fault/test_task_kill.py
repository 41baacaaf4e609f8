"""Tasks of a build as real processes: killed, doubled, stopped and continued. The bytes of one machine, or no store."""

import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.stopping import NEVER, Child
from tests.support.stores.building import left_behind, mixed_corpus
from tokenstore.builder import BuildOptions, build_store, build_task, pipeline
from tokenstore.builder.reading.units import cut_units
from tokenstore.builder.schedule import Task

SPLIT = {"split": "train=0.6,test=0.4", "dedup": "exact", "origins": True}
GROUPS = {"group_bytes": 64 * 250}  # units of 250 bytes
KINDS: dict[str, dict[str, Any]] = {
    "store": {},
    "splits": SPLIT,
    "groups": GROUPS,
    "groups of splits": {**GROUPS, **SPLIT},
}
BUSY = "store: process "
OUTLIVED = "another process finished or removed it while this task ran"


class Site:
    """A corpus, the store that one process makes of it, and processes that make it together."""

    def __init__(self, folder: Path, options: dict[str, Any], corpus: Path):
        self.folder, self.corpus, self.options = folder, corpus, options
        self.children: list[Child] = []
        build_store(self._options(folder / "whole"))
        self.whole = tree(folder / "whole")
        self.output = folder / "store"

    def _options(self, output: Path) -> BuildOptions:
        return BuildOptions((str(self.corpus),), output, "bytes", max_bad=3, shard_bytes=2000, **self.options)

    def again(self) -> None:
        """Begin a new build, at another output."""
        self.output = self.folder / f"store-{len(self.children)}"

    def start(self, work: Callable[[], object], number: int = NEVER, kind: int = signal.SIGKILL) -> Child:
        """A process that does some work and gets a signal before its n-th call to the disk."""
        child = Child(work, self.folder / f"said-{len(self.children)}", number, kind)
        self.children.append(child)
        return child

    def task(self, number: int, of: int) -> Callable[[], object]:
        """The work of a task."""
        options = self._options(self.output)
        return lambda: build_task(options, Task(number, of))

    def finish(self) -> object:
        """Write the store from all parts."""
        return build_store(self._options(self.output), complete=True)

    def make_all(self, of: int) -> None:
        """Run all tasks here, until all is made: with dedup and groups that takes three runs."""
        for number in [*range(of)] * (3 if {*self.options} >= {"dedup", "group_bytes"} else 1):
            self.task(number, of)()

    def check(self) -> None:
        """The store has the bytes of one process, and nothing else is left."""
        assert tree(self.output) == self.whole
        assert left_behind(self.output) == ["rejects.jsonl"]


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def site_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Site]]:
    """Sites by kind of store. Processes that still run at the end are killed."""
    monkeypatch.setattr(pipeline, "cut_units", partial(cut_units, unit_bytes=700))
    corpus = mixed_corpus(tmp_path / "in")
    sites = list[Site]()

    def site(kind: str) -> Site:
        (folder := tmp_path / kind).mkdir()
        sites.append(Site(folder, KINDS[kind], corpus))
        return sites[-1]

    yield site
    for child in itertools.chain.from_iterable(each.children for each in sites):
        child.kill()


def check_zombie(site: Site, work: Callable[[], Callable[[], object]], number: int) -> bool:
    """Stop a process before a call, let others finish the build, and continue it. False if it ended before that call."""
    site.again()
    child = site.start(work(), number, signal.SIGSTOP)
    if child.wait() == "done":
        return False
    site.make_all(2)
    site.finish()
    said = child.go_on()
    assert said == "done" or OUTLIVED in said, said
    site.check()
    return True


def check_finishers(site: Site, number: int) -> bool:
    """Stop a finish before a call, or kill it, while others finish. False if it ended before that call."""
    site.again()
    site.make_all(2)
    first = site.start(site.finish, number, signal.SIGSTOP)
    if first.wait() == "done":
        return False
    second = site.start(site.finish)
    said = second.wait()
    assert said == "done" or said.startswith(BUSY), said
    if number % 2:
        first.kill()
        site.finish()
    else:
        # The second one has finished it if the first held no lock yet or any more
        assert first.go_on() == "done"
    site.check()
    return True


def check_schedule(site: Site, seed: int) -> None:
    """Tasks of several arrays, several at once, each killed at a moment or a call, or stopped for a while; finishes between."""
    draw = random.Random(seed)
    site.again()
    stopped = list[Child]()
    for _ in range(draw.randrange(1, 4)):
        of = draw.choice([1, 2, 3, 7])
        running = list[Child]()
        for _ in range(draw.randrange(1, 4)):
            number = draw.choice([NEVER, draw.randrange(1, 60), draw.randrange(1, 600)])
            if draw.random() < 0.2:
                running.append(site.start(site.finish, number))
            else:
                stops = draw.random() < 0.3
                work = site.task(draw.randrange(of), of)
                running.append(site.start(work, number, signal.SIGSTOP if stops else signal.SIGKILL))
        if draw.random() < 0.5:
            time.sleep(draw.random() * 0.2)
            draw.choice(running).kill()
        for child in running:
            if child.pid and check_said(child.wait()) == "stopped":
                stopped.append(child)
    for child in stopped[::2]:
        child.kill()
    site.make_all(draw.choice([1, 3]))
    site.finish()
    assert tree(site.output) == site.whole
    for child in stopped[1::2]:
        check_said(child.go_on())
    site.check()


def check_said(said: str) -> str:
    """What a process may say in the middle of a build."""
    allowed = ("done", "stopped", "killed", BUSY, "parts: ", "duplicates: ")
    assert said.startswith(allowed) or OUTLIVED in said, said
    return said


def count_while(check: Callable[[int], bool]) -> int:
    """For how many numbers, in steps that grow, a check reaches its call."""
    numbers = itertools.accumulate(itertools.repeat(0), lambda last, _: last + 2 + last // 6, initial=1)
    return sum(1 for _ in itertools.takewhile(check, numbers))


@pytest.mark.parametrize("kind", ["splits", "groups of splits"])
def test_a_task_that_is_continued_after_the_commit_leaves_the_store(site_of: Callable[[str], Site], kind: str) -> None:
    """P8: it was believed dead; it ends with a message or by itself."""
    site = site_of(kind)
    assert check_zombie(site, lambda: site.task(0, 2), 60)


def test_a_task_that_looks_before_the_commit_and_joins_after_it_begins_no_build(
    site_of: Callable[[str], Site],
) -> None:
    """It found no store, and was stopped before it made the work folder."""
    site = site_of("store")
    for number in (4, 8, 26):
        assert check_zombie(site, lambda: site.task(0, 2), number)


def test_a_task_that_begins_twice_at_once_does_its_work(site_of: Callable[[str], Site]) -> None:
    """P8: as a scheduler does that requeues a task too early. The first is stopped while it joins the build."""
    site = site_of("store")
    for number in range(2, 70, 2):
        first = site.start(site.task(0, 1), number, signal.SIGSTOP)
        assert first.wait() == "stopped"
        site.task(0, 1)()
        assert first.go_on() == "done"
    site.finish()
    site.check()


def test_of_two_finishes_one_writes_the_store(site_of: Callable[[str], Site]) -> None:
    """P8: the other one is told so; if the first is killed, the next one finishes."""
    site = site_of("splits")
    assert check_finishers(site, 120)
    assert check_finishers(site, 121)


def test_tasks_killed_at_random_calls_make_the_bytes_of_one_process(site_of: Callable[[str], Site]) -> None:
    """P8: several at once, some of them twice, resumed by other numbers of tasks."""
    for seed, kind in enumerate(("splits", "groups of splits")):
        check_schedule(site_of(kind), seed)


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_many_schedules_make_the_bytes_of_one_process(site_of: Callable[[str], Site], kind: str) -> None:
    """P8: 100 schedules in all."""
    site = site_of(kind)
    for seed in range(100, 125):
        check_schedule(site, seed)


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_may_be_stopped_before_any_call(site_of: Callable[[str], Site], kind: str) -> None:
    """P8: at each of its calls to the disk, in steps that grow."""
    site = site_of(kind)
    assert count_while(lambda number: check_zombie(site, lambda: site.task(0, 2), number)) > 10


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_finish_may_be_stopped_before_any_call(site_of: Callable[[str], Site], kind: str) -> None:
    """P8: while another one is started, and it is killed or continued."""
    site = site_of(kind)
    assert count_while(lambda number: check_finishers(site, number)) > 10
