"""Runs units in worker processes and yields their parts in order, in whatever order they finish."""

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.connection import wait as wait_for_end
from typing import Any, Literal

from tokenstore.builder.documents.convert import DocumentReader
from tokenstore.builder.executors.ray_actors import Job, run_on_ray
from tokenstore.builder.making import make_part
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import Part
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Unit, slice_bytes
from tokenstore.builder.recipe import open_tokenizer
from tokenstore.builder.result import BuildProgress, Note, Progress
from tokenstore.builder.schedule import Schedule
from tokenstore.errors import BuildError
from tokenstore.format.manifest import TokenizerEntry
from tokenstore.store.files import set_environment
from tokenstore.tokenizer import Tokenizer, reference_of

_REPORT_SECONDS = 0.2
_AHEAD = 4  # units per worker submitted ahead of the one that is needed next


def run_units(
    options: BuildOptions,
    entry: TokenizerEntry | None,
    files: Sequence[InputFile],
    schedule: Schedule,
    tokenizer: Tokenizer,
    progress: Progress,
    note: Note,
) -> Generator[Part]:
    """Yield the part of every unit, in order. Finished parts are reused; `options.workers` processes make the others.

    Args:
        options: the build's options.
        entry: the tokenizer recorded in the store that an append extends, else None; see `recipe.open_tokenizer`.
        files: all inputs; units refer to them by number.
        schedule: what to tokenize, in order, and what is done.
        tokenizer: used in this process; workers open their own.
        progress: called several times per second.
        note: called with the note of a part, such as why it was tokenized twice.

    Raises:
        BuildError: a worker was killed, or an input changed or is damaged.
    """
    done, units = schedule.done, schedule.units
    counters = _Counters(files, units, done, progress)
    todo = schedule.missing
    made: Generator[Part]
    jobs = {i: (schedule.folders[i], schedule.keys[i], units[i], _named(files, units[i])) for i in todo}
    if options.executor == "ray" and todo:
        made = run_on_ray(_with_engine(options, tokenizer), entry, jobs, done, counters.add_part)
    elif options.workers == 1 or len(todo) <= 1:
        set_environment("TOKENIZERS_PARALLELISM", "false")  # --workers says how many cores to use
        reader = DocumentReader(options, tokenizer)
        made = (part or make_part(*jobs[i], tokenizer, reader, counters.add) for i, part in enumerate(done))
    else:
        made = _run_pool(_with_engine(options, tokenizer), entry, jobs, done, counters)
    with contextlib.closing(made):
        for part in made:
            if part.note:
                note(part.note)
            yield part
    counters.show()


def _with_engine(options: BuildOptions, tokenizer: Tokenizer) -> BuildOptions:
    """The options for workers. The manifest records this process's engine, so every worker must use the same."""
    engine: Literal["fast", "reference"] = "fast" if reference_of(tokenizer) is not tokenizer else "reference"
    return replace(options, engine=engine)


def _named(files: Sequence[InputFile], unit: Unit) -> dict[int, InputFile]:
    """The inputs of one unit. A job is pickled, so it must not carry the list of all inputs, which may have a million."""
    return {part.file_number: files[part.file_number] for part in unit}


def _run_pool(
    options: BuildOptions,
    entry: TokenizerEntry | None,
    jobs: Mapping[int, Job],
    done: Sequence[Part | None],
    counters: "_Counters",
) -> Generator[Part]:
    context = multiprocessing.get_context("spawn")
    workers = min(options.workers, len(jobs))
    # Each worker has a slot of its own and needs no lock: a worker killed while holding one would block all others.
    amounts = context.RawArray("q", 3 * workers)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (options, entry, amounts, context.Value("i", 0)))
    waiting = deque(jobs)
    running: dict[int, Future[Part]] = {}
    try:
        for number, part in enumerate(done):
            while waiting and waiting[0] < number + _AHEAD * workers:
                ahead = waiting.popleft()
                with _interrupts_wait():  # this may start a worker
                    running[ahead] = pool.submit(_work, jobs[ahead])
            if part is None:
                future = running.pop(number)
                while not wait([future], _REPORT_SECONDS).done:
                    counters.set(_totals(amounts))
                part = future.result()
            yield part
        counters.set(_totals(amounts))
        pool.shutdown()
    except BrokenProcessPool as error:
        raise BuildError(
            "worker: a worker process was killed (out of memory?);"
            " run the same command again with fewer --workers to resume"
        ) from error
    finally:
        processes = list((pool._processes or {}).values())  # before Python 3.14 there is no public way to end them
        for process in processes:
            process.terminate()
        pool.shutdown(cancel_futures=True)  # waits for the pool's thread, which could fail at interpreter exit
        for process in processes:
            process.join()


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Block SIGINT for a moment. A process that is started meanwhile begins with it blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _totals(amounts: Any) -> list[int]:
    return [sum(amounts[i::3]) for i in range(3)]


class _Counters:
    """Adds the (bytes, documents, tokens) of this run to those of the parts reused, and reports the sums."""

    def __init__(
        self,
        files: Sequence[InputFile],
        units: Sequence[Unit],
        done: Sequence[Part | None],
        progress: Progress,
    ):
        self.sizes = [sum(slice_bytes(part, files[part.file_number]) for part in unit) for unit in units]
        there = [
            (size, part.num_documents, part.num_tokens) for size, part in zip(self.sizes, done, strict=True) if part
        ]
        self.base = [sum(column) for column in zip(*there, strict=True)] or [0, 0, 0]
        self.total_bytes = sum(self.sizes)
        self.here = [0, 0, 0]
        self.progress = progress

    def add(self, *amounts: int) -> None:
        self.set([a + b for a, b in zip(self.here, amounts, strict=True)])

    def add_part(self, number: int, part: Part) -> None:
        self.add(self.sizes[number], part.num_documents, part.num_tokens)

    def set(self, here: Sequence[int]) -> None:
        self.here = list(here)
        self.show()

    def show(self) -> None:
        num_bytes, documents, tokens = (a + b for a, b in zip(self.base, self.here, strict=True))
        self.progress(BuildProgress(num_bytes, self.total_bytes, documents, tokens))


# ---- in the worker process
_worker: dict[str, Any] = {}


def _start_worker(options: BuildOptions, entry: TokenizerEntry | None, amounts: Any, num_started: Any) -> None:
    # Ctrl-C reaches the whole process group; the parent ends its workers. It was blocked since this process started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_environment("TOKENIZERS_PARALLELISM", "false")
    tokenizer = open_tokenizer(options, entry)
    with num_started.get_lock():
        slot = num_started.value
        num_started.value += 1
    _worker.update(reader=DocumentReader(options, tokenizer), tokenizer=tokenizer, amounts=amounts, slot=slot)


def _end_with_parent() -> None:
    """End this worker when its parent dies. The lock is free then, so the next build may already write the same files."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_end([parent.sentinel])
        signal.raise_signal(signal.SIGKILL)


def _report(*done: int) -> None:
    for i, amount in enumerate(done):
        _worker["amounts"][3 * _worker["slot"] + i] += amount


def _work(job: Job) -> Part:
    return make_part(*job, _worker["tokenizer"], _worker["reader"], _report)
