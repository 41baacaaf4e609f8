"""URLs of stores: s3://bucket/path, gs://bucket/path, az://container/path, http(s)://host/path.

A URL names a place and nothing else. Credentials, endpoints and regions come from the environment, as obstore reads them.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from tokenstore.errors import ConfigError, FormatError
from tokenstore.store.files import environment
from tokenstore.store.remote.obstore_loading import load_obstore

SCHEMES = ("s3", "gs", "az", "http", "https")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")


def is_url(text: object) -> bool:
    """Whether a store's path is a URL, of any scheme."""
    return isinstance(text, str) and _URL.match(text) is not None


def refuse_url_as_path(path: Path) -> None:
    """Raise FormatError if `path` was made from a URL: Path("s3://b/x") is "s3:/b/x", which no file system has."""
    first = path.parts[0] if path.parts else ""
    if first[:-1] in SCHEMES and first.endswith(":"):
        raise FormatError(f"store: expected the text of a URL, found the path {path}; pass a str, not a Path")


def refuse_url(path: str | Path, what: str) -> None:
    """Raise ConfigError if `path` is a URL, or was made from one. `what` works on disks only, for example "append"."""
    text = str(path)
    if is_url(text) or text.partition(":/")[0] in SCHEMES:
        scheme, _, rest = text.partition(":/")
        shown = f"{scheme}://{rest.lstrip('/').rpartition('@')[2].partition('?')[0]}"
        raise ConfigError(
            f"{what}: expected a path on a disk, found the URL {shown}; use a copy on a disk, and upload the result"
        )


@dataclass(frozen=True)
class Location:
    """A folder on object storage.

    Attributes:
        scheme: one of SCHEMES.
        host: bucket, container, or host with port.
        path: names separated by "/", without a "/" at either end. It may be empty.
    """

    scheme: str
    host: str
    path: str

    @classmethod
    def of(cls, url: str) -> Self:
        """The location that a URL names.

        Raises:
            FormatError: it has an unknown scheme, or a user, password or query, which do not belong into a plan.
        """
        found = _URL.fullmatch(url)
        scheme, rest = (found[1].lower(), found[2]) if found else ("", url)
        host, _, path = rest.partition("/")
        shown = f"{scheme}://{host.rpartition('@')[2].partition('?')[0].partition('#')[0]}/..."  # without any secret
        if scheme not in SCHEMES or not host.isprintable():
            raise FormatError(f"store: expected a URL of {', '.join(f'{each}://' for each in SCHEMES)}, found {shown}")
        if "@" in host or "?" in rest or "#" in rest:
            raise FormatError(
                f"store: expected a URL without user, password, query and fragment, found one with them ({shown});"
                " credentials belong in the environment"
            )
        names = path.rstrip("/").split("/")
        if not host or not rest.isprintable() or (path and any(name in ("", ".", "..") for name in names)):
            raise FormatError(f"store: expected a URL of the form {scheme}://bucket/path, found {shown}")
        return cls(scheme, host, "/".join(names))

    @property
    def url(self) -> str:
        """The URL, without a "/" at its end."""
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")

    @property
    def name(self) -> str:
        """The last name of the path, or the host."""
        return self.path.rpartition("/")[2] or self.host

    def __str__(self) -> str:
        return self.url

    def object_url(self, name: str) -> str:
        """The URL of an object in this folder."""
        return f"{self.url}/{name}"

    def connect(self, stalled: float, whole: float) -> Any:
        """A new obstore object for this folder, with credentials from obstore's own chain. It makes no request.

        Args:
            stalled: seconds after which an answer that has stopped is given up.
            whole: seconds that one request may take.

        Raises:
            TokenStoreError: obstore is not installed, or refuses the settings in the environment.
        """
        stores = load_obstore().store
        seconds = timedelta(seconds=stalled)
        client: dict[str, Any] = {
            "connect_timeout": min(seconds, timedelta(seconds=5)),
            "read_timeout": seconds,
            "timeout": timedelta(seconds=whole),
            "pool_max_idle_per_host": "256",
            "allow_http": self._allows_http,
        }
        options: dict[str, Any] = {
            "client_options": client,
            "retry_config": {"max_retries": 0, "retry_timeout": seconds},  # `Client` retries: it knows the deadline
        }
        try:
            if self.scheme in ("http", "https"):
                return stores.HTTPStore(self.url, **options)
            kind = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[self.scheme]
            return kind(self.host, prefix=self.path or None, **options)
        except Exception as error:  # obstore has no common class for wrong settings; its text may quote a credential
            raise FormatError(
                f"store: obstore refuses its settings for {self.scheme}:// ({type(error).__name__}, {self.url});"
                " check the credentials, endpoint and region in the environment"
            ) from None

    @property
    def _allows_http(self) -> bool:
        """Whether to send requests without TLS: only if the URL or an endpoint in the environment says http://."""
        if self.scheme in ("http", "https"):
            return self.scheme == "http"
        return any((environment(name) or "").lower().startswith("http://") for name in _ENDPOINTS)
