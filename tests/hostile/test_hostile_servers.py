"""Servers that send something else than what was requested: no more of it is read than that."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tokenstore.errors import RemoteError
from tokenstore.store.remote.client import Client
from tokenstore.store.remote.location import Location

CHUNK = bytes(1 << 16)


class EndlessBody:
    """An answer with the requested range in its headers, and a body without end."""

    range, meta = (10, 20), {"size": 100, "e_tag": '"x"'}

    def __init__(self) -> None:
        self.num_chunks = 0

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        """Chunks of at least this size, as those of obstore."""
        assert min_chunk_size == 10
        while True:
            self.num_chunks += 1
            yield CHUNK


def test_a_body_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[EndlessBody] = []

    def get(*_: object, **__: object) -> EndlessBody:
        answers.append(EndlessBody())
        return answers[-1]

    client = Client(Location.of("http://127.0.0.1:1/s"), deadline=0.2)
    monkeypatch.setattr(client, "_connected", lambda: SimpleNamespace(get=get))
    with pytest.raises(RemoteError, match="another range than requested"):
        client.get("tokens-00000.bin", 10, 20)
    assert answers
    assert {answer.num_chunks for answer in answers} == {1}
