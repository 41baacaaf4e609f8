"""`build_task`: any tasks, any number of times and in any order, then one finish: the bytes of a build by one process."""

import contextlib
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tokenstore
from tests.support.stores.building import left_behind, mixed_corpus
from tokenstore.builder import BuildOptions, build_store, build_task, making
from tokenstore.builder.groups import owners_of, ranges_of, share_of
from tokenstore.builder.schedule import Task, parse_task
from tokenstore.errors import BadRecordsError, BuildError, ConfigError
from tokenstore.store.work import Work

SPLIT = {"split": "train=0.6,test=0.4", "dedup": "exact", "origins": True}
GROUPS = {"group_bytes": 64 * 90}  # units of 90 bytes
GROUPED_SPLIT = {**GROUPS, **SPLIT}
KINDS = {"store": {}, "splits": SPLIT, "groups": GROUPS, "groups of splits": GROUPED_SPLIT}


@pytest.fixture
def corpus(tmp_path: Path, small_units: Callable[[int], None]) -> Path:
    """Files of every format, cut into many units."""
    small_units(700)
    return mixed_corpus(tmp_path / "in")


def options_of(corpus: Path, output: Path, **options: Any) -> BuildOptions:
    """The options of a build of the corpus."""
    return BuildOptions((str(corpus),), output, "bytes", **{"max_bad": 3, "shard_bytes": 2000, **options})


def tree(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


LONG_RUNS = {("groups", 1), ("groups of splits", 1), ("groups of splits", 3), ("groups", 7)}


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        pytest.param(kind, of, marks=[pytest.mark.deep] * ((kind, of) in LONG_RUNS))
        for kind, of in itertools.product(KINDS, (1, 3, 7))
    ],
)
def test_tasks_make_the_bytes_of_one_process(tmp_path: Path, corpus: Path, kind: str, of: int) -> None:
    """P8: the store does not depend on the number of tasks, nor does the list of bad records."""
    options = KINDS[kind]
    whole = build_store(options_of(corpus, tmp_path / "whole", **options))
    mine = options_of(corpus, tmp_path / "store", **options)
    for _ in range(3 if {*options} >= {"dedup", "group_bytes"} else 1):
        for number in reversed(range(of)):
            result = build_task(mine, Task(number, of))
            assert not (tmp_path / "store").exists()
        assert result.num_missing == 0
    made = build_store(mine, complete=True)
    assert tree(made.path) == tree(whole.path)
    assert made.rejects.read_bytes() == whole.rejects.read_bytes()
    assert left_behind(made.path) == ["rejects.jsonl"]


def test_a_task_that_is_repeated_makes_nothing_again(tmp_path: Path, corpus: Path) -> None:
    """Requeueing is the same command; the number of tasks may change between runs."""
    mine = options_of(corpus, tmp_path / "store")
    first = build_task(mine, Task(0, 2))
    assert 0 < first.num_made == first.num_units
    notes: list[str] = []
    again = build_task(mine, Task(0, 2), note=notes.append)
    assert (again.num_made, again.num_units, again.num_tokens) == (0, first.num_units, first.num_tokens)
    assert notes == [f"resuming: {first.num_units} of {first.num_units} parts of task 0/2 are done"]
    rest = build_task(mine, Task(0, 1))
    assert rest.num_made == rest.num_units - first.num_units
    build_store(mine, complete=True)
    assert build_task(mine, Task(1, 2)).was_there
    assert left_behind(tmp_path / "store") == ["rejects.jsonl"]


@pytest.mark.parametrize(
    ("identity", "touched", "edited"), [("time", True, True), ("size", False, False), ("content", False, True)]
)
def test_the_identity_of_inputs_decides_what_is_made_again(
    tmp_path: Path, small_units: Callable[[int], None], identity: str, touched: bool, edited: bool
) -> None:
    """After inputs got another time, and after one got other bytes of the same size."""
    small_units(64)
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "one two three"}\n' * 20)
    mine = options_of(file, tmp_path / "store", input_identity=identity)
    assert build_task(mine, Task(0, 1)).num_made > 0
    os.utime(file, (10**9, 10**9))
    assert (build_task(mine, Task(0, 1)).num_made > 0) == touched
    file.write_text(file.read_text().replace("two", "six"))
    assert (build_task(mine, Task(0, 1)).num_made > 0) == edited


