"""A whole build (P8): lock, make or find the parts, put them together in order, commit.

<output>.lock             held while building; the kernel frees it when the builder dies
<output>.building/        the work: recipe.json, parts/ (durable, resumed from), store/ (made anew each run)
<output>.rejects.jsonl    the bad records, if any
<output>                  appears in one rename, whole (FMT-7)
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import tokenstore
from tokenstore.build.inputs import TABLES, InputFile, find_inputs
from tokenstore.build.options import BuildOptions, BuildProgress, BuildResult
from tokenstore.build.part import Part, load_part, part_key, special_ids
from tokenstore.build.units import Unit, cut_units
from tokenstore.build.workers import run_units
from tokenstore.errors import (
    BadRecordsError,
    BuildError,
    ConfigError,
    CorruptionError,
    FormatError,
    TokenStoreError,
)
from tokenstore.format.layout import INPUTS_NAME, MANIFEST_NAME, MAX_MANIFEST_BYTES, TOKENIZER_NAME, token_dtype
from tokenstore.format.manifest import Manifest, TokenizerEntry, canonical_json
from tokenstore.store.files import (
    commit_directory,
    exclusive_lock,
    free_bytes,
    read_bytes,
    remove_tree,
    write_atomically,
)
from tokenstore.store.order_file import LOCK_SUFFIX, write_order
from tokenstore.store.reader import BUILDING_SUFFIX, open_store
from tokenstore.store.writer import StoreWriter
from tokenstore.tokenizer import Tokenizer, load_tokenizer

_ANY_SIZE = 1 << 62
_REPLACED_SUFFIX, _REJECTS_SUFFIX = ".replaced", ".rejects.jsonl"
_NO_STORE = "output: expected a new path or a store, found something else ({}); choose another"


def build_store(
    options: BuildOptions,
    progress: Callable[[BuildProgress], None] = lambda progress: None,
    note: Callable[[str], None] = lambda text: None,
) -> BuildResult:
    """Tokenize the inputs into a store, or find it already made by the same command.

    Args:
        options: what to build.
        progress: called a few times a second while tokenizing.
        note: called with one line of text on what a person should know.

    Raises:
        ConfigError: options that cannot be met, or others than those of the store or unfinished build that is there.
        StoreBusyError: another process is building the same output.
        BadRecordsError: more bad records than allowed; they stand in the rejects file.
        BuildError: an input is damaged, the disk is full, a worker died. The same command resumes.
    """
    output = Path(options.output).absolute()
    if output.is_file():
        raise ConfigError(_NO_STORE.format(output))
    if output.is_symlink():  # the work is done beside the store, on the same disk
        output = output.resolve()
    inputs = find_inputs(options.inputs, options.text_endings, written_by(output))
    if inputs.passed_over:
        most = sorted(inputs.passed_over.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{number} {ending}" for ending, number in most[:5]) + (", ..." if len(most) > 5 else "")
        note(f"passed over {sum(inputs.passed_over.values())} files with other endings ({shown})")
    tokenizer = load_tokenizer(options.tokenizer, options.eos_token, None, options.special_text)
    special_ids(tokenizer, options)
    recipe = _recipe(options, tokenizer, inputs.files)
    with _disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(_beside(output, LOCK_SUFFIX)):
            if options.overwrite:
                _check_replaceable(output)
            elif found := _finished(output, inputs.files, recipe):
                remove_tree(_beside(output, BUILDING_SUFFIX))
                write_order(output)  # one that an older version made has none
                return found
            return _build(options, output, inputs.files, tokenizer, recipe, progress, note)


def _build(
    options: BuildOptions,
    output: Path,
    files: Sequence[InputFile],
    tokenizer: Tokenizer,
    recipe: dict[str, Any],
    progress: Callable[[BuildProgress], None],
    note: Callable[[str], None],
) -> BuildResult:
    building = _beside(output, BUILDING_SUFFIX)
    _open_work(building, recipe, options.overwrite)
    units = cut_units(files)
    keys = [part_key(unit, files, recipe) for unit in units]
    # Named by key: a build of other inputs, killed, has not touched the files of these parts.
    stems = [building / "parts" / key[:32] for key in keys]
    dtype = token_dtype(tokenizer.vocab_size)
    done = [load_part(stem, key, dtype) for stem, key in zip(stems, keys, strict=True)]
    if any(done):
        note(f"resuming: {sum(part is not None for part in done)} of {len(units)} parts are done")
    tally = _Tally(files)
    working = building / "store"
    remove_tree(working)
    working.mkdir()
    with StoreWriter(working, tokenizer.vocab_size, options.shard_bytes) as writer:
        for unit, part in zip(
            units, run_units(options, files, units, keys, stems, done, tokenizer, progress), strict=True
        ):
            tally.add(unit, part)
            if len(tally.bad) > options.max_bad:
                _fail_bad(tally, options, output)
            for tokens, lengths in part.documents(writer.dtype):
                writer.append(tokens, lengths)
        if tokenizer.file is not None:
            writer.add_file(TOKENIZER_NAME, tokenizer.file.read_bytes())
        _finish(writer, tally, recipe)
    write_order(working)
    rejects = tally.write_rejects(output)  # before the store: a store that is there is left alone
    _commit(working, output)
    remove_tree(building)
    with open_store(output) as store:
        return _result(output, store.manifest, rejects, was_there=False)


def _finish(writer: StoreWriter, tally: "_Tally", recipe: dict[str, Any]) -> None:
    if writer.num_documents == 0:
        counts = ", ".join(f"{number} {name}" for name, number in tally.counts().items())
        raise BuildError(f"documents: expected at least one, found none ({counts}); nothing was written")
    writer.finish(
        inputs=tally.inputs_file(),
        ends_with_eos=recipe["options"]["eos"],
        tokenizer=TokenizerEntry(**recipe["tokenizer"]),
        options=recipe["options"],
        counts=tally.counts(),
        versions=recipe["versions"],
    )


class _Tally:
    """What the parts held, by input file: lines, documents, and the bad records with their line numbers in the file."""

    def __init__(self, files: Sequence[InputFile]):
        self.files = files
        self.rows = [{"lines": 0, "documents": 0, "empty": 0, "bad": 0} for _ in files]
        self.bad: list[dict[str, Any]] = []

    def add(self, unit: Unit, part: Part) -> None:
        for piece, summary in zip(unit, part.slices, strict=False):  # a part that stopped early has fewer slices
            row = self.rows[piece.file_number]
            for number, reason, start in summary.bad:
                file = self.files[piece.file_number].name
                self.bad.append({"file": file, "record": row["lines"] + number, "reason": reason, "start": start})
            row["lines"] += summary.num_lines
            row["documents"] += summary.num_documents
            row["empty"] += summary.num_empty
            row["bad"] += len(summary.bad)

    def counts(self) -> dict[str, int]:
        totals = {name: sum(row[name] for row in self.rows) for name in ("documents", "empty", "bad")}
        return {"input files": len(self.files), **totals}

    def inputs_file(self) -> bytes:
        """inputs.jsonl: a line an input file."""
        rows = zip(self.files, self.rows, strict=True)
        lines = [canonical_json({"file": file.name, "num_bytes": file.num_bytes, **row}) for file, row in rows]
        return "".join(line + "\n" for line in lines).encode()

    def write_rejects(self, output: Path) -> Path | None:
        """Write the bad records beside the output; without any, remove an older list."""
        path = _beside(output, _REJECTS_SUFFIX)
        if not self.bad:
            path.unlink(missing_ok=True)
            return None
        write_atomically(path, "".join(json.dumps(bad) + "\n" for bad in self.bad).encode())
        return path


def _fail_bad(tally: _Tally, options: BuildOptions, output: Path) -> None:
    path = tally.write_rejects(output)
    first = tally.bad[0]
    raise BadRecordsError(
        f"bad records: expected at most {options.max_bad}, found {len(tally.bad)} so far; the first is record {first['record']}"
        f" of {first['file']}: {first['reason']} (all in {path}); mend them, or allow more with --max-bad; no store was written"
    )


def _recipe(options: BuildOptions, tokenizer: Tokenizer, files: Sequence[InputFile]) -> dict[str, Any]:
    """All that decides the store's bytes beside the inputs: recorded, and compared when a build is run again."""
    import hashlib

    import orjson
    import zstandard

    data = tokenizer.file.read_bytes() if tokenizer.file else None
    entry = {
        "kind": tokenizer.kind,
        "file": TOKENIZER_NAME if data is not None else None,
        "sha256": hashlib.sha256(data).hexdigest() if data is not None else None,
        "eos_id": tokenizer.eos_id,
        "bos_id": tokenizer.bos_id,
        "pad_id": tokenizer.pad_id,
        "engine": tokenizer.engine,
        "engine_version": tokenizer.engine_version,
    }
    versions = {"tokenstore": tokenstore.__version__, "orjson": orjson.__version__, "zstandard": zstandard.__version__}
    if any(file.format in TABLES for file in files):
        versions["pyarrow"] = version("pyarrow")
    return {"options": options.recorded(), "tokenizer": entry, "versions": versions}


