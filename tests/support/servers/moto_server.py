"""A real S3 server in this process: moto. It copies an object for every range, so keep its objects below some megabytes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import obstore
from obstore.store import S3Store

from tests.support.servers.s3_client import ACCESS_KEY, SECRET_KEY, client_environment


class MotoServer:
    """A running server and its one bucket, `bucket`."""

    def __init__(self, url: str):
        self.url = url
        options = {"endpoint": url, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
        self._bucket = S3Store("bucket", **options, client_options={"allow_http": True})  # type: ignore[arg-type]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a client of S3 uses this server."""
        return client_environment(self.url)

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        obstore.put(self._bucket, key, data)

    def add_folder(self, prefix: str, folder: Path) -> None:
        """Upload the files of a folder as objects PREFIX/NAME."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


@contextmanager
def moto_server() -> Iterator[MotoServer]:
    """Start moto on a free port of the loopback interface, in a thread."""
    from moto.server import ThreadedMotoServer  # type: ignore[import-untyped]  # it has no types

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        for path, method in (("moto-api/reset", "POST"), ("bucket", "PUT")):  # all servers of a process share objects
            urlopen(Request(f"http://{host}:{port}/{path}", method=method)).close()
        yield MotoServer(f"http://{host}:{port}")
    finally:
        server.stop()
