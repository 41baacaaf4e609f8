"""Floor 2: a store's files. Reading (`reader`), writing (`writer`, `order_file`), checking (`verify`); `files` touches the OS."""

from tokenstore.store.reader import Store, open_store
from tokenstore.store.verify import Finding, verify

__all__ = ["Finding", "Store", "open_store", "verify"]
