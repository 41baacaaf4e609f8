"""Stores on object storage: where they are (`location`), how ranges are read (`client`), how tokens travel (`options`).

Only `obstore_loading` imports obstore, when the first URL is opened. Credentials are obstore's own matter: nothing here reads, keeps
or shows one.
"""

from tokenstore.store.remote.location import Location, is_url

__all__ = ["Location", "is_url"]
