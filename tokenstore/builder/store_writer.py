"""`tokenstore.StoreWriter`: a store written from Python, document by document."""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast

import numpy as np
import orjson

from tokenstore.builder.disk import disk_errors
from tokenstore.builder.documents.convert import Document, DocumentReader
from tokenstore.builder.documents.encode import Encoded, encode_documents, special_ids
from tokenstore.builder.documents.fields import encoded_metadata
from tokenstore.builder.hub import local_tokenizer
from tokenstore.builder.options import BuildOptions, DocumentStart, Engine, SpecialText, check_names
from tokenstore.builder.reading.records import Bad
from tokenstore.builder.recipe import manifest_fields, open_tokenizer, recipe_of, side_files
from tokenstore.builder.replacing import check_replaceable, commit, is_free, resolved_output
from tokenstore.builder.result import BuildResult, result_of
from tokenstore.errors import BuildError, ConfigError
from tokenstore.format.input_lines import InputRow, encode_row
from tokenstore.paths import is_there
from tokenstore.store.document_files import Columns
from tokenstore.store.length_index import write_length_index
from tokenstore.store.remote.location import refuse_url
from tokenstore.store.work import Work, exclusive_work
from tokenstore.store.writer import FileWriter
from tokenstore.store.writing import make_folders, new_folder, own_folder, remove_tree
from tokenstore.tokenizer import EngineMismatch, reference_of

INPUT_NAME = "python"  # in inputs.jsonl
_ADVICE = "no store was written: fix the cause and write again"
_BATCH_CHARACTERS, _BATCH_DOCUMENTS = 4 << 20, 4096
_IS_FIELD = re.compile("^field '(document|mask|id)'")  # in messages: here these are arguments
_CALL_DOCUMENTS = 1024  # of one call of the tokenizer


class WriterOptions(TypedDict, total=False):
    """Further arguments of `StoreWriter`: the options of a build with the same names."""

    eos: bool
    eos_token: str | None
    document_start: DocumentStart
    special_text: SpecialText
    add_special_tokens: bool
    engine: Engine
    pattern: str | None
    special_tokens: tuple[str, ...]
    keep_empty: bool
    min_tokens: int
    max_tokens: int | None
    max_record_bytes: int
    shard_bytes: int


