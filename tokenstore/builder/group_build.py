"""A build in groups: makes parts and groups, alone or as a task, and joins the groups into the stores (groups.py)."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenstore.builder.assemble import DROPPED, Tally, columns_of
from tokenstore.builder.dedup import Duplicates
from tokenstore.builder.documents.encode import has_masks
from tokenstore.builder.executors.processes import run_units
from tokenstore.builder.groups import Group, groups_of, load_counts, ranges_of, share_of, write_group
from tokenstore.builder.job import Job
from tokenstore.builder.part import Part, load_emptied
from tokenstore.builder.reading.units import slice_bytes
from tokenstore.builder.recipe import manifest_fields, side_files
from tokenstore.builder.result import BuildProgress, Note, Progress
from tokenstore.builder.schedule import PART_NAME, Schedule, Task, load_schedule
from tokenstore.builder.stores import Place
from tokenstore.errors import BadRecordsError, BuildError, counted
from tokenstore.format.layout import MANIFEST_NAME
from tokenstore.format.manifest import Manifest
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.paths import is_file
from tokenstore.store.document_files import Documents
from tokenstore.store.merging import Merger
from tokenstore.store.reader import Store, open_store
from tokenstore.store.writing import make_folders, write_atomically


@dataclass
class GroupBuild:
    """The groups of a build, and what of them is done.

    Attributes:
        job: the build.
        schedule: all units. A unit of a finished group counts as done.
        groups: in order.
        places: the stores.
    """

    job: Job
    schedule: Schedule
    groups: list[Group]
    places: Sequence[Place]

    @classmethod
    def of(cls, job: Job, schedule: Schedule, places: Sequence[Place]) -> "GroupBuild":
        """The groups of `schedule`, which has all units."""
        sizes = [sum(slice_bytes(part, job.files[part.file_number]) for part in unit) for unit in schedule.units]
        folder = job.work.building / "groups"
        groups = groups_of(schedule, ranges_of(sizes, job.options.group_bytes), folder, job.options.dedup != "none")
        made = cls(job, schedule, groups, places)
        made._count_finished(groups)
        return made

    def _count_finished(self, groups: Sequence[Group]) -> None:
        """Note the parts of finished groups, of which only the small files are left."""
        done = list(self.schedule.done)
        for group in groups:
            if load_counts(group) is not None:
                for i in group.units:
                    done[i] = load_emptied(self.schedule.folders[i], self.schedule.keys[i])
        self.schedule = replace(self.schedule, done=done)

    def make(self, task: Task, progress: Progress, note: Note) -> tuple[list[int], list[Part]]:
        """Make the share of a task: parts, then duplicates and groups if they are possible.

        Returns:
            The numbers of its units, and their parts.
        """
        share = share_of([group.units for group in self.groups], task)
        total = sum(self._bytes(units) for _, units in share)
        before, made = BuildProgress(0, total, 0, 0), list[Part]()
        for number, units in share:
            made += self._make_parts(units, _after(progress, before), note)
            before = BuildProgress(
                before.num_bytes + self._bytes(units),
                total,
                sum(part.num_documents for part in made),
                sum(part.num_tokens for part in made),
            )
            if self.job.options.dedup == "none":
                self._write(number, None)
        if self.job.options.dedup != "none":
            self._write_without_duplicates([number for number, _ in share], task)
        self._look_again()
        return [i for _, units in share for i in units], made

    def _bytes(self, units: Sequence[int]) -> int:
        return sum(
            slice_bytes(each, self.job.files[each.file_number]) for i in units for each in self.schedule.units[i]
        )

    def _make_parts(self, units: Sequence[int], progress: Progress, note: Note) -> list[Part]:
        job, only = self.job, self.schedule.only(units)
        with contextlib.closing(
            run_units(job.options, job.entry, job.files, only, job.tokenizer, progress, note)
        ) as parts:
            made = list(parts)
        self._set(units, made)
        return made

    def _set(self, units: Sequence[int], parts: Sequence[Part | None]) -> None:
        done = list(self.schedule.done)
        for i, part in zip(units, parts, strict=True):
            done[i] = part
        self.schedule = replace(self.schedule, done=done)

    def _look_again(self) -> None:
        """Note what other tasks have finished meanwhile."""
        missing = self.schedule.missing
        units, keys = [self.schedule.units[i] for i in missing], [self.schedule.keys[i] for i in missing]
        self._set(missing, load_schedule(units, keys, self.job.work.building / "parts", self.job.files).done)
        self._count_finished(
            [group for group in self.groups if any(self.schedule.done[i] is None for i in group.units)]
        )

    def _write(self, number: int, duplicates: Duplicates | None) -> None:
        """Write a group if all its parts are there and nobody has written it."""
        group, job = self.groups[number], self.job
        if load_counts(group) is not None:
            return
        if any(self.schedule.done[i] is None for i in group.units):
            self._look_again()
            if any(self.schedule.done[i] is None for i in group.units) or load_counts(group) is not None:
                return
        fields = [manifest_fields(job.recipe, place) for place in self.places]
        vocab_size, files = job.tokenizer.vocab_size, side_files(job.options, job.tokenizer)
        write_group(group, self.schedule, job.files, job.options, vocab_size, files, fields, duplicates)

    def _write_without_duplicates(self, numbers: Sequence[int], task: Task) -> None:
        self._look_again()
        if self.schedule.missing:
            return
        duplicates = self._duplicates()
        if any(load_counts(group) is None for group in self.groups):
            missing = duplicates.missing()
            duplicates.search(self._parts(), [number for number in missing if number % task.of == task.number])
        if duplicates.missing():
            return
        for number in numbers:
            self._write(number, duplicates)

    def _parts(self) -> list[Part]:
        return [part for part in self.schedule.done if part is not None]

    def _duplicates(self) -> Duplicates:
        key = hashlib.sha256("".join(self.schedule.keys).encode()).hexdigest()[:PART_NAME]
        folder = self.job.work.building / "duplicates" / key
        return Duplicates(folder, sum(part.num_documents for part in self._parts()))

    def remaining_ranges(self) -> str:
        """What of the search for duplicates is missing, for a message; "" if nothing is. All parts are there."""
        if self.job.options.dedup == "none" or all(load_counts(group) is not None for group in self.groups):
            return ""
        missing = self._duplicates().missing()
        return f"duplicates: {counted(len(missing), 'range')} of hashes not searched yet" if missing else ""

    def join(self, folders: Sequence[Path], rejects: Any, note: Note) -> Tally:
        """Write the stores into `folders` from the groups, all of which are finished.

        Raises:
            BadRecordsError: more bad records than allowed; its argument is the tally.
            BuildError: a store would have no documents.
            CorruptionError: a group was changed after it was written.
        """
        tally, columns = Tally(self.job.files, rejects), columns_of(self.job.options)
        with contextlib.ExitStack() as stack:
            joiners = []
            for folder in folders:
                make_folders(folder)
                joiners.append(stack.enter_context(Joiner(folder, columns, has_masks(self.job.options), True, note)))
            for group in self.groups:
                self._join_group(group, joiners, tally)
            for store, (joiner, place) in enumerate(zip(joiners, self.places, strict=True)):
                self._finish(joiner, tally, store, place)
        return tally

    def _join_group(self, group: Group, joiners: Sequence["Joiner"], tally: Tally) -> None:
        counts = load_counts(group)
        assert counts is not None
        first_file = self.schedule.units[group.units.start][0].file_number
        skipped = int(tally.lines[first_file])
        for store, joiner in enumerate(joiners):
            if is_file(folder := group.folder / str(store) / MANIFEST_NAME):
                with open_store(folder.parent) as opened:
                    joiner.add_group(opened, skipped, counts.documents[store].get(first_file, 0))
            for file, number in counts.documents[store].items():
                tally.of(store)[file] += number
        for file, number in counts.duplicates.items():
            tally.dropped[DROPPED.index("duplicates"), file] += number
        for i in group.units:
            part = self.schedule.done[i]
            assert part is not None
            tally.add(self.schedule.units[i], part)
            if tally.num_bad > self.job.options.max_bad:
                raise BadRecordsError(tally)

    def _finish(self, joiner: "Joiner", tally: Tally, store: int, place: Place) -> Manifest:
        counts = tally.counts(store)
        if not joiner.shards:
            what = f"split {place}" if str(place) else "documents"
            raise BuildError(f"{what}: expected at least one document, found none; no store was written")
        for file, data in side_files(self.job.options, self.job.tokenizer).items():
            joiner.add_data(file, data)
        joiner.inputs = list(tally.inputs_file(store))
        joiner.close()
        last = joiner.shards[-1]
        manifest = Manifest(
            dtype=joiner.dtype,
            vocab_size=self.job.tokenizer.vocab_size,
            num_tokens=last.first_token + last.num_tokens,
            num_documents=last.first_document + last.num_documents,
            shards=tuple(joiner.shards),
            files=dict(sorted(joiner.files.items())),
            counts=counts,
            **manifest_fields(self.job.recipe, place),
        )
        write_atomically(joiner.folder / MANIFEST_NAME, encode_manifest(manifest), read_only=True)
        return manifest


class Joiner(Merger):
    """Joins groups. The first input of a group may have begun in the group before, so its records have other numbers."""

    dtype = ""
    _skipped, _count = 0, 0

    def add_group(self, store: Store, skipped: int, count: int) -> None:
        """Add a group. Its first `count` documents are of an input of which `skipped` records are in earlier groups."""
        self._skipped, self._count, self.dtype = skipped, count, store.dtype.name
        self.add(store)

    def _of(self, store: Store, first_input: int) -> Iterator[Documents]:
        done = 0
        for documents in super()._of(store, first_input):
            if documents.origins is not None and done < self._count:
                origins = np.array(documents.origins)
                origins[: self._count - done] += self._skipped
                documents = documents._replace(origins=origins)
            done += documents.lengths.size
            yield documents


def _after(progress: Progress, before: BuildProgress) -> Callable[[BuildProgress], None]:
    """Report progress of one group as that of all."""
    return lambda at: progress(
        BuildProgress(
            before.num_bytes + at.num_bytes,
            before.total_bytes,
            before.num_documents + at.num_documents,
            before.num_tokens + at.num_tokens,
        )
    )
