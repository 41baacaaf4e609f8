"""Real documents, packed: the modules of Python's standard library, over two epochs, counted."""

import sysconfig

import numpy as np
import pytest

from tokenstore import Plan, PlanConfig, open_store
from tokenstore.builder import BuildOptions, build_store
from tokenstore.store import Store


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of the modules of the standard library: a document per file, from empty ones to some of 200,000 bytes."""
    path = tmp_path_factory.mktemp("library") / "store"
    folder = sysconfig.get_paths()["stdlib"]
    options = BuildOptions(
        inputs=(f"{folder}/*.py", f"{folder}/json", f"{folder}/unittest", f"{folder}/idlelib"),
        output=path,
        tokenizer="bytes",
        text_endings=(".py",),
        max_bad=1000,
        workers=1,
    )
    build_store(options)
    return open_store(path)


@pytest.mark.deep
@pytest.mark.parametrize("length", [512, 2048, 8191])
@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_two_epochs_yield_every_token_twice(library: Store, packing: str, length: int) -> None:
    """P3: each token with the following one as its target, and otherwise only padding."""
    sources = {"library": {"path": str(library.path), "max_epochs": 2}}
    fields = {"sequence_length": length, "global_batch_size": 8, "num_steps": "all_exhausted", "last_batch": "pad"}
    plan = Plan(PlanConfig(sources=sources, packing=packing, seed=1, **fields))
    starts = library.boundaries()[: len(library) + 1]
    given = np.zeros(library.num_tokens, np.int64)
    for step in range(plan.num_steps):
        batch = plan.batch(step)
        for ids, targets, pieces in zip(batch["input_ids"], batch["targets"], plan.documents(step), strict=True):
            at = 0
            for _, document, start, stop in pieces:
                tokens = library[document].astype(np.int64)
                assert (ids[at : at + stop - start] == tokens[start:stop]).all()
                assert (targets[at : at + stop - start] == np.append(tokens, -100)[start + 1 : stop + 1]).all()
                given[starts[document] + start : starts[document] + stop] += 1
                at += stop - start
            assert (targets[at:] == -100).all()
    assert (given == 2).all()
