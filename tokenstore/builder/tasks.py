"""A build by many processes, such as a job array: each task makes some of the parts, then one command assembles them (P8).

Tasks hold no lock and know nothing of each other. A task may run twice, at once or later, with another number of tasks, or
never: parts have the same names and bytes whoever makes them, and appear complete by one rename. `build_store(complete=True)`
checks that there are all of them, and writes the same bytes as a build by one process.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.builder.disk import resumable
from tokenstore.builder.executors.processes import run_units
from tokenstore.builder.finished import finished
from tokenstore.builder.job import Job, prepare
from tokenstore.builder.options import BuildOptions
from tokenstore.builder.part import Part
from tokenstore.builder.pipeline import group_build, open_work, schedule_of
from tokenstore.builder.reading.units import Unit, cut_units
from tokenstore.builder.remote_output import location_of, with_scratch
from tokenstore.builder.replacing import resolved_output
from tokenstore.builder.result import Note, Progress
from tokenstore.builder.resume import note_task, tidy
from tokenstore.builder.schedule import Task
from tokenstore.errors import BadRecordsError, BuildError, ConfigError
from tokenstore.paths import is_folder
from tokenstore.store.private import remove_abandoned
from tokenstore.store.work import join_work
from tokenstore.store.writing import make_folders, write_shared


@dataclass(frozen=True)
class TaskResult:
    """What a task did.

    Attributes:
        path: the store that will be built.
        task: the task, such as `3/8`.
        num_units: units of this task.
        num_made: those of them that this run tokenized; the others had been.
        num_documents, num_tokens: in the parts of this task.
        num_missing: units of the whole build that have no part yet.
        was_there: the store is finished, and nothing was done.
    """

    path: Path
    task: str
    num_units: int
    num_made: int
    num_documents: int
    num_tokens: int
    num_missing: int
    was_there: bool = False


def build_task(
    options: BuildOptions,
    task: Task,
    progress: Progress = lambda progress: None,
    note: Note = lambda text: None,
) -> TaskResult:
    """Make the parts of one task of a build. Parts that exist are kept, so the same call resumes.

    The output's folder must be on a file system that all tasks share. All tasks need the same options, inputs and package
    versions; `output`, `workers` and the number of tasks may differ.

    Args:
        options: of the build. `max_bad` holds for this task alone; `build_store(complete=True)` counts all bad records.
        task: which part of the work to do.
        progress: as in `build_store`; counts this task only.
        note: as in `build_store`.

    Raises:
        ConfigError: the options are invalid, or other tasks were started with others; or the output is a URL and there is no
            `scratch` folder.
        BadRecordsError: this task alone has more bad records than allowed.
        BuildError: as in `build_store`.
    """
    if place := location_of(options):
        if options.scratch is None:
            raise ConfigError(
                f"task: the output is a URL ({place.url}), so tasks need a folder that all of them share for their parts; give it"
                " with --scratch"
            )
        options = with_scratch(options, place)
    output = resolved_output(options.output)
    job = prepare(options, output, None, note)
    with resumable(output):
        was_there = TaskResult(output, str(task), 0, 0, 0, 0, 0, was_there=True)
        if not options.overwrite and finished(job):
            return was_there
        make_folders(output.parent)
        with _until_removed(job):
            _join(job, task, note)
            if not options.overwrite and finished(job):  # it was committed meanwhile, so joining began another build
                tidy([job.work.building], note)
                return was_there
            return (_groups if options.group_bytes else _parts)(job, task, progress, note)


def _parts(job: Job, task: Task, progress: Progress, note: Note) -> TaskResult:
    mine = schedule_of(job, task)
    if len(mine.missing) < len(mine.units):
        note(f"resuming: {len(mine.units) - len(mine.missing)} of {len(mine.units)} parts of task {task} are done")
    parts: list[Part] = []
    with contextlib.closing(run_units(job.options, job.entry, job.files, mine, job.tokenizer, progress, note)) as made:
        for part in made:
            parts.append(part)
            _check_bad(job, task, mine.units, parts)
    return _result(job, task, len(mine.units), len(mine.missing), parts, _num_missing(job))


def _groups(job: Job, task: Task, progress: Progress, note: Note) -> TaskResult:
    build = group_build(job)
    before = set(build.schedule.missing)
    units, parts = build.make(task, progress, note)
    _check_bad(job, task, [build.schedule.units[i] for i in units], parts)
    return _result(job, task, len(units), len(before.intersection(units)), parts, len(build.schedule.missing))


def _result(job: Job, task: Task, num_units: int, num_made: int, parts: Sequence[Part], num_missing: int) -> TaskResult:
    return TaskResult(
        job.output,
        str(task),
        num_units,
        num_made,
        num_documents=sum(part.num_documents for part in parts),
        num_tokens=sum(part.num_tokens for part in parts),
        num_missing=num_missing,
    )


def _join(job: Job, task: Task, note: Note) -> None:
    """Start the build, or join it if other tasks have started it."""
    work = join_work(job.output)
    open_work(job, job.recipe, note, is_shared=True)
    note_task(work, task.number, task.of, job.options.overwrite)
    remove_abandoned(work.building / "parts")


def _num_missing(job: Job) -> int:
    """How many units of the build have no part. With `input_identity="content"` it would take reading all inputs to know."""
    if job.options.input_identity != "content":
        return len(schedule_of(job).missing)
    made = [path for path in (job.work.building / "parts").iterdir() if not path.name.startswith(".")]
    return max(0, len(cut_units(job.files)) - len(made))


def _check_bad(job: Job, task: Task, units: Sequence[Unit], parts: Sequence[Part]) -> None:
    """BadRecordsError if this task alone has too many; its list is for a person, and is written again by the finish."""
    if sum(part.num_bad for part in parts) <= job.options.max_bad:
        return
    path = job.work.building / f"rejects-task-{task.number}.jsonl"
    lines = list[bytes]()
    for unit, part in zip(units, parts, strict=False):
        for place, number, reason, start in part.bad():
            piece = unit[place]
            bad = {"file": job.files[piece.file_number].name, "byte": piece.start, "record": number}
            lines.append(json.dumps({**bad, "reason": reason, "start": start}).encode() + b"\n")
    write_shared(path, b"".join(lines))
    raise BadRecordsError(
        f"bad records: {sum(part.num_bad for part in parts)} so far in task {task} alone, and {job.options.max_bad} are"
        f" allowed (they are listed in {path}; a record's number counts from the first line at or after `byte`); fix them or"
        " the options that read them, such as --text-field, or allow more with --max-bad. Finished work is kept, and the same command resumes"
    )


@contextlib.contextmanager
def _until_removed(job: Job) -> Iterator[None]:
    """Explain an error that happens because another process finished or removed the build meanwhile."""
    try:
        yield
    except FileNotFoundError as error:
        if is_folder(job.work.building):
            raise
        raise BuildError(
            f"build: another process finished or removed it while this task ran ({job.work.building} is gone); run the same"
            " command again, which does nothing if the store is complete"
        ) from error
