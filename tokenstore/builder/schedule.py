"""The units of a build, which of them are done, and who makes the others.

Parts are named by their keys, so a unit has the same part whoever makes it. Tasks only divide the work: any number of them, at
once or one after the other, with any overlap, make the same parts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.builder.part import Part, load_part
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.units import Unit
from tokenstore.errors import ConfigError, counted

MOST_TASKS = 1 << 20
Variable = Callable[[str], str | None]  # the value of an environment variable
PART_NAME = 32  # characters of a part's key that name its folder
_SHOWN = 8


@dataclass(frozen=True)
class Task:
    """Task `number` of `of`: one of several processes that make the parts of one build. Numbers begin with 0."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def share(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """The units that this task makes."""
        return units[self.number :: self.of]


@dataclass(frozen=True)
class Schedule:
    """The units of a build.

    Attributes:
        units: in the order of their documents in the store.
        keys: of each unit's part.
        folders: of each unit's part.
        done: the finished part of each unit, or None.
    """

    units: Sequence[Unit]
    keys: Sequence[str]
    folders: Sequence[Path]
    done: Sequence[Part | None]

    @property
    def missing(self) -> list[int]:
        """The numbers of the units without a part."""
        return [number for number, part in enumerate(self.done) if part is None]

    def only(self, units: Sequence[int]) -> "Schedule":
        """The units with these numbers."""
        return Schedule(
            [self.units[i] for i in units],
            [self.keys[i] for i in units],
            [self.folders[i] for i in units],
            [self.done[i] for i in units],
        )


def parse_task(text: str, variable: Variable) -> Task:
    """The task of an option such as `3/8`, `auto` or `auto/8`.

    `auto` takes the number from the environment of a Slurm job array, or of an indexed Kubernetes Job. Slurm says how many tasks
    there are; Kubernetes does not, so it needs `auto/n`.

    Raises:
        ConfigError: the text is not a task, or the environment says nothing.
    """
    if found := re.fullmatch(r"(\d{1,7})/(\d{1,7})", text):
        return _checked(int(found[1]), int(found[2]), text)
    if found := re.fullmatch(r"auto(?:/(\d{1,7}))?", text):
        return _of_environment(None if found[1] is None else int(found[1]), text, variable)
    raise ConfigError(f"task: expected i/n with 0 <= i < n, such as 3/8, or auto, or auto/8, found {text!r}")


def _of_environment(of: int | None, text: str, variable: Variable) -> Task:
    try:
        if number := variable("SLURM_ARRAY_TASK_ID"):
            first, step = (
                int(variable(f"SLURM_ARRAY_TASK_{name}") or other) for name, other in (("MIN", 0), ("STEP", 1))
            )
            of = of or int(variable("SLURM_ARRAY_TASK_COUNT") or "")
            return _checked((int(number) - first) // max(step, 1), of, text)
        if number := variable("JOB_COMPLETION_INDEX"):
            if of is None:
                raise ConfigError(
                    "task: Kubernetes does not say how many tasks there are; give the `completions` of the Job: --task auto/n"
                )
            return _checked(int(number), of, text)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"task: the environment of the job array is incomplete ({error}); give --task i/n") from error
    raise ConfigError(
        "task: expected SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX in the environment, found neither; give --task i/n"
    )


def _checked(number: int, of: int, text: str) -> Task:
    if not 0 <= number < of <= MOST_TASKS:
        raise ConfigError(f"task: expected i/n with 0 <= i < n <= {MOST_TASKS}, found {number}/{of} ({text})")
    return Task(number, of)


def missing_message(schedule: Schedule, of: int | None, owners: Mapping[int, int] | None = None) -> str:
    """What a build lacks: its missing units, and the tasks that would make them if the last run had `of` tasks.

    `owners` has the task of each unit; without it, that of `Task.share`.
    """
    missing = schedule.missing
    shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
    are, units = ("is", "unit") if len(missing) == 1 else ("are", "units")
    what = f"parts: {len(missing)} of {counted(len(schedule.units), 'unit')} {are} missing ({units} {shown})"
    if of is None:
        return f"{what}; run the same command with --task i/n, or without --finish to make them here"
    numbers = sorted({owners[unit] if owners else unit % of for unit in missing})
    tasks = ",".join(map(str, numbers[:_SHOWN])) + (",..." if len(numbers) > _SHOWN else "")
    return f"{what}; run these tasks of {of} again: {tasks} (--task {numbers[0]}/{of})"


def load_schedule(units: Sequence[Unit], keys: Sequence[str], parts: Path, files: Sequence[InputFile]) -> Schedule:
    """The schedule of units whose parts have these keys, with those that are finished in the folder `parts`."""
    # A part is named by its key, so a killed build with other inputs cannot have written to the files of these parts
    folders = [parts / key[:PART_NAME] for key in keys]
    done = [load_part(folder, key, unit, files) for folder, key, unit in zip(folders, keys, units, strict=True)]
    return Schedule(units, keys, folders, done)
