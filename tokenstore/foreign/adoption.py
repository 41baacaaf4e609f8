"""One adoption: the token files become shards, one after the other, and the manifest is written last."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

import tokenstore
from tokenstore.errors import BuildError, ConfigError
from tokenstore.foreign.cuts import EosCut
from tokenstore.foreign.files_writer import AdoptedWriter, entry_of
from tokenstore.foreign.join import Joiner
from tokenstore.foreign.prepare import Job, Source
from tokenstore.foreign.reading import ForeignReader
from tokenstore.foreign.scan import Scan, Tally
from tokenstore.foreign.survey import runs
from tokenstore.format.adopted import Adopted, AdoptedFile, encode_adopted
from tokenstore.format.input_lines import InputRow, encode_row
from tokenstore.format.layout import ADOPTED_NAME, FOREIGN_PREFIX, INPUTS_NAME, MANIFEST_NAME
from tokenstore.format.manifest import Manifest, TokenizerEntry
from tokenstore.format.manifest_file import encode_manifest
from tokenstore.paths import resolved
from tokenstore.store.files import free_bytes
from tokenstore.store.length_index import write_length_index
from tokenstore.store.output import Output
from tokenstore.store.writing import link_file, write_atomically

Note = Callable[[str], None]
Progress = Callable[[int, int], None]  # bytes read, bytes in all


@dataclass(frozen=True)
class Adopting:
    """What one adoption made, and what it counted.

    Attributes:
        manifest: of the store.
        tally: counts of tokens and documents.
        eos_at: where the end-of-text token is in documents.
        num_copied: token files whose tokens were copied.
        joined: documents that continued in the next file and were joined.
    """

    manifest: Manifest
    tally: Tally
    eos_at: str
    num_copied: int
    joined: int


def check_space(needed: int, folder: Path) -> None:
    """ConfigError if the disk of a folder has fewer free bytes than copying needs."""
    if needed > (free := free_bytes(folder)):
        raise ConfigError(f"disk: copying needs {needed:,} bytes, {free:,} are free ({folder}); free some")


def _check_unchanged(source: Source) -> None:
    """BuildError if one of the files has been written to since it was first looked at: long ago, if there are many files."""
    if source.file.identities() != source.seen:
        raise BuildError(
            f"file: {source.file.path}, or a file that belongs to it, was written to while it was adopted; wait until it is"
            " complete, and run the command again"
        )


def _shared_folder(paths: Sequence[Path]) -> Path:
    """The deepest folder that has all these absolute paths below it."""
    shared = paths[0].parent
    for path in paths:
        while not path.is_relative_to(shared):
            shared = shared.parent
    return shared


class Adoption:
    """Makes a store in a working folder."""

    def __init__(self, job: Job, folder: Path, progress: Progress, note: Note):
        """Adopt the files of `job` into the empty `folder`."""
        self._job, self._folder, self._progress, self._note = job, folder, progress, note
        self._tally, self._done, self._joined = Tally(), 0, 0
        self._adopted: list[AdoptedFile] = []
        self._rows: list[InputRow] = []
        self._copied: set[Path] = set()
        self._linkable = [source.file.path for source in job.sources if not source.reason]
        self._shared_folder = _shared_folder([source.file.path for source in job.sources])

    def run(self) -> Adopting:
        """Write all files of the store. BuildError if a token id is outside the vocabulary, or a file changes meanwhile."""
        sources = self._job.sources
        has_ids = self._job.cut == "index" and any(each.survey and each.survey.has_ids for each in sources)
        with AdoptedWriter(self._folder, self._job.dtype, has_ids) as writer:
            if self._job.options.join and len(sources) > 1:
                self._join(writer)
            else:
                for source in sources:
                    self._add(writer, source)
            manifest = self._finish(writer)
        write_length_index(self._folder)
        return Adopting(manifest, self._tally, self._eos_at(), len(self._copied), self._joined)

    def _count(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._progress(self._done, self._job.num_bytes)

    def _add(self, writer: AdoptedWriter, source: Source) -> None:
        """Make one token file a shard."""
        file, shard, before = source.file, writer.next_shard, writer.num_documents
        scan = Scan(self._job.cutter(source), self._job.ids, self._tally, file.path)
        writer.start()
        is_linked = not source.reason and link_file(resolved(file.path), shard)
        if is_linked:
            writer.add_linked(file, scan, self._count)
        else:
            if not source.reason:
                self._not_linked(source)
            self._copied.add(file.path)
            with writer.new_shard() as out:
                writer.add_written(out, self._blocks(source), scan, self._count)
                scan.end_of_file()
                writer.seal(out)
        if file.loss is not None:
            writer.add_mask(file.loss)
        index = self._keep_index(writer, source, len(self._adopted))
        _check_unchanged(source)
        token_file = source.seen[0]
        identity = (token_file.device, token_file.inode, token_file.modified) if is_linked else (None, None, None)
        self._tally.empty += source.survey.num_empty if source.survey else 0
        self._adopted.append(AdoptedFile(shard.name, index, *identity))
        self._add_row(source, writer.num_documents - before)

    def _not_linked(self, source: Source) -> None:
        """Say once that files are copied because the system refuses links. ConfigError if there is no space for this one."""
        check_space(source.file.num_tokens * self._job.dtype.itemsize, self._folder)
        if self._copied.isdisjoint(self._linkable):
            self._note(
                f"{source.file.path} is copied, and others like it: the system refuses hard links to it (the file system has none, or"
                " the file belongs to another user)"
            )

    def _add_row(self, source: Source, num_documents: int) -> None:
        name = str(source.file.path.relative_to(self._shared_folder))
        self._rows.append(InputRow(name, num_documents, source.file.num_bytes))

    def _blocks(self, source: Source) -> Iterator[np.ndarray]:
        """The tokens of the documents of a file, in blocks of its dtype."""
        file, size = source.file, source.file.dtype.itemsize
        has_gaps = source.survey is not None and not source.survey.is_whole
        ranges = runs(self._job.documents(source)()) if has_gaps else iter([(0, file.num_tokens)])
        with ForeignReader(file.path) as reader:
            for first, stop in ranges:
                for block in reader.blocks(file.first_byte + first * size, file.first_byte + stop * size):
                    yield block.view(file.dtype)

    def _keep_index(self, writer: AdoptedWriter, source: Source, number: int) -> tuple[str, ...]:
        """Keep the index files of a token file in the store, as links if possible. Returns their names there."""
        names = []
        for path in source.file.index:
            ending = next(each for each in self._job.format.index_endings if path.name.endswith(each))
            name = f"{FOREIGN_PREFIX}{number:05d}{ending}"
            if not self._job.options.copy and link_file(resolved(path), self._folder / name):
                writer.files[name] = entry_of(self._folder / name)
            else:
                with Output(self._folder / name) as out:
                    out.append(path)
                    writer.files[name] = out.close()
            names.append(name)
        return tuple(names)

    def _join(self, writer: AdoptedWriter) -> None:
        """Write all files as one stream."""
        job = self._job
        if job.eos_id is None:
            raise ConfigError("join: it needs the end-of-text token; give --eos-id N")
        self._copied |= {source.file.path for source in job.sources}
        cutter = EosCut(sum(source.file.num_tokens for source in job.sources), job.eos_at == "start")
        scan = Scan(cutter, job.ids, self._tally, self._folder)
        joiner = Joiner(writer, cutter, scan, job.eos_id, self._count)
        try:
            for source in job.sources:
                joiner.add_file(source.file.path, self._blocks(source))
            joiner.finish()
        finally:
            joiner.abandon()
        self._joined = joiner.joined
        for source, number in zip(job.sources, joiner.documents, strict=True):
            _check_unchanged(source)
            self._add_row(source, number)
        self._adopted = [AdoptedFile(shard.file, (), None, None, None) for shard in writer.shards]

    def _eos_at(self) -> str:
        """Where the end-of-text token is, as the user says or as most documents show."""
        if self._job.eos_at is not None:
            return self._job.eos_at
        tally = self._tally
        if 0 < tally.documents <= 2 * tally.ended:
            return "end"
        return "start" if 0 < tally.documents <= 2 * tally.started else "none"

    def _finish(self, writer: AdoptedWriter) -> Manifest:
        job, tally = self._job, self._tally
        tokenizer = job.tokenizer
        data = tokenizer.data
        if data is not None:
            writer.add_file(str(tokenizer.file_name), data)
        files = tuple(self._adopted)
        writer.add_file(
            ADOPTED_NAME, encode_adopted(Adopted(job.format.name, job.cut, self._eos_at(), job.eos_id, files))
        )
        writer.add_file(INPUTS_NAME, b"".join(encode_row(row, {}) for row in self._rows))
        writer.finish()
        entry = TokenizerEntry(
            kind=tokenizer.kind,
            file=tokenizer.file_name,
            sha256=None if data is None else hashlib.sha256(data).hexdigest(),
            eos_id=job.eos_id,
            bos_id=tokenizer.bos_id,
            pad_id=tokenizer.pad_id,
            engine="unknown",
            engine_version="",
        )
        manifest = Manifest(
            dtype=job.dtype.name,
            vocab_size=job.vocab_size,
            num_tokens=writer.num_tokens,
            num_documents=writer.num_documents,
            ends_with_eos=job.eos_id is not None and tally.ended == tally.documents,
            tokenizer=entry,
            shards=tuple(writer.shards),
            files=dict(sorted(writer.files.items())),
            options={
                "adopted_from": job.format.name,
                "cut": job.cut,
                "eos_at": self._eos_at(),
                "join": job.options.join,
            },
            counts=self._counts(),
            package_versions={"numpy": version("numpy"), "tokenstore": tokenstore.__version__},
        )
        write_atomically(self._folder / MANIFEST_NAME, encode_manifest(manifest), read_only=True)
        return manifest

    def _counts(self) -> dict[str, int]:
        """Counts by names that `inspect` shows."""
        tally = self._tally
        return {
            "documents": tally.documents,
            "empty": tally.empty,
            "end with eos": tally.ended,
            "start with eos": tally.started,
            "eos tokens": tally.eos,
            "files that do not end with eos": tally.open_files,
            "tokens after the last eos of a file": tally.after_eos,
            "input files": len(self._rows),
            "copied files": len(self._copied),
            "joined documents": self._joined,
        }
