"""Stores on object storage.

location        URLs of stores
client          reads and writes objects: exact ranges, checked, with retries until a deadline
failures        what a failed request means
obstore_loading   the library that makes the requests, imported when the first URL is opened
group           requests that are waited for together
array           slices of an array in an object
index_files, downloads   the manifest and the index files of a store, in a cache folder
token_files, options     the token files of a store, and how their bytes travel
mirror, mirror_file, mirrors   token files that are filled block by block and kept; which stores may have them
block_cache, block_files   blocks of lanes, dropped when the plan no longer needs them
upload          copies a finished store to object storage

Credentials are obstore's own matter: nothing here reads, keeps or shows one.
"""

from tokenstore.store.remote.location import Location, is_url

__all__ = ["Location", "is_url"]
