"""Reads the records of input files as a build does, by slices, and makes documents of them."""

from collections.abc import Sequence
from pathlib import Path

from tokenstore.builder import BuildOptions
from tokenstore.builder.documents.convert import DocumentReader, reading
from tokenstore.builder.reading.inputs import InputFile
from tokenstore.builder.reading.records import Bad, SliceReader
from tokenstore.builder.reading.units import Slice
from tokenstore.tokenizer import load_tokenizer


def document_reader(**options: object) -> DocumentReader:
    """Makes documents of rows as a build with these options and the bytes tokenizer does."""
    wanted = BuildOptions(("unused",), Path("unused"), **{"tokenizer": "bytes", **options})
    return DocumentReader(wanted, load_tokenizer(wanted.tokenizer))


def read_slice(
    files: Sequence[InputFile], part: Slice, **options: object
) -> tuple[list[tuple[int, str | Bad]], SliceReader]:
    """(number, text or reason) of every record of a slice, and the reader."""
    documents = document_reader(**options)
    records = SliceReader(files[part.file_number], part, reading(documents.options))
    found = []
    for number, row in records:
        document = row if isinstance(row, Bad) else documents.document(row)
        found.append((number, document if isinstance(document, Bad) else document.text))
    return found, records
