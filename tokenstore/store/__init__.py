"""Layer 2: the files of a store. Only `files`, `writing`, `work`, `private` and `maps` call the operating system.

reader, notebook           Store: documents by number; how a notebook shows a store
store_files, maps          its files, mapped when they are first used
find_manifest, pin         the manifest of a version; notices that an open store was replaced
input_list, metadata, adopted   what inputs.jsonl, metadata.arrow and adopted.json say
block_ranges, workers      blocks that are read as a whole, and the threads that fetch or read ahead
remote/                    stores at URLs

writing, output            creates, replaces and removes files; files with a running checksum
writer, document_files     writes the files of a store, and those with an entry per document
work, lock_file, private   the work folder beside a store and its lock; folders that one process fills
length_index, block_checksums, block_hasher, added_files   files that are added to a finished store
next_version, dropping, merging   the last step of an append; a version without some documents; several stores as one

verify                     checks all contents of a store
verify_files, verify_tokens, verify_documents   its checks of whole files, tokens, and files with an entry per document
files                      reads files, and knows what the system can do
"""

from tokenstore.format.input_lines import Origin
from tokenstore.store.find_manifest import versions
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.verify import verify
from tokenstore.store.verify_documents import Finding

__all__ = ["Finding", "Origin", "RemoteOptions", "Store", "open_store", "verify", "versions"]