def _finished(output: Path, files: Sequence[InputFile], recipe: dict[str, Any]) -> BuildResult | None:
    """The store at `output`, if the same command made it; None if nothing is there; ConfigError for anything else."""
    if _is_free(output):
        return None
    try:
        with open_store(output) as store:
            manifest = store.manifest
    except FormatError as error:
        raise ConfigError(_NO_STORE.format(output)) from error
    old = {"options": manifest.options, "tokenizer": vars(manifest.tokenizer), "versions": manifest.versions}
    rows = _read_json_lines(output / INPUTS_NAME)
    old["inputs"] = [[row.get("file"), row.get("num_bytes")] for row in rows]
    new = {**recipe, "inputs": [[file.name, file.num_bytes] for file in files]}
    if different := _differences(old, new):
        raise ConfigError(
            f"output: expected the store of this command, found one made otherwise ({output}): {different}; use --overwrite or another output"
        )
    rejects = _beside(output, _REJECTS_SUFFIX)
    return _result(output, manifest, rejects if rejects.exists() else None, was_there=True)


def _is_free(output: Path) -> bool:
    return not output.exists() or (output.is_dir() and not any(output.iterdir()))


def _check_replaceable(output: Path) -> None:
    """ConfigError unless `output` is free or a store, be it damaged or of another version: nothing else is ever replaced."""
    if _is_free(output):
        return
    try:
        manifest = json.loads(read_bytes(output / MANIFEST_NAME, MAX_MANIFEST_BYTES))
        ours = manifest["format"] == "tokenstore"
    except (TokenStoreError, ValueError, TypeError, KeyError, RecursionError):
        ours = False
    if not ours:
        raise ConfigError(_NO_STORE.format(output))


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file of ours, a line each."""
    try:
        rows = [json.loads(line) for line in read_bytes(path, _ANY_SIZE).splitlines()]
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"{path.name}: expected lines of JSON, found {error} ({path}); use --overwrite to build anew"
        ) from error
    if not all(isinstance(row, dict) for row in rows):
        raise CorruptionError(
            f"{path.name}: expected a JSON object a line, found something else ({path}); use --overwrite to build anew"
        )
    return rows


def _open_work(building: Path, recipe: dict[str, Any], overwrite: bool) -> None:
    """Make the work folder, or take up an unfinished one made by the same recipe."""
    recipe_file = building / "recipe.json"
    if overwrite:
        remove_tree(building)
    if recipe_file.exists():
        old = next(iter(_read_json_lines(recipe_file)), {})
        if different := _differences(old, recipe):
            raise ConfigError(
                f"output: expected to resume this command, found an unfinished build of another ({building}): {different}; use the same options, or --overwrite to begin anew"
            )
    (building / "parts").mkdir(parents=True, exist_ok=True)
    write_atomically(recipe_file, canonical_json(recipe).encode())


def _differences(old: Any, new: Any, place: str = "") -> str:
    """Where two JSON values differ, field by field."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = [
            _differences(old.get(key), new.get(key), f"{place}.{key}" if place else key) for key in sorted({*old, *new})
        ]
        return ", ".join(text for text in found if text)
    if old == new:
        return ""
    if isinstance(old, list) and isinstance(new, list):
        at = next(i for i in count() if i >= min(len(old), len(new)) or old[i] != new[i])
        shown = [values[at] if at < len(values) else "nothing" for values in (old, new)]
        return f"{place}[{at}] was {shown[0]}, is {shown[1]}"
    return f"{place} was {old!r}, is {new!r}"


