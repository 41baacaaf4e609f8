"""The store format, version 1. Layer 1: values <-> bytes, pure; files are opened by `tokenstore.store`.

FMT-1 Purpose. A store is a directory holding one corpus as token ids, cut into documents. It is written once, never
changed but by growing (FMT-13), and read through memory maps. All integers are little-endian. No file has a header:
every array begins at byte 0, so `numpy.memmap(file, dtype)` just works; what a file holds stands in the manifest.

    manifest.json       what is here, written last                                                     FMT-5
    tokens-00000.bin    shards: token ids, dtype uint16 or uint32                                       FMT-2
    mask-00000.bin      loss masks of the shards, optional                                              FMT-10
    boundaries.bin      int64[num_documents + 1], then int64[lookup entries]                            FMT-3
    length_index.bin           document numbers by length, optional                                            FMT-9
    origins.bin         int64[num_documents], the record each document is made of, optional             FMT-11
    ids.bin             int64[num_documents + 1], then UTF-8: a name for each document, optional        FMT-12
    inputs.jsonl        what the store was made of, one line an input file                              FMT-4
    tokenizer.json      the tokenizer's own file, where it has one; another kind has another name       FMT-4
    manifest-v1.json    what was here before the store grew                                             FMT-13

FMT-2 Tokens. The ids of all documents, one document after the other. uint16 when vocab_size <= 65,536, else uint32;
every id is below vocab_size, and a writer MUST refuse one that is not. The stream of num_tokens tokens is cut into
shards: a new shard begins before the document that would make the current one larger than the target size, so a
document never straddles two shards and only a document larger than the target makes a shard larger than it.
A document's end-of-text token, if the store has them, is its last token and part of it.

FMT-3 Boundaries. starts[i] is the stream position of document i's first token; starts[num_documents] = num_tokens.
Strictly increasing from 0: a document has at least one token. Behind it stands the lookup table: lookup[j] is the
document that holds token j * LOOKUP_STRIDE, for j = 0 .. (num_tokens - 1) div LOOKUP_STRIDE. The document of token t
is found by binary search between lookup[t div S] and lookup[t div S + 1] (or the last document).

FMT-4 Side files. `inputs.jsonl` and the tokenizer's file stand in the manifest's `files` with size and checksum, like
`boundaries.bin`. A reader needs neither to give tokens. A line of `inputs.jsonl` is a JSON object and a newline, with
`file`, the name of an input file, and `documents`, how many documents came from it. It MAY have `num_bytes`, its size, and
`checksum`: the XXH3-128, in hex, of the XXH3-128 digests (16 bytes each, as canonical, big-endian) of the file's blocks of
4 MiB, one after the other. What else it has is for people.

FMT-5 Manifest. One JSON object in UTF-8 and a newline; keys sorted, no key twice, no floats. It holds no times, hosts or
absolute paths. It has these fields, and no others:
    format            "tokenstore"
    format_version    1
    dtype             "uint16" or "uint32", as FMT-2 says
    vocab_size        1 .. 2**32
    num_tokens        1 .. 2**60, of all shards
    num_documents     1 .. num_tokens, of all shards
    ends_with_eos     true where the last token of every document is tokenizer.eos_id
    tokenizer         an object: kind, "bytes", "huggingface", "sentencepiece" or "tiktoken"; engine, engine_version, strings;
                      file, the name of its file among `files`, and sha256 of that file in hex, both null for "bytes" and
                      only there; eos_id, bos_id, pad_id, below vocab_size or null
    shards            a list of objects, in the order of the stream: file, tokens-00000.bin, tokens-00001.bin and so on;
                      num_bytes; num_tokens; first_token, the tokens of all shards before; num_documents; first_document,
                      the same of documents; checksum
    files             an object: for the name of every other file an object of num_bytes and checksum
    options, counts, library_versions    objects: how the store was built (nested at most 20 deep), from how much (integers), by what
                      (strings); for people
    digest, checksum  see below
Every count that follows from others MUST agree with them. Checksums of files are xxh3-128, 32 hex digits; they are read by
`verify`, not at open. Canonical JSON is JSON without white space, its keys sorted by code point, its strings escaped as in
ORD-1. `digest` identifies the content: the sha256, in hex, of the canonical JSON of an object with
    "boundaries": checksum of the boundaries file      "shards": [[num_tokens, checksum] of each shard]
    "dtype": dtype, "vocab_size": vocab_size           "tokenizer": [kind, sha256 or null]
    "masks": [checksum of each shard's mask], only where there are masks
So it does not change with versions, options or names. `checksum` is the sha256 of the canonical JSON of all other fields of
the manifest, digest included: any flipped bit of it is seen at open.

FMT-6 Names. A file name is one path component of [A-Za-z0-9._-], at most 100 characters, not beginning with a dot.
A reader MUST refuse any other before touching the disk. A file of a store that is a symbolic link MUST lead to a regular
file inside the store's folder, or inside a folder that the reader's user names; a reader MUST refuse any other. No name in
`files` is that of a manifest or a shard, or ends in `.tokenstore-tmp`: writers give these names to other files. A file in
the folder that no version's manifest lists is not part of the store: no reader opens it, and `tokenstore verify` reports
its name.

FMT-7 Commit, by cases. A writer makes all files in another directory, syncs them, writes the manifest there last,
and renames that directory to the store's name. Killed before the rename: no directory of that name, so no store.
Killed after it: the whole store, every file synced before. The rename is one step, so there is no third case.

FMT-8 Damage and replacement. Opening never reads a shard, so damage inside one is not seen then: `verify` finds it, and
an id not below vocab_size is an error when it is read. A reader MUST NOT give bytes of another store under the digest it
opened. It pins the version: the digest, and device, inode, size and time of modification of the manifest and of each
file, taken when the store is opened, or, where sizes are not checked at open, when the file is first mapped. A file is
mapped first and compared afterwards. When the manifest is another file, that of the opened version is read again:
another digest, or none, is an error; a new version or a new length index is not. When any other file differs from its
pin, it is read once as a whole, and its checksum decides: the same bytes are accepted. Small files are compared by
checksum whenever they are read. Files that are held are compared again at the next read, but at most every 0.2 seconds.
Not promised: a write into a file in place, or a cut, is an error from the next comparison on, and what was read before it
may hold the new bytes, or zeros behind a cut; a write that leaves size and time of modification as they were is not seen
at all. Reading a page behind the end of a cut file is an error for a plan (Linux), which throws the batch away; it kills
a process that reads the array of a document or a shard by itself, as in any memory map.

FMT-9 Length index, optional, which whole documents are packed by. The numbers of all documents, sorted by (tokens,
number), uint32, or int64 in a store of more than 2**32 documents; zeros up to a multiple of 8 bytes; then int64[runs,
2], for every length that occurs, rising, the length and the place of its first document among the numbers. It follows
from the boundaries, so it is no part of the digest, may be added to a finished store, and does not depend on any
sequence length. It stands in the manifest's `files`; the count of runs follows from its size. A reader MUST check what
it reads there.

FMT-10 Loss masks, optional. One file a shard, for all shards or none, ceil(num_tokens / 8) bytes: token t of the shard
is in the loss where bit t mod 8 (from the lowest) of byte t div 8 is 1; bits behind the last token are 0. They stand
in `files`, where no other name begins with `mask-`.

FMT-11 Origins, optional. records[i] is the number of the record, from 1, in its input file, that document i was made
of. The file follows from `inputs.jsonl`: documents of one input file lie together, in the order of its lines, so file n
holds the documents from the sum of the `documents` of the lines before it on. Where there are origins there MUST be
`inputs.jsonl`, and its `documents` MUST add up to num_documents; a reader checks that before it names a file. Like the
ids, origins are known to be there by their name in `files`, and are no part of the digest: they say nothing of tokens.

FMT-12 Ids, optional. Any text by which people know a document: UTF-8 of at most 65,535 bytes, maybe empty, maybe not
the only one of its kind. starts[i] is the place of document i's id in the text that stands behind all starts;
starts[0] = 0, starts[num_documents] = the size of the text, never falling. A reader MUST check what it reads there.

FMT-13 Versions. A finished store may grow by whole documents at its end; no shard or mask is ever written again. Every
growth is a new version of the store, from 1. `manifest.json` is the newest one, `manifest-v1.json`,
`manifest-v2.json` ... are those before, so that every version remains a store. New documents begin a new shard, and
the numbers of shards go on. What depends on all documents is written anew under a name with the version:
`boundaries-v2.bin`, and in the same way order, inputs, origins and ids; a name without one is of version 1. A manifest
MUST name boundaries of one version and no such file of another; that is the version of the manifest. All else (shards,
masks, the tokenizer's file) the versions share. They have the vocabulary, the tokenizer and the ends of documents in
common, and either all or none have masks, origins, ids. A version has the digest of a store written in one go that has
the same shards.
Its commit, by cases: the new files are made and synced in another directory, moved into the store under names that no
version has, and the names synced; the bytes of the old manifest are written as `manifest-v1.json` (for version 1), and
synced; the new manifest replaces `manifest.json` in one step. Killed before that step: the old version, beside files
nobody names, which the next try replaces. Killed after it: the new version, every file of it synced before.

Worked example: documents [7, 1] and [5, 5, 1], vocab_size 8 ->
    tokens-00000.bin  07 00 01 00 05 00 05 00 01 00
    boundaries.bin    0, 2, 5 then lookup [0]: 00.. 02.. 05.. 00.. (four int64)
    length_index.bin         0, 1 (two uint32) then runs (2, 0), (3, 1)
    origins.bin       3, 1 (two int64): the third record of the first input, the first of the second
    ids.bin           0, 1, 3 (three int64) then "a", "\u00fc" as 61 C3 BC

Versions of the format. 1: the first.
Why not one file with a header? A header is one more thing to skip for every other tool, and cannot hold what is known
only at the end. Why is the digest made of shard checksums? So that appending never has to read old shards again; the
price is that a store cut into shards of another size is another store. Why are the boundaries written anew when a store
grows? So that every version is a plain store that knows nothing of the others; 8 bytes a document is little.
"""

FORMAT_VERSION = 1
