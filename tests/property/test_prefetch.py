"""P1 with readahead and a thread: the same batches and states under every combination, wherever it is resumed."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import random_documents, write_store
from tokenstore import Plan, TokenLoader
from tokenstore.torch_data import prefetch

AHEAD = st.fixed_dictionaries({"readahead": st.sampled_from([0, 1, 3, 30]), "prefetch": st.sampled_from([0, 1, 2, 30])})


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """A plan a packing, of two sources of many epochs and shards, with a skip and a stage of another batch size."""
    folder = tmp_path_factory.mktemp("ahead")
    paths = {
        name: write_store(folder / name, random_documents(seed, 60, 40), shard_bytes=700, length_index=True)
        for seed, name in enumerate("ab")
    }
    stages = [{"from_step": 6, "weights": {"a": 1, "b": 3}, "global_batch_size": 24}]
    return {
        packing: Plan.of(
            paths, 16, 12, weights={"a": 2, "b": 1}, num_steps=10, skip_steps=[(2, 4)], stages=stages, packing=packing
        )
        for packing in ("concat", "best_fit", "none")
    }


def walk(loader: TokenLoader, most: int) -> Iterator[tuple]:
    """Each microbatch, and the position of the loader after it."""
    for _, batch in zip(range(most), loader, strict=False):
        tensors = {name: tensor.tolist() for name, tensor in batch.items()}
        yield tensors, loader.state_dict(), loader.step, loader.step_ended, loader.microbatches_per_step


@given(
    packing=st.sampled_from(["concat", "best_fit", "none"]),
    microbatch=st.sampled_from([None, 1, 3, 6]),
    before=AHEAD,
    after=AHEAD,
    taken=st.integers(0, 60),
    waits=st.booleans(),
)
def test_what_runs_ahead_changes_nothing(
    plans: dict[str, Plan], packing: str, microbatch: int | None, before: dict, after: dict, taken: int, waits: bool
) -> None:
    """Batches, states and places are those of a plain loader, also when resumed elsewhere with other numbers ahead."""
    plan = plans[packing]
    arguments = {"rank": 1, "world_size": 2, "microbatch_size": microbatch, "inside_step": "continue"}
    with pytest.MonkeyPatch.context() as patch:
        if waits:
            patch.setattr(prefetch, "major_faults", count().__next__)
        patch.setattr(prefetch, "LONGEST_BURST", 3)
        plain = list(walk(TokenLoader(plan, readahead=0, **arguments), 1000))
        first = TokenLoader(plan, **before, **arguments)
        got = list(walk(first, taken))
        second = TokenLoader(plan, **after, **arguments)
        second.load_state_dict(first.state_dict())
        assert got + list(walk(second, 1000)) == plain
        assert list(walk(second, 1000)) == plain  # and from the start again, as an evaluation does