def _commit(working: Path, output: Path) -> None:
    replaced = _beside(output, _REPLACED_SUFFIX)
    remove_tree(replaced)
    if (output / MANIFEST_NAME).exists():
        output.rename(replaced)
    commit_directory(working, output)
    remove_tree(replaced)


def _result(output: Path, manifest: Manifest, rejects: Path | None, was_there: bool) -> BuildResult:
    return BuildResult(
        path=output,
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        digest=manifest.digest,
        num_shards=len(manifest.shards),
        counts=manifest.counts,
        rejects=rejects,
        was_there=was_there,
    )


def written_by(output: Path) -> list[Path]:
    """What a build of the store `output` writes, and never reads as an input."""
    return [output, *(_beside(output, suffix) for suffix in (BUILDING_SUFFIX, _REPLACED_SUFFIX, _REJECTS_SUFFIX))]


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)


@contextmanager
def _disk_errors(output: Path) -> Iterator[None]:
    """Say what a failing disk means for the build."""
    try:
        yield
    except OSError as error:
        try:
            free = f"{free_bytes(output.parent) >> 20} MB free there"
        except OSError:
            free = "its free space unknown"
        place = error.filename or output
        raise BuildError(
            f"disk: expected to write {place}, found {error.strerror or error} ({free}); what is done is kept: mend it and run the same command again, it resumes"
        ) from error