class StoreWriter:
    """Writes a store from Python: texts, or token ids made elsewhere, one document after the other.

    The store appears when the `with` block ends. If it ends with an exception, or the process is killed, there is no store.
    Documents are stored in the order in which they are written, and their tokens are those that `tokenstore build` makes of the
    same texts: the digest is the same. Memory does not grow with the store. Not for several threads or processes at once; let
    each write a store of its own, and join them with `tokenstore.merge`.

    Args:
        path: the store's folder, which must not exist or be empty.
        tokenizer: as `tokenstore build --tokenizer`. Documents are then texts or token ids.
        vocab_size: without a tokenizer: size of the vocabulary. Documents are then token ids. To end them with an end-of-text
            token, give its id as `eos_token="2"`; otherwise give `eos=False`.
        masks: whether documents may come with a loss mask. All tokens of the others are in the loss.
        ids: whether documents have ids.
        metadata: names of the columns of metadata.
        overwrite: replace a store at `path`, when the new one is complete.
        options: options of a build with the same names: eos, eos_token, document_start, special_text, add_special_tokens,
            engine, pattern, special_tokens, keep_empty, min_tokens, max_tokens, max_record_bytes, shard_bytes.

    Attributes:
        num_documents, num_tokens: written so far. Documents still in memory do not count.
        dropped: documents dropped because they are empty, shorter than `min_tokens` or longer than `max_tokens`, by reason.
        result: the finished store, after the `with` block.

    Raises:
        ConfigError: an argument is invalid, or `path` holds something else. No store is changed.
        TypeError: an argument is unknown.
        StoreBusyError: another process is writing this store.
        BuildError: the disk is full, or there is no document. No store is written.

    Example:
        >>> with tokenstore.StoreWriter("stores/mine", tokenizer="bytes", ids=True) as writer:
        ...     for number, text in enumerate(texts):
        ...         writer.write(text, id=str(number))
        >>> writer.result.num_tokens
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: str | Path | None = None,
        vocab_size: int | None = None,
        *,
        masks: bool = False,
        ids: bool = False,
        metadata: Sequence[str] = (),
        overwrite: bool = False,
        **options: Unpack[WriterOptions],
    ):
        check_names("StoreWriter", options, WriterOptions.__annotations__)
        if (tokenizer is None) == (vocab_size is None):
            raise ConfigError("writer: expected a tokenizer or a vocab_size, and not both")
        refuse_url(path, "writer")
        self.path = resolved_output(path)
        self._options = BuildOptions(
            inputs=(INPUT_NAME,),
            output=self.path,
            tokenizer="none" if tokenizer is None else local_tokenizer(str(tokenizer)),
            vocab_size=vocab_size,
            records="text" if tokenizer is not None and not masks else "tokens",
            mask_field="loss_mask" if masks else None,
            id_field="id" if ids else None,
            keep=tuple(metadata),
            origins=False,
            overwrite=overwrite,
            **options,
        )
        self._tokenizer = open_tokenizer(self._of("text") if tokenizer is not None else self._options)
        special_ids(self._tokenizer, self._options)
        kinds = ("tokens",) if tokenizer is None else ("text", "tokens")
        self._readers = {kind: DocumentReader(self._of(kind), self._tokenizer) for kind in kinds}
        self.num_documents = self.num_tokens = 0
        self.dropped = {"empty": 0, "short": 0, "long": 0}
        self.result: BuildResult | None = None
        self._kind, self._documents, self._size = "text", list[Document](), 0
        self._files: FileWriter | None = None
        self._failed = False  # documents were lost: there will be no store
        self._held = contextlib.ExitStack()

    def _of(self, records: str) -> BuildOptions:
        """The options for a text, or for token ids."""
        is_text, options = records == "text", self._options
        fields = (
            {"text_field": "document"} if is_text else {"tokens_field": "document"}
        )  # the names of arguments of `write`
        mask = "mask" if options.mask_field and not is_text else None
        return replace(options, records=cast(Any, records), mask_field=mask, keep=(), **cast(Any, fields))

    def __enter__(self) -> Self:
        with disk_errors(self.path, _ADVICE):
            make_folders(self.path.parent)
            with contextlib.ExitStack() as held:
                work = held.enter_context(exclusive_work(self.path))
                self._check_free(work)
                remove_tree(work.building)
                own_folder(work.building)
                held.callback(remove_tree, work.building)
                folder = work.building / "store"
                new_folder(folder)
                options = self._options
                self._files = held.enter_context(
                    FileWriter(
                        folder,
                        self._tokenizer.vocab_size,
                        options.shard_bytes,
                        masks=options.mask_field is not None,
                        columns=Columns(ids=options.id_field is not None, metadata=options.keep),
                        block_checksums=True,
                    )
                )
                self._held = held.pop_all()
        return self

    def _check_free(self, work: Work) -> None:
        if self._options.overwrite:
            check_replaceable(self.path)
        elif not is_free(self.path):
            raise ConfigError(f"output: {self.path} exists already; use overwrite=True, or another path")
        elif is_there(work.building / "recipe.json"):
            raise ConfigError(
                f"output: {work.building} holds an unfinished build; finish it with the same command, or use overwrite=True"
            )

    def write(
        self,
        document: str | Sequence[int] | np.ndarray,
        *,
        mask: Sequence[bool] | np.ndarray | None = None,
        id: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a document.

        Args:
            document: a text; or integers[n], token ids, as a list, an array or a tensor on the CPU.
            mask: of token ids: bool[n] or zeros and ones, which of them are in the loss; at least one must be. Default: all.
            id: the document's id; at most 65,535 bytes of UTF-8. It need not be unique.
            metadata: values by column, of types that JSON has. A missing column has no value.

        Raises:
            ValueError: the document, mask, id or metadata are invalid. Nothing of it is written, and writing may continue.
            BuildError: the disk is full. Any error but ValueError loses documents, so there will be no store.
        """
        if self._files is None:
            raise ValueError("writer: it is not open; use it in a `with` block, which ends when the store is complete")
        kind = "text" if isinstance(document, str) else "tokens"
        found = self._read(kind, document, mask, id, dict(metadata or {}))
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._documents.append(found)
        self._size += found.size
        if self._size >= _BATCH_CHARACTERS or len(self._documents) >= _BATCH_DOCUMENTS:
            self._flush()

    def write_all(self, documents: Iterable[str | Sequence[int] | np.ndarray]) -> None:
        """Write documents without masks, ids and metadata. See `write`."""
        for document in documents:
            self.write(document)

    def _read(self, kind: str, document: Any, mask: Any, id: str, metadata: dict[str, Any]) -> Document:
        """The document, checked as a record of a build is."""
        options = self._options
        for given, wanted, name in (
            (mask is not None, options.mask_field, "masks=True"),
            (id != "", options.id_field, "ids=True"),
        ):
            if given and not wanted:
                raise ValueError(f"{name.split('=')[0][:-1]}: this writer has none; open it with {name}")
        if unknown := sorted(metadata.keys() - {*options.keep}):
            raise ValueError(
                f"metadata: expected columns among {list(options.keep)}, found {unknown}; open the writer with them"
            )
        if kind == "text" and (options.tokenizer == "none" or mask is not None):
            rule = "token ids, as there is no tokenizer" if options.tokenizer == "none" else "no mask for a text"
            raise ValueError(f"document: expected {rule}; encode the text first")
        rule = "document: expected a text, or token ids"
        row = {"document": document if kind == "text" else _array(document, rule), "id": id}
        if kind == "tokens" and options.mask_field:
            row["mask"] = np.ones(len(row["document"]), np.bool_) if mask is None else _array(mask, "mask: expected it")
        found = self._readers[kind].document(row)
        if not isinstance(found, Document):
            reason = found.reason if isinstance(found, Bad) else f"document: {found}"
            raise ValueError(_IS_FIELD.sub(r"\1", reason))
        if not options.keep:
            return found
        for name, value in metadata.items():
            _check_value(name, value)
        return replace(found, metadata=encoded_metadata([metadata.get(name) for name in options.keep]))

    def _flush(self) -> None:
        documents, self._documents, self._size = self._documents, [], 0
        if self._failed:
            raise BuildError(f"writer: documents were lost when an earlier call failed ({self.path}); {_ADVICE}")
        if not documents or self._files is None:
            return
        self._failed = True
        self._append(self._files, documents, self._of(self._kind))
        self._failed = False
        self.num_documents, self.num_tokens = self._files.num_documents, self._files.num_tokens

    def _append(self, files: FileWriter, documents: list[Document], options: BuildOptions) -> None:
        with disk_errors(self.path, _ADVICE):
            for first, encoded in self._encoded(documents, options):
                kept = [documents[first + i] for i in encoded.kept.tolist()]
                for reason, name in enumerate(self.dropped):
                    self.dropped[name] += int((encoded.why == reason).sum())
                if not kept:
                    continue
                masks = self._options.mask_field is not None
                mask = np.ones(encoded.tokens.size, np.bool_) if masks and encoded.mask is None else encoded.mask
                files.append(
                    encoded.tokens,
                    encoded.lengths,
                    mask=mask if masks else None,
                    ids=[each.name for each in kept] if self._options.id_field else None,
                    metadata=[each.metadata for each in kept] if self._options.keep else None,
                )

    def _encoded(self, documents: list[Document], options: BuildOptions) -> list[tuple[int, Encoded]]:
        """The documents encoded, in pieces; all of them by the reference if the fast engine differs from it in one."""

        def encode(tokenizer: Any) -> list[tuple[int, Encoded]]:
            pieces = range(0, len(documents), _CALL_DOCUMENTS)
            return [(i, encode_documents(documents[i : i + _CALL_DOCUMENTS], tokenizer, options)) for i in pieces]

        checks = getattr(self._tokenizer, "checks", None)
        try:
            with checks.aside() if checks else contextlib.nullcontext():
                getattr(self._tokenizer, "start_source", lambda: None)()
                found = encode(self._tokenizer)
                if checks:
                    checks.start()
                    checks.settle()
                return found
        except EngineMismatch:
            return encode(reference_of(self._tokenizer))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._held:
            if kind is None:
                with disk_errors(self.path, _ADVICE):
                    self._finish()
            self._files = None

    def _finish(self) -> None:
        self._flush()
        files, options = self._files, self._options
        if files is None:
            return
        if files.num_documents == 0:
            shown = (
                ", ".join(f"{number} {reason}" for reason, number in self.dropped.items() if number) or "none written"
            )
            raise BuildError(f"documents: expected at least one, found none ({shown}); no store was written")
        recipe = recipe_of(options, self._tokenizer, ())
        for name, data in side_files(options, self._tokenizer).items():
            files.add_file(name, data)
        files.finish(
            inputs=encode_row(InputRow(INPUT_NAME, files.num_documents), {}),
            counts={"documents": files.num_documents, **self.dropped},
            **manifest_fields(recipe),
        )
        write_length_index(files.folder)
        commit(files.folder, self.path, lambda text: None)
        self.result = result_of(self.path, [(self.path, None)], None, was_there=False)


def _array(value: Any, rule: str) -> Any:
    """A list as it is; anything else that numpy takes, such as a tensor, as an array. ValueError for what has no items."""
    found = value if isinstance(value, list) else np.asarray(value)
    if isinstance(found, np.ndarray) and found.ndim == 0:
        raise ValueError(f"{rule} as a list or an array, found {type(value).__name__}")
    return found


def _check_value(name: str, value: Any) -> None:
    """ValueError unless JSON has this value, or one that numpy or a date stands for."""
    try:
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        is_valid = not isinstance(value, float) or isfinite(value)
    except orjson.JSONEncodeError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"metadata: expected a value that JSON has in column {name!r}, found {repr(value)[:60]}; give text, a number,"
            " true, false, None, or lists and dicts of them"
        )
