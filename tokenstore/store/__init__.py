"""Layer 2: the files of a store: reading (`reader`, `store_files`), writing (`writer`, `length_index`), checking (`verify`),
locking (`work`).

Only `files`, `writing`, `work` and `maps` call the operating system; `next_version` is the last step of an append.
"""

from tokenstore.format.input_lines import Origin
from tokenstore.store.find_manifest import versions
from tokenstore.store.reader import Store, open_store
from tokenstore.store.remote.options import RemoteOptions
from tokenstore.store.verify import verify
from tokenstore.store.verify_documents import Finding

__all__ = ["Finding", "Origin", "RemoteOptions", "Store", "open_store", "verify", "versions"]
