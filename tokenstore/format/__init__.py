"""The store format, version 1. Layer 1: values <-> bytes, pure; files are opened by `tokenstore.store`.

FMT-1 Purpose. A store is a directory that holds one corpus as token ids, divided into documents. It is written once, changes
only by growing (FMT-13), and is read through memory maps. All integers are little-endian. Array files have no header: each
array begins at byte 0, so `numpy.memmap(file, dtype)` just works. The manifest says what each file contains.

    manifest.json       describes the store; written last                                               FMT-5
    tokens-00000.bin    shards: token ids, dtype uint16 or uint32                                       FMT-2
    mask-00000.bin      loss masks of the shards, optional                                              FMT-10
    boundaries.bin      int64[num_documents + 1], then int64[lookup entries]                            FMT-3
    length_index.bin    document numbers by length, optional                                            FMT-9
    origins.bin         int64[num_documents], the record that each document was made from, optional     FMT-11
    ids.bin             int64[num_documents + 1], then UTF-8: an id for each document, optional         FMT-12
    block_checksums.bin uint64[blocks], checksums of the blocks of shards and masks, optional           FMT-15
    metadata.arrow      columns of metadata, a row per document, optional                               FMT-16
    document_inputs.bin int64[num_documents], the input of each document, if they are shuffled          FMT-17
    content_hashes.bin  uint64[num_documents, 2], a hash of each document's content, optional            FMT-18
    inputs.jsonl        the input files, one line per file                                              FMT-4
    tokenizer.json      the tokenizer's own file, if it has one; the name depends on the kind           FMT-4
    manifest-v1.json    the manifest of an earlier version, in a store that has grown                   FMT-13
    adopted.json        the token files of another tool that the store was made over, optional          FMT-14

FMT-2 Tokens. The ids of all documents, one document after the other. uint16 if vocab_size <= 65,536, otherwise uint32; an
adopted store may have uint32 for any vocabulary (FMT-14). Every id is below vocab_size, and a writer MUST reject an id that is
not. The stream of num_tokens tokens is divided into shards: a new shard begins before the document that would make the current
shard larger than the target size. So no document is divided between two shards, and only a document larger than the target makes
a shard larger than the target. If the store has end-of-text tokens, each is the last token of its document and part of it.

FMT-3 Boundaries. starts[i] is the stream position of document i's first token; starts[num_documents] = num_tokens. The starts
are strictly increasing from 0, so a document has at least one token. The lookup table follows them: lookup[j] is the document
that contains token j * S, for j = 0 .. (num_tokens - 1) div S, with the stride S = 4096. The document of token t is found by
binary search between lookup[t div S] and lookup[t div S + 1] (or the last document).

FMT-4 Side files. `inputs.jsonl` and the tokenizer's file are listed in the manifest's `files` with size and checksum, like
`boundaries.bin`. A reader can return tokens without them. Each line of `inputs.jsonl` is a JSON object and a newline, at most
65,536 bytes. It has `file`, the name of an input file, and `documents`, the number of documents made from it. It MAY have
`num_bytes`, the file's size, and `checksum`: the XXH3-128, in hex, of the concatenated XXH3-128 digests (16 bytes each,
canonical, big-endian) of the file's blocks of 4 MiB. Further fields are informational.

FMT-5 Manifest. One JSON object in UTF-8 and a newline. Keys are sorted, no key is repeated, and there are no floats. It
contains no times, hosts or absolute paths. It has exactly these fields:
    format            "tokenstore"
    format_version    1
    dtype             "uint16" or "uint32", according to FMT-2; "uint16" only if vocab_size <= 65,536
    vocab_size        1 .. 2**32
    num_tokens        1 .. 2**60, total of all shards
    num_documents     1 .. num_tokens, total of all shards
    ends_with_eos     true if the last token of every document is tokenizer.eos_id; then eos_id is not null
    tokenizer         an object with exactly these fields:
        kind              "bytes", "huggingface", "sentencepiece", "tiktoken", or "none" if it is not known
        file              name of the tokenizer's file, which is listed in `files`; null if and only if kind is "bytes" or "none"
        sha256            sha256 of that file, hex; null if and only if `file` is null
        eos_id, bos_id, pad_id    ids of the end-of-text, begin-of-text and pad token, each below vocab_size, or null
        engine, engine_version    strings: the library that tokenized, and its version
    shards            a list of objects in stream order, each with exactly these fields:
        file              tokens-00000.bin, tokens-00001.bin, ...; at least five digits (but see FMT-19)
        num_bytes         size of the file: first_byte plus num_tokens times the size of the dtype
        first_byte        where the tokens begin in the file, a multiple of the size of the dtype; 0 unless adopted (FMT-14)
        num_tokens        tokens in this shard
        first_token       total tokens of all earlier shards
        num_documents     documents in this shard, 1 .. num_tokens of the shard
        first_document    total documents of all earlier shards
        checksum          checksum of the file
    files             an object: name of each other file -> {"num_bytes": size, "checksum": checksum of the file}
    options           an object, nested at most 20 deep: the build's options; informational
    counts            an object of integers >= 0: counts of the build's input; informational
    package_versions  an object of strings: versions of the libraries used; informational
    digest            identity of the content, see below
    checksum          sha256, hex, of the canonical JSON of all other fields of the manifest, including the digest
Every count that follows from others MUST agree with them. Checksums of files are xxh3-128, 32 hex digits; `verify` compares
them, opening a store does not. The manifest's own checksum is compared at open, so any flipped bit in it is detected. Canonical
JSON is JSON without white space, with keys sorted by code point and strings escaped as in ORD-1. `digest` identifies the
content: the sha256, hex, of the canonical JSON of an object with
    "boundaries": checksum of the boundaries file      "shards": [[num_tokens, checksum] of each shard]
    "dtype": dtype, "vocab_size": vocab_size           "tokenizer": [kind, sha256 or null]
    "masks": [checksum of each shard's mask], only if the store has masks
So the digest does not depend on library versions, options or file names.

FMT-6 Names. A file name is one path component of 1 to 100 characters [A-Za-z0-9._-] that does not begin with a dot. A reader
MUST reject any other name before it accesses the disk. If a file of a store is a symbolic link, it MUST lead to a regular file
inside the store's directory, or inside a directory that the reader's user allows; a reader MUST reject any other link. No name
in `files` is the name of a manifest or a shard, or ends in `.tokenstore-tmp`: writers use these names for other files. A file
in the directory that no version's manifest lists is not part of the store: no reader opens it, and `tokenstore verify` reports
its name.

FMT-7 Commit, by cases. A writer creates all files in another directory, syncs them, writes the manifest there last, and renames
that directory to the store's name. If it is killed before the rename, no directory has that name, so there is no store. If it is
killed after the rename, the store is complete, because every file was synced before. The rename is atomic, so there is no third
case.

FMT-8 Damage and replacement. Opening a store never reads a shard, so damage inside a shard is not detected then. `verify` finds
it, and an id that is not below vocab_size is an error when it is read. A reader MUST NOT return bytes of another store under the
digest that it opened:
    pin       When it opens the store, the reader records the digest, and the device, inode, size and modification time of the
              manifest and of each file. If file sizes are not checked at open, a file's values are recorded when it is first
              mapped. A file is mapped first and compared afterwards.
    manifest  If the manifest is no longer the same file, the reader reads the manifest of the opened version again. A different
              digest, or no such manifest, is an error. A new version or a new length index is not.
    files     If any other file differs from its pin, the reader reads all of it once and compares its checksum. Identical
              bytes are accepted. Small files are compared by checksum whenever they are read.
    objects   Of an object on object storage, size and ETag are recorded, and every answer is compared with them.
    when      Files that stay mapped are compared again at the next read, but at most every 0.2 seconds.
Not promised: a write into a file in place, or a truncation, is an error from the next comparison on; data read before may
contain the new bytes, or zeros after the truncation. A write that preserves size and modification time is not detected at all.
Reading a page after the end of a truncated file is an error for a plan (Linux), which discards the batch. It kills a process
that reads the array of a document or shard directly, as with any memory map.

FMT-9 Length index, optional; needed to pack whole documents. It contains the numbers of all documents, sorted by (tokens,
number), as uint32, or as int64 in a store of more than 2**32 documents. They are padded with zeros to a multiple of 8 bytes.
Then follows int64[runs, 2]: for every length that occurs, in rising order, the length and the index of its first document in the
list of numbers. The length index follows from the boundaries. So it is not part of the digest, can be added to a finished store,
and does not depend on a sequence length. It is listed in the manifest's `files`; the number of runs follows from its size. A
reader MUST check the values that it reads there.

FMT-10 Loss masks, optional. One file per shard, for all shards or none, with ceil(num_tokens / 8) bytes: token t of the shard is
in the loss if bit t mod 8 (from the lowest) of byte t div 8 is 1. The bits after the last token are 0. The files are listed in
`files`; no other name in `files` begins with `mask-`.

FMT-11 Origins, optional. records[i] is the number, from 1, of the record in its input file that document i was made from. The
input file follows from `inputs.jsonl`, unless FMT-17 applies: documents of one input file are contiguous, in the order of its
lines, so the documents of file n begin at the sum of `documents` over the lines before it. A store with origins MUST have
`inputs.jsonl`, and its `documents` MUST add up to num_documents; a reader checks that before it names a file. Whether a store has
origins or ids follows from the names in `files`. Neither is part of the digest, because they do not change the tokens.

FMT-12 Ids, optional. An id is any text that identifies a document to its users: at most 65,535 bytes of UTF-8. It may be empty
and need not be unique. starts[i] is the byte position of document i's id in the text that follows the starts; starts[0] = 0,
starts[num_documents] = the size of the text, and the starts never decrease. A reader MUST check the values that it reads there.

FMT-13 Versions. A finished store may grow by appending whole documents; shards and masks are never written again. Each append
makes a new version of the store, counted from 1. `manifest.json` is the newest version; `manifest-v1.json`, `manifest-v2.json`,
... are the earlier ones, so each version remains a store. New documents begin a new shard, and the numbers of the shards
continue. Files that depend on all documents are written again under a name with the version: `boundaries-v2.bin`, and likewise
the length index, inputs, origins, ids, block checksums, metadata, inputs of documents and hashes of contents. A name without a
version belongs to version 1. A manifest MUST list the boundaries of exactly one version and no such file of another; that is the
version of the manifest. All other files (shards, masks, the tokenizer's file) are shared. All versions have the same vocabulary,
tokenizer and document endings, and all or none have masks, origins, ids, metadata (of the same columns), inputs of documents and
hashes of contents. A version has the same digest as a store with the same shards that was written at once.
Commit, by cases. The new files are created and synced in another directory, moved into the store under names that no version
uses, and the directory is synced. The bytes of the old manifest are written as `manifest-v1.json` (for version 1) and synced.
Then the new manifest replaces `manifest.json` atomically. If the writer is killed before that step, the store has the old version,
beside unlisted files that the next attempt replaces. If it is killed after that step, the store has the new version, and every
file of it was synced before.

FMT-14 Adopted stores. A store may be made over token files of another tool (`tokenstore adopt`). Its shards are hard links to
these files, or copies of them, and have their sizes. A header of the other format remains in the shard: the tokens begin at
first_byte, and the bytes before are covered by the checksum and not interpreted. End-of-text tokens may be anywhere in a
document. The other tool's index files are in `files` as `foreign-00000` and an ending, likewise links or copies. `adopted.json`
is listed in `files` and is one JSON object, at most 1,024 bytes plus 1,024 per shard, with exactly these fields:
    format        "megatron", "datatrove", "dolma", "nanogpt" or "llmc"
    cut           what divides the tokens into documents: "index", "eos", "both" or "file"
    eos_at        where the end-of-text token is in a document: "end", "start" or "none"
    eos_id        the end-of-text token, or null
    files         a list with an object per shard, with exactly these fields:
        shard             its file
        index             list of its index files in the store
        device, inode, modified   of a linked file, as 64-bit unsigned integers (the time in nanoseconds); null for a copy
A shard with the recorded device and inode is still that file. If its modification time is not the recorded one, the other tool
has written to it: opening the store, with file sizes checked, is an error. A copy of the store has other inodes, so nothing is
compared. A writer MUST NOT write to a shard of an adopted store or change its mode, because another name may refer to it.

FMT-15 Block checksums, optional. They name the damaged place of a file, and verify a block that was read by itself, for example
from object storage. A block is 65,536 bytes of a file; the last block of a file is shorter if its size is not a multiple. The
file contains the XXH3-64 of every block as uint64: for each shard, in order, those of its token file and then those of its mask,
if the store has masks. Block checksums follow from the shards and masks. So they are not part of the digest and can be added to
a finished store. A version of a store that has grown begins with the block checksums of the version before it.

FMT-16 Metadata, optional. An Arrow file (the random-access format) with a row per document, in batches of 8,192 rows; only the
last may have fewer. The columns have distinct names. Their types are bool, int64, float64 and large_string, all nullable. A
large_string column whose field has the metadata `tokenstore` = `json` holds a JSON value in each row. A reader MUST validate a
batch before it uses it. Metadata are not part of the digest.

FMT-17 Inputs of documents, optional; only in a store with origins whose documents are not in the order of their inputs. inputs[i]
is the line of `inputs.jsonl`, from 0, that names the input of document i. For each line, as many documents have its number as its
`documents` says. A reader MUST check that a number is that of a line before it uses it. The file is not part of the digest.

FMT-18 Hashes of contents, optional. For each document, XXH3-128 of what it was made from, before it was tokenized, as two uint64:
the low word first. What is hashed is the builder's choice; documents of one store with the same hash count as equal. A writer that
adds documents to the store can leave out those it has already. The file is not part of the digest.

FMT-19 Dropped documents. A version may also have fewer documents than the version before it: all others, in the same order. A
shard that loses documents is written again, and has the name of its number with the version: `tokens-00003-v2.bin`, and its mask
`mask-00003-v2.bin`. A shard that loses all its documents is left out. A shard whose number changes for that reason is the same
file under such a name too. So shard i of version v is named `tokens-i` with no version or one of 2 .. v. All files with an entry
per document are written again. The commit is that of FMT-13. Older versions still hold the documents until they are removed: first
their manifests, and then the files that no manifest lists.

Worked example: documents [7, 1] and [5, 5, 1], vocab_size 8 ->
    tokens-00000.bin    07 00 01 00 05 00 05 00 01 00
    boundaries.bin      0, 2, 5 then lookup [0]: 00.. 02.. 05.. 00.. (four int64)
    length_index.bin    0, 1 (two uint32) then runs (2, 0), (3, 1)
    origins.bin         3, 1 (two int64): the third record of the first input, the first record of the second
    ids.bin             0, 1, 3 (three int64) then "a", "\u00fc" as 61 C3 BC

Versions of the format. 1: the first.
Why not one file with a header? Every other tool would have to skip the header, and it cannot hold values that are known only at
the end. Why is the digest made of the checksums of shards? So that appending never has to read old shards again. The price is
that a store with another shard size is a different store. Why are the boundaries written again when a store grows? So that every
version is a plain store that does not depend on the others; the cost is 8 bytes per document.
"""

FORMAT_VERSION = 1
