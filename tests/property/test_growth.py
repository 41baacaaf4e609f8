"""Appending in any number of steps equals writing at once, and no version ever changes (FMT-13)."""

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.stores.grown import ALL, Kind, check_documents, contents, documents_of, grow, inputs_of, write
from tokenstore.store import open_store, verify, versions

LENGTHS = st.lists(st.one_of(st.integers(1, 12), st.sampled_from([4095, 4096, 4097, 9000])), min_size=1, max_size=12)
KINDS = st.builds(Kind, st.booleans(), st.booleans(), st.booleans(), st.booleans())
SIDE_FILES = ("boundaries.bin", "length_index.bin", "origins.bin", "ids.bin")


@given(LENGTHS, st.sets(st.integers(1, 11), max_size=4), KINDS, st.sampled_from([1, 30, 1 << 20]), st.integers(1, 5))
@example([4096, 1, 4096, 8192, 1], {1, 2, 3, 4}, ALL, 1, 1)
@example([1], set(), ALL, 30, 1)
def test_growing_in_steps_equals_writing_at_once(
    lengths: list[int], cuts: set[int], kind: Kind, shard_bytes: int, at_once: int
) -> None:
    """FMT-13: all versions have the documents, masks, origins, ids, length index and text of a store written at
    once. Files of all documents have the same bytes, and with the same shards the digest is equal. Older versions
    keep their digest, and all are sound.
    """
    documents = documents_of(len(lengths), lengths, vocab_size=128)
    edges = [0, *sorted(cut for cut in cuts if cut < len(lengths)), len(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        grown, once = Path(folder) / "grown", Path(folder) / "once"
        digests = []
        for first, stop in pairwise(edges):
            (grow if first else write)(grown, documents[first:stop], kind, shard_bytes=shard_bytes, at_once=at_once)
            digests.append(open_store(grown).digest)
        write(once, documents, kind, shard_bytes, at_once)
        assert versions(grown) == list(range(1, len(edges)))
        for version, stop in enumerate(edges[1:], 1):
            with open_store(grown, version=version) as store:
                assert store.digest == digests[version - 1]
                check_documents(store, documents[:stop], kind)
            assert verify(grown, version=version) == []
        found, expected, newest = contents(grown), contents(once), open_store(grown)
        assert [newest.decode(i) for i in range(len(newest))] == [bytes(each.tokens).decode() for each in documents]
        for name in SIDE_FILES:
            assert found.get(newest.file(name).name) == expected.get(name)
        inputs = [inputs_of(documents[first:stop]) for first, stop in pairwise(edges)]
        assert found[newest.file("inputs.jsonl").name] == b"".join(inputs)
        if shard_bytes == 1:  # every document in a shard of its own
            assert newest.digest == open_store(once).digest
            assert all(found[name] == expected[name] for name in expected if "-" in name)
