"""A store on one screen: document lengths from the length index, the longest documents, inputs, share in the loss."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tests.support.stores.forge import replace
from tests.support.stores.grown import documents_of, grow, write
from tests.support.stores.masked import random_masked, write_masked
from tokenstore.errors import CorruptionError
from tokenstore.store import Store, open_store
from tokenstore.views import store_summary
from tokenstore.views.lengths import PERCENTILES, largest_documents, summarize_lengths
from tokenstore.views.store_summary import loss_share, summarize_store


def lengths_store(folder: Path, lengths: list[int]) -> Store:
    return open_store(write_store(folder, [[1] * length for length in lengths], length_index=True))


class TestLengths:
    @given(st.lists(st.integers(1, 40) | st.integers(1, 3000), min_size=1, max_size=60))
    def test_figures_equal_those_of_all_documents(
        self, tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
    ) -> None:
        """Every figure is recomputed from the lengths of all documents."""
        summary = summarize_lengths(lengths_store(tmp_path_factory.mktemp("s") / "s", lengths))
        rising = sorted(lengths)
        assert (summary.shortest, summary.longest, summary.distinct) == (rising[0], rising[-1], len(set(rising)))
        assert summary.mean == pytest.approx(np.mean(rising))
        for p in PERCENTILES:
            value = summary.percentiles[str(p)]
            assert sum(n <= value for n in rising) >= len(rising) * p / 100
            assert value == rising[0] or sum(n < value for n in rising) < len(rising) * p / 100
        half = summary.half_of_tokens
        assert sum(n for n in rising if n <= half) >= sum(rising) / 2 > sum(n for n in rising if n < half)
        for row in summary.bins:
            inside = [n for n in rising if row.low <= n <= row.high]
            assert (row.documents, row.tokens) == (len(inside), sum(inside))
        assert sum(row.documents for row in summary.bins) == len(rising)
        assert summary.bins[0].documents
        assert summary.bins[-1].documents

    def test_the_largest_documents_come_first(self, tmp_path: Path) -> None:
        """Of equal lengths the later document comes first; at most all are listed."""
        store = lengths_store(tmp_path / "s", [5, 9, 1, 9, 7])
        assert largest_documents(store, 3) == [3, 1, 4]
        assert largest_documents(store, 99) == [3, 1, 4, 0, 2]

    def test_without_a_length_index_there_are_no_lengths(self, make_store: Callable[..., Path]) -> None:
        """No document is scanned."""
        store = open_store(make_store("s", [[1], [2, 3]]))
        summary = summarize_store(store)
        assert summary.lengths is None
        assert summary.largest == ()

    def test_a_damaged_length_index_is_reported(self, make_store: Callable[..., Path]) -> None:
        """A document number out of range is an error before it is used."""
        path = make_store("s", [[1], [2, 3]], length_index=True)
        data = bytearray((path / "length_index.bin").read_bytes())
        data[4:8] = b"\xff" * 4
        replace(path / "length_index.bin", bytes(data))
        with pytest.raises(CorruptionError, match=r"length index: expected numbers of 2 documents, found 4294967295"):
            summarize_store(open_store(path))


class TestSummary:
    def test_a_complete_store(self, tmp_path: Path) -> None:
        """Totals, inputs by number of documents, largest documents with id and origin, all versions."""
        first, second = documents_of(1, [3, 1, 40, 7]), documents_of(2, [2, 90, 30, 1, 1, 1])
        path = write(tmp_path / "s", first)
        grow(path, second)
        store = open_store(path)
        summary = summarize_store(store, 2)
        assert (summary.version, summary.versions) == (2, (1, 2))
        assert (summary.manifest.num_documents, summary.manifest.num_tokens) == (10, 176)
        assert summary.num_bytes == sum(p.stat().st_size for p in map(path.joinpath, self.names(store)))
        assert [row.documents for row in summary.inputs] == [3, 3]
        assert summary.num_inputs == 4
        assert [(row.number, row.num_tokens) for row in summary.largest] == [(5, 90), (2, 40)]
        assert summary.largest[0].id == second[1].id
        assert summary.largest[0].origin == store.origin(5)
        assert summarize_store(open_store(path, version=1)).manifest.num_documents == 4

    @staticmethod
    def names(store: Store) -> list[str]:
        return [*store.manifest.files, *(shard.file for shard in store.shards())]

    def test_a_minimal_store(self, make_store: Callable[..., Path]) -> None:
        """Missing parts are None or empty."""
        summary = summarize_store(open_store(make_store("s", [[1, 2]])))
        assert (summary.inputs, summary.num_inputs, summary.in_loss) == ((), 0, None)
        assert summary.largest == ()
        assert not summary.has_length_index


class TestLossShare:
    def test_the_share_is_exact(self, tmp_path: Path) -> None:
        """It is the share of all tokens of all shards."""
        documents = random_masked(1, [9, 1, 70, 33, 8])
        in_loss = loss_share(open_store(write_masked(tmp_path / "s", documents, shard_bytes=60)))
        assert in_loss.exact
        assert in_loss.share == np.mean([bit for mask in documents.masks for bit in mask])

    def test_large_masks_are_sampled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The share is estimated from an even sample, and is not marked as exact."""
        monkeypatch.setattr(store_summary, "_MASK_BYTES", 1 << 10)
        documents = random_masked(1, [300] * 200, density=0.3)
        in_loss = loss_share(open_store(write_masked(tmp_path / "s", documents, shard_bytes=60_000, at_once=50)))
        exact = np.mean([bit for mask in documents.masks for bit in mask])
        assert not in_loss.exact
        assert in_loss.share == pytest.approx(exact, abs=0.1)


def test_no_shard_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary needs only the manifest, the length index and the list of inputs."""
    path = write_store(tmp_path / "s", random_documents(1, 20, 30), length_index=True)
    monkeypatch.setattr(Store, "shard", None)
    assert summarize_store(open_store(path)).manifest.num_documents == 20
