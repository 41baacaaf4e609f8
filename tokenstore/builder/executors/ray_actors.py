"""Runs units on a Ray cluster: one actor per worker, which opens the tokenizer once. Yields their parts in order.

Actors write parts to the work folder, so this must be on a file system that all nodes share; only summaries travel through Ray.
Ray starts lost actors again and repeats their unit. Correctness does not depend on it: a part that two actors make at once, or
that an actor believed dead finishes later, has the same bytes and appears by one rename.
"""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.making import make_part
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import Part
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Unit
from tokenstore.builder.recipe import open_tokenizer
from tokenstore.errors import BuildError, require
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store.files import environment, set_environment
from tokenstore.tokenizer import Tokenizer

Job = tuple[Path, str, Unit, dict[int, InputFile]]  # folder, key, unit and inputs of `make_part`
_AHEAD = 2  # units per actor in flight, so that none waits for the driver
_RETRIES = 3  # of a unit whose actor was lost
_WAIT_SECONDS = 0.5


class _Maker:
    """The actor: makes parts."""

    def __init__(self, options: BuildOptions, entry: TokenizerEntry | None):
        set_environment("TOKENIZERS_PARALLELISM", "false")  # one core per actor
        self._tokenizer: Tokenizer = open_tokenizer(options, entry)
        self._reader = DocumentReader(options, self._tokenizer)

    def make(self, job: Job) -> Part:
        return make_part(*job, self._tokenizer, self._reader, lambda *_: None)


def run_on_ray(
    options: BuildOptions,
    entry: TokenizerEntry | None,
    jobs: Mapping[int, Job],
    done: Sequence[Part | None],
    made: "Any",
) -> Generator[Part]:
    """Yield the part of every unit, in order.

    Args:
        options: of the build; `workers` is the number of actors.
        entry: see `run_units`.
        jobs: the unfinished units, by number.
        done: the finished part of each unit, or None.
        made: called with (number, part) when an actor has finished a unit.

    Raises:
        ConfigError: Ray is not installed.
        BuildError: a unit's actor was lost again and again, or an input changed or is damaged.
    """
    ray = _ray()
    with _cluster(ray, options.workers):
        remote = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=_RETRIES)(_Maker)
        actors = [remote.remote(options, entry) for _ in range(min(options.workers, len(jobs)))]
        try:
            yield from _in_order(ray, actors, jobs, done, made)
        finally:
            for actor in actors:
                with contextlib.suppress(Exception):  # it may be gone, and so may the cluster
                    ray.kill(actor)


def _in_order(
    ray: Any, actors: Sequence[Any], jobs: Mapping[int, Job], done: Sequence[Part | None], made: Any
) -> Generator[Part]:
    waiting = iter(jobs.items())
    running: dict[Any, tuple[int, Any]] = {}  # result of a call -> unit, actor
    ready: dict[int, Part] = {}

    def start(actor: Any) -> None:
        if job := next(waiting, None):
            running[actor.make.remote(job[1])] = job[0], actor

    for actor in list(actors) * _AHEAD:
        start(actor)
    for number, part in enumerate(done):
        while part is None and number not in ready:
            finished, _ = ray.wait(list(running), timeout=_WAIT_SECONDS)
            for call in finished:
                unit, actor = running.pop(call)
                ready[unit] = _result(ray, call)
                made(unit, ready[unit])
                start(actor)
        yield part or ready.pop(number)


def _result(ray: Any, call: Any) -> Part:
    try:
        part: Part = ray.get(call)
        return part
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.RayError as error:
        raise BuildError(
            f"ray: an actor was lost {_RETRIES + 1} times with the same unit (out of memory?): {error}; run the same command"
            " again with fewer --workers to resume"
        ) from error


def _ray() -> Any:
    require("ray", "executor: --executor ray", "ray")
    import ray

    return ray


@contextlib.contextmanager
def _cluster(ray: Any, workers: int) -> Any:
    """Use the cluster of this process or of RAY_ADDRESS; otherwise start a local one, and end it afterwards."""
    if ray.is_initialized():
        yield
        return
    local: dict[str, Any] = {} if environment("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, **local)
    try:
        yield
    finally:
        ray.shutdown()