def test_a_finish_names_the_missing_units_and_their_tasks(tmp_path: Path, corpus: Path) -> None:
    """Nothing is made and nothing is written; the message says which tasks to run again."""
    mine = options_of(corpus, tmp_path / "store")
    with pytest.raises(BuildError, match=r"parts: \d+ of \d+ units are missing .*run the same command with --task i/n"):
        build_store(mine, complete=True)
    for number in (0, 2):
        build_task(mine, Task(number, 4))
    with pytest.raises(BuildError, match=r"units 1, 3, .*run these tasks of 4 again: 1,3 \(--task 1/4\)"):
        build_store(mine, complete=True)
    assert not (tmp_path / "store").exists()
    for number in (1, 3):
        build_task(mine, Task(number, 4))
    build_store(mine, complete=True)


def test_a_finish_without_overwrite_keeps_the_parts_of_tasks_with_it(tmp_path: Path, corpus: Path) -> None:
    """The store that is there is the same one, but perhaps damaged: the parts were made to replace it."""
    mine = options_of(corpus, tmp_path / "store")
    made = build_store(mine)
    (made.path / "tokens-00000.bin").chmod(0o644)
    damaged = (made.path / "tokens-00000.bin").read_bytes()[::-1]
    (made.path / "tokens-00000.bin").write_bytes(damaged)
    again = replace(mine, overwrite=True)
    assert build_task(again, Task(0, 1)).num_made > 0
    for complete in (False, True):
        with pytest.raises(ConfigError, match="is complete, and tasks with --overwrite have made parts"):
            build_store(mine, complete=complete)
    assert not build_store(again, complete=True).was_there
    assert tokenstore.verify(made.path) == []
    assert build_store(mine, complete=True).was_there


def test_groups_hold_the_documents_of_a_build_without_them(tmp_path: Path, corpus: Path) -> None:
    """Only the cuts between shards differ: documents, origins, inputs, counts and the list of bad records are the same."""
    for options in ({}, SPLIT):
        plain = build_store(options_of(corpus, tmp_path / f"plain{len(options)}", **options))
        grouped = build_store(options_of(corpus, tmp_path / f"groups{len(options)}", **GROUPS, **options))
        assert grouped.num_shards > plain.num_shards or options
        for one, other in zip(plain.splits or [plain], grouped.splits or [grouped], strict=True):
            with tokenstore.open_store(one.path) as a, tokenstore.open_store(other.path) as b:
                assert [x.tolist() for x in a] == [x.tolist() for x in b]
                assert [a.origin(i) for i in range(len(a))] == [b.origin(i) for i in range(len(b))]
                assert a.manifest.counts == b.manifest.counts
                assert a.file("inputs.jsonl").read_bytes() == b.file("inputs.jsonl").read_bytes()
                assert a.length_index().tolist() == b.length_index().tolist()
            assert tokenstore.verify(other.path) == []
        assert plain.rejects.read_bytes() == grouped.rejects.read_bytes()


def test_duplicates_are_searched_in_steps(tmp_path: Path, corpus: Path) -> None:
    """A finish between the steps says what to do; the plain command does all that is missing."""
    mine = options_of(corpus, tmp_path / "store", **GROUPED_SPLIT)
    build_task(mine, Task(1, 2))
    with pytest.raises(BuildError, match=r"units (is|are) missing .*run these tasks of 2 again: 0 \(--task 0/2\)"):
        build_store(mine, complete=True)
    build_task(mine, Task(0, 2))
    made = build_store(mine)
    assert tree(made.path) == tree(build_store(options_of(corpus, tmp_path / "one", **GROUPED_SPLIT)).path)


@pytest.mark.parametrize("of", [1, 2, 3, 5, 11, 30])
def test_tasks_share_all_units_of_all_groups(of: int) -> None:
    """Each unit has one task, whether there are fewer tasks than groups or more."""
    ranges = ranges_of([3, 3, 3, 9, 1, 1, 1, 1, 2], 7)
    assert ranges == [range(0, 2), range(2, 3), range(3, 4), range(4, 9)]
    owners = {unit: i for i in range(of) for _, units in share_of(ranges, Task(i, of)) for unit in units}
    assert owners == owners_of(ranges, of)
    assert sorted(owners) == list(range(9))
    assert sum(len(units) for i in range(of) for _, units in share_of(ranges, Task(i, of))) == 9


