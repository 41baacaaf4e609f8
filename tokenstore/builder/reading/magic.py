"""Recognises a file by its first bytes, to report one with the wrong ending."""

from tokenstore.builder.reading.inputs import TABLES, InputFile

MAGIC_BYTES = 8
_KINDS = (  # first bytes, the kind of file, and the ending it should have or what to do with it
    (b"\x1f\x8b\x08", "gzip data", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstd data", ".zst"),
    (b"PAR1\x15", "a Parquet file", ".parquet"),  # a text may begin with PAR1, but not with PAR1 and a byte 0x15
    (b"ARROW1\x00\x00", "an Arrow file", ".arrow"),
    (b"\xff\xff\xff\xff", "an Arrow stream", ".arrow"),
    (b"\xfd7zXZ\x00", "xz data", ".xz"),
    (b"BZh91AY&", "bzip2 data", ".bz2"),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"\xff\xfe", "UTF-16 text", "convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it to UTF-8"),
)
_MAGICS = tuple(magic for magic, _, _ in _KINDS)


def misnamed(start: bytes, file: InputFile) -> str | None:
    """Why a file that begins with `start` cannot be what its ending says, and what to do; None if it can."""
    if not start.startswith(_MAGICS):
        return None
    ending = file.compression or (file.format if file.format in TABLES else "")
    for magic, kind, right in _KINDS:
        if not start.startswith(magic):
            continue
        if right == ending:
            return None
        if not right.startswith("."):
            return f"this is {kind}; {right}"
        name = file.path.with_suffix(right).name if ending or right in TABLES else file.path.name + right
        return f"this is {kind}; rename it to {name}"
    return None
