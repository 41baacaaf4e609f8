"""Floor 2: a store's files. Reading (`reader`), writing (`writer`), checking (`verify`); `files` alone touches the OS."""

from tokenstore.store.reader import Store, open_store
from tokenstore.store.verify import Finding, verify

__all__ = ["Finding", "Store", "open_store", "verify"]