@pytest.mark.parametrize("option", [{"shuffle_documents": 3}, {"partition_by": "lang"}, {"max_total_tokens": 5}])
def test_options_that_need_all_documents_are_refused_with_groups(tmp_path: Path, option: dict[str, Any]) -> None:
    """A group is final before the next one is known."""
    with pytest.raises(ConfigError, match=f"^{next(iter(option))}: not with group_bytes[^;]*; use one of the two$"):
        options_of(tmp_path, tmp_path / "s", **GROUPS, **option)


@pytest.mark.parametrize("option", [{"shuffle_documents": 3}, {"max_total_tokens": 500}, {"sample": "50%"}])
def test_shaping_applies_to_builds_by_tasks(tmp_path: Path, corpus: Path, option: dict[str, Any]) -> None:
    """At the finish, in the order of the units, whatever tasks there were."""
    whole = build_store(options_of(corpus, tmp_path / "whole", **option))
    mine = options_of(corpus, tmp_path / "store", **option)
    for number in (2, 0, 1):
        build_task(mine, Task(number, 3))
    assert tree(build_store(mine, complete=True).path) == tree(whole.path)


class Killed(BaseException):
    """A process that dies; nothing handles it."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Call with n: from then on the process dies at the n-th step of making parts. The private folder then stays."""
    left = [-1]

    def dies(name: str) -> None:
        real = getattr(making, name)

        def step(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return real(*arguments)

        monkeypatch.setattr(making, name, step)

    for name in ("_write", "write_atomically", "publish"):
        dies(name)
    monkeypatch.setattr("tokenstore.store.private.remove_tree", lambda folder: None)
    return lambda steps: left.__setitem__(0, steps)


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_make_the_bytes_of_one_process(
    tmp_path: Path, corpus: Path, dying: Callable[[int], None], seed: int
) -> None:
    """P8: tasks of several arrays, killed at any step, repeated and interleaved, with a finish tried too early."""
    check_schedule(tmp_path, corpus, dying, seed)


@pytest.mark.deep
@pytest.mark.parametrize("seed", [4, 5, *range(100, 200)])
def test_many_random_schedules_make_the_bytes_of_one_process(
    tmp_path: Path, corpus: Path, dying: Callable[[int], None], seed: int
) -> None:
    """P8: the same, more often."""
    check_schedule(tmp_path, corpus, dying, seed)


def check_schedule(tmp_path: Path, corpus: Path, dying: Callable[[int], None], seed: int) -> None:
    """Run tasks at random, then those that are missing, and compare with one process."""
    draw = random.Random(seed)
    options = draw.choice([*KINDS.values(), {"shard_bytes": 900}])
    whole = build_store(options_of(corpus, tmp_path / "whole", **options))
    mine = options_of(corpus, tmp_path / "store", **options)
    for _ in range(draw.randrange(8)):
        of = draw.choice([1, 2, 3, 7])
        dying(draw.randrange(40))
        with contextlib.suppress(Killed):
            build_task(mine, Task(draw.randrange(of), of))
        dying(-1)
        if draw.random() < 0.3:
            try:
                build_store(mine, complete=True)
            except BuildError:
                assert not (tmp_path / "store").exists()
    of = draw.choice([1, 3])
    for number in [*draw.sample(range(of), of), *range(of), *range(of)]:
        build_task(mine, Task(number, of))
    made = build_store(mine, complete=True)
    assert tree(made.path) == tree(whole.path)


def test_two_tasks_that_make_the_same_part_at_once_agree(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one discards its own part. This is also a task that was believed dead and goes on."""
    mine = options_of(corpus, tmp_path / "store")
    real, runs = making.publish, list[Any]()

    def publish(folder: Path, final: Path) -> bool:
        if not runs:
            runs.append(None)
            runs[0] = build_task(mine, Task(0, 1))  # its successor makes all parts meanwhile
            assert final.exists()
        return real(folder, final)

    monkeypatch.setattr(making, "publish", publish)
    build_task(mine, Task(0, 1))
    names = [path.name for path in (Work(tmp_path / "store").building / "parts").iterdir()]
    assert len(names) == runs[0].num_units
    assert not any(name.startswith(".") for name in names)
    assert tree(build_store(mine, complete=True).path) == tree(build_store(options_of(corpus, tmp_path / "one")).path)


def test_a_task_that_outlives_the_build_says_so(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finish removes the work folder under a task that was believed dead; the store is not touched."""
    mine = options_of(corpus, tmp_path / "store")
    real, runs = making.publish, []

    def publish(folder: Path, final: Path) -> bool:
        if not runs:
            runs.append(0)
            build_task(mine, Task(0, 1))
            build_store(mine, complete=True)
        return real(folder, final)

    monkeypatch.setattr(making, "publish", publish)
    with pytest.raises(BuildError, match="another process finished or removed it while this task ran"):
        build_task(mine, Task(0, 1))
    assert tree(tmp_path / "store") == tree(build_store(options_of(corpus, tmp_path / "one")).path)
    assert left_behind(tmp_path / "store") == ["rejects.jsonl"]


def test_tasks_with_other_options_are_refused(tmp_path: Path, corpus: Path) -> None:
    """Even before the first part is finished: another task may be making it."""
    build_task(options_of(corpus, tmp_path / "store"), Task(6, 7))
    for path in (Work(tmp_path / "store").building / "parts").iterdir():
        (path / "summary.json").unlink()
    with pytest.raises(ConfigError, match=r"unfinished build with another command: .*eos"):
        build_task(options_of(corpus, tmp_path / "store", eos=False), Task(1, 7))


def test_too_many_bad_records_of_one_task_stop_it(tmp_path: Path, corpus: Path) -> None:
    """A task counts only its own; the finish counts all."""
    mine = options_of(corpus, tmp_path / "store", max_bad=0)
    with pytest.raises(BadRecordsError, match=r"1 so far in task 0/1 alone, and 0 are allowed"):
        build_task(mine, Task(0, 1))
    (line,) = (tmp_path / "store.tokenstore/building/rejects-task-0.jsonl").read_text().splitlines()
    assert json.loads(line)["file"] == "a.jsonl"
    some = options_of(corpus, tmp_path / "store", max_bad=2)
    for number in range(7):
        build_task(some, Task(number, 7))
    with pytest.raises(BadRecordsError, match=r"bad records: 3 so far, and 2 are allowed"):
        build_store(some, complete=True)
    build_store(options_of(corpus, tmp_path / "store"), complete=True)
    assert left_behind(tmp_path / "store") == ["rejects.jsonl"]


def test_folders_of_dead_processes_are_removed(tmp_path: Path, corpus: Path, dying: Callable[[int], None]) -> None:
    """A killed task leaves its private folder; a later run on the same host removes it."""
    mine = options_of(corpus, tmp_path / "store")
    dying(2)
    with pytest.raises(Killed):
        build_task(mine, Task(0, 1))
    (left,) = (Work(tmp_path / "store").building / "parts").glob(".*")
    place, _, rest = left.name.rpartition(".")
    place, _, _ = place.rpartition(".")
    dead = left.rename(left.with_name(f"{place}.4194999.{rest}"))  # above the largest process number
    other = left.with_name(f".{'0' * 32}.another-host-0.1.{'0' * 8}")
    other.mkdir()
    dying(-1)
    with pytest.MonkeyPatch.context() as patched:
        patched.undo()
        from tokenstore.store import private, writing

        patched.setattr(private, "remove_tree", writing.remove_tree)
        build_task(mine, Task(0, 1))
    assert not dead.exists()
    assert other.exists()


SLURM = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "3"}


@pytest.mark.parametrize(
    ("text", "environ", "task"),
    [
        ("3/8", {}, (3, 8)),
        ("3/8", SLURM, (3, 8)),
        ("auto", SLURM, (2, 4)),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_STEP": "2"}, (3, 4)),
        ("auto/6", SLURM, (2, 6)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "7"}, (7, 8)),
    ],
)
def test_a_task_comes_from_the_option_or_the_environment(text: str, environ: dict[str, str], task: tuple) -> None:
    """Slurm's arrays may begin with any number and have steps; Kubernetes counts from 0 and does not say how many."""
    assert parse_task(text, environ.get) == Task(*task)


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("8/8", {}, "expected i/n with 0 <= i < n"),
        ("-1/8", {}, "expected i/n with 0 <= i < n, such as 3/8, or auto"),
        ("3", {}, "expected i/n"),
        ("0/0", {}, "expected i/n with 0 <= i < n"),
        ("auto", {}, "expected SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX"),
        ("auto", {"JOB_COMPLETION_INDEX": "7"}, r"give the `completions` of the Job: --task auto/n"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "5"}, "the environment of the job array is incomplete"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "4"}, "incomplete"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "7"}, "found 7/2"),
    ],
)
def test_a_task_that_is_none_is_refused(text: str, environ: dict[str, str], message: str) -> None:
    """With what would work."""
    with pytest.raises(ConfigError, match=message):
        parse_task(text, environ.get)
