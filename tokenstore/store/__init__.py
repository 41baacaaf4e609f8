"""Layer 2: a store's files. Reading (`reader`), writing (`writer`, `order_file`), checking (`verify`).

`files` alone touches the operating system; `append` makes a finished store longer.
"""

from tokenstore.format.input_lines import Origin
from tokenstore.store.find_manifest import versions
from tokenstore.store.finding import Finding
from tokenstore.store.reader import Store, open_store
from tokenstore.store.verify import verify

__all__ = ["Finding", "Origin", "Store", "open_store", "verify", "versions"]
