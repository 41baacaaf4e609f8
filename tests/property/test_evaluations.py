"""Evaluation over random stores and settings: every token once, and the sums of a loop over single documents."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.masked import Documents, write_masked
from tokenstore import Evaluation, Plan
from tokenstore.errors import ConfigError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    packing = draw(st.sampled_from(["none", "best_fit", "concat"]))
    length = draw(st.integers(1, 12))
    divisors = [n for n in range(1, length + 1) if length % n == 0]
    return {
        "lengths": [draw(LENGTHS) for _ in range(draw(st.integers(1, 2)))],
        "masked": draw(st.booleans()),
        "world": draw(st.integers(1, 4)),
        "size": draw(st.none() | st.integers(1, 6)),
        "fields": {
            "sequence_length": length,
            "global_batch_size": draw(st.integers(1, 5)),
            "packing": packing,
            "shuffle": draw(st.booleans()),
            "seed": draw(st.integers(0, 9)),
            "last_batch": draw(st.sampled_from(["pad", "drop"])),
            "align": draw(st.sampled_from(divisors)) if packing != "concat" else None,
        },
    }


def documents_of(lengths: list[int], first: int, masked: bool) -> Documents:
    """Documents of these lengths whose tokens are first, first + 1, ...; with masks, two of three are in the loss."""
    tokens, token = [], first
    for length in lengths:
        tokens.append(list(range(token, token + length)))
        token += length
    return Documents(tokens, [[not masked or token % 3 > 0 for token in document] for document in tokens])


@pytest.mark.filterwarnings("ignore:source .* padding")  # of a source of a few tokens
@given(cases())
def test_every_token_and_target_counts_once(tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]) -> None:
    """P3, P5: for any stores, packing, ranks and microbatches; ranks get equally many batches of one shape."""
    folder, made = tmp_path_factory.mktemp("stores"), {}
    for number, lengths in enumerate(case["lengths"]):
        made[f"s{number}"] = documents_of(lengths, 1 + 1000 * number, case["masked"])
    paths = {
        name: write_masked(folder / name, documents, 3000, length_index=True, masks=case["masked"])
        for name, documents in made.items()
    }
    try:
        plan = Plan.of(paths, num_steps="all_exhausted", **case["fields"])
    except ConfigError:  # a source has no whole sequence or step
        return
    seen: Counter[int] = Counter()
    total, counts = torch.zeros(()), set()
    for rank in range(case["world"]):
        evaluation = Evaluation(
            plan,
            rank=rank,
            world_size=case["world"],
            microbatch_size=case["size"],
            fields=("input_ids", "targets", "document_ids"),
        )
        batches = list(evaluation)
        for batch in batches:
            seen.update(batch["input_ids"][batch["document_ids"] >= 0].tolist())
            evaluation.add(batch, batch["targets"].double())
        counts.add((len(batches), len(evaluation)))
        total = total + evaluation.sums
    assert len({*counts, *(pair[::-1] for pair in counts)}) == 1
    result = evaluation.result(sums=total)
    check_result(result, made, seen)


def check_result(result: Any, made: dict[str, Documents], seen: Counter[int]) -> None:
    """The tokens are those of all documents, and each source has the targets of its documents, whose loss is the target."""
    assert seen == Counter(token for documents in made.values() for document in documents.tokens for token in document)
    for name, documents in made.items():
        targets = [
            token
            for tokens, mask in zip(documents.tokens, documents.masks, strict=True)
            for token, in_loss in zip(tokens[1:], mask[1:], strict=True)
            if in_loss
        ]
        assert result.sources[name].targets == len(targets)
        assert not targets or result.sources[name].loss == pytest.approx(sum(targets) / len(targets))
