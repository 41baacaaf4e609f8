"""Packed rows give each document the logits it has alone, by every way the fields offer; and without them they do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from tests.conftest import random_documents
from tokenstore import Plan, TokenLoader
from tokenstore.examples.model import GPT, Attend, by_flex, by_mask, by_pieces

LENGTH, BATCH, VOCABULARY = 32, 4, 64
TOLERANCE = 1e-5
FIELDS = ("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")
WAYS: dict[str, Callable[[dict], Attend]] = {
    "mask": lambda batch: by_mask(batch["document_ids"]),
    "flex": lambda batch: by_flex(batch["document_ids"]),
    "pieces": lambda batch: by_pieces(batch["cu_seqlens"], batch["max_seqlen"]),
}
Alone = Callable[[torch.Tensor], torch.Tensor]  # ids int64[1, n] -> logits float[1, n, VOCABULARY]


@pytest.fixture
def plan(make_store: Callable[..., Path]) -> Plan:
    """Rows of several documents, among them parts of long ones and documents of one token, and padding."""
    documents = random_documents(5, 11, 50, VOCABULARY) + random_documents(6, 14, 3, VOCABULARY)
    path = make_store("a", documents, vocab_size=VOCABULARY, length_index=True)
    return Plan.of(path, LENGTH, BATCH, num_steps="all_exhausted", last_batch="pad")


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return GPT(VOCABULARY, LENGTH, width=16).eval()


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    """And one thread: for tensors so small more of them only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every token sees all before it in its row, of whatever document."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def gpt_alone(model: GPT) -> Alone:
    return lambda ids: model(ids, torch.arange(ids.shape[1])[None], causal)


def llama_alone(model: LlamaForCausalLM) -> Alone:
    return lambda ids: model(input_ids=ids, use_cache=False).logits


def differences(plan: Plan, step: int, logits: torch.Tensor, alone: Alone, first_in_row: bool) -> list[float]:
    """For the first pieces of rows, or for all others: how far their logits, float[BATCH, LENGTH, V], are from those alone."""
    found = []
    for row, pieces in enumerate(plan.documents(step)):
        at = 0
        for piece in pieces:
            ids = torch.tensor(plan.stores["a"][piece.document][piece.start : piece.stop].astype("int64"))[None]
            size = piece.stop - piece.start
            if (at == 0) == first_in_row:
                found.append((logits[row, at : at + size] - alone(ids)[0]).abs().max().item())
            at += size
    return found


def check_isolated(plan: Plan, step: int, logits: torch.Tensor, alone: Alone) -> None:
    for first_in_row in (True, False):
        assert max(differences(plan, step, logits, alone, first_in_row), default=0) < TOLERANCE


def check_mixed(plan: Plan, step: int, logits: torch.Tensor, alone: Alone) -> None:
    """What comes first in a row has nothing to mix with; what comes later is another thing than alone."""
    assert max(differences(plan, step, logits, alone, first_in_row=True)) < TOLERANCE
    assert min(differences(plan, step, logits, alone, first_in_row=False)) > 100 * TOLERANCE


def test_the_plan_holds_what_is_to_be_kept_apart(plan: Plan) -> None:
    """So that the tests below mean something: many pieces a row, parts of documents, single tokens, padding, empty rows."""
    rows = [row for step in range(plan.num_steps) for row in plan.documents(step)]
    pieces = [piece for row in rows for piece in row]
    assert max(map(len, rows)) > 3
    assert min(map(len, rows)) == 0
    assert any(piece.start > 0 for piece in pieces)
    assert any(piece.stop - piece.start == 1 for piece in pieces)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # it is there for GPUs
@pytest.mark.parametrize("way", WAYS)
def test_a_document_has_the_logits_it_has_alone(plan: Plan, gpt: GPT, way: str) -> None:
    """document_ids as a mask or for FlexAttention, cu_seqlens for a call a piece: every document of every row."""
    for step, batch in enumerate(TokenLoader(plan, fields=FIELDS)):
        logits = gpt(batch["input_ids"], batch["position_ids"], WAYS[way](batch))
        assert logits.isfinite().all()  # padding looks at itself
        check_isolated(plan, step, logits, gpt_alone(gpt))


def test_borders_of_one_shape_isolate_too(plan: Plan, gpt: GPT) -> None:
    """cu_seqlens filled up to max_documents: the pieces without tokens change nothing."""
    for step, batch in enumerate(TokenLoader(plan, fields=FIELDS, max_documents=BATCH * LENGTH)):
        assert batch["cu_seqlens"].shape == (BATCH * LENGTH + 1,)
        logits = gpt(batch["input_ids"], batch["position_ids"], WAYS["pieces"](batch))
        check_isolated(plan, step, logits, gpt_alone(gpt))


def test_without_isolation_documents_mix(plan: Plan, gpt: GPT) -> None:
    """The tests above would see it: a plain causal mask, or positions that continue, change all but the first of a row."""
    batch = next(iter(TokenLoader(plan, fields=FIELDS)))
    check_mixed(plan, 0, gpt(batch["input_ids"], batch["position_ids"], causal), gpt_alone(gpt))
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
    check_mixed(plan, 0, gpt(batch["input_ids"], positions, by_mask(batch["document_ids"])), gpt_alone(gpt))


def test_hugging_face_isolates_by_positions(plan: Plan, llama: LlamaForCausalLM) -> None:
    """Format hf: position_ids, no attention_mask, no cache."""
    for step, batch in enumerate(TokenLoader(plan, format="hf", fields=("input_ids", "position_ids"))):
        check_isolated(plan, step, llama(**batch, use_cache=False).logits, llama_alone(llama))


def test_hugging_face_isolates_rows_laid_end_to_end(plan: Plan, llama: LlamaForCausalLM) -> None:
    """Format hf_flash as it comes: on a CPU the model goes by its position_ids, and the borders do no harm."""
    for step, batch in enumerate(TokenLoader(plan, format="hf_flash")):
        logits = llama(**batch, use_cache=False).logits
        check_isolated(plan, step, logits.reshape(BATCH, LENGTH, -1), llama_alone(llama))


@pytest.mark.parametrize("format", ["hf", "hf_flash"])
def test_hugging_face_loss_is_that_of_the_documents(plan: Plan, llama: LlamaForCausalLM, format: str) -> None:
    """`labels`, which the model shifts: the mean over every token of every piece but its first, given the piece alone."""
    fields = ("input_ids", "labels", "position_ids")
    for step, batch in enumerate(TokenLoader(plan, format=format, fields=fields)):
        losses = []
        for piece in (piece for row in plan.documents(step) for piece in row):
            ids = torch.tensor(plan.stores["a"][piece.document][piece.start : piece.stop].astype("int64"))[None]
            losses.append(functional.cross_entropy(llama_alone(llama)(ids)[0, :-1], ids[0, 1:], reduction="none"))
        loss = llama(**batch, use_cache=False).loss
        assert loss.item() == pytest.approx(torch.cat(losses).mean().item(), abs=TOLERANCE)


@pytest.mark.parametrize("trap", ["cache", "attention_mask"])
def test_hugging_face_mixes_with_a_cache_or_a_mask(plan: Plan, llama: LlamaForCausalLM, trap: str) -> None:
    """What the docstring of formats warns of is so: should it change, the warning can go."""
    batch = next(iter(TokenLoader(plan, format="hf", fields=("input_ids", "position_ids"))))
    options = {"cache": {"use_cache": True}, "attention_mask": {"attention_mask": torch.ones_like(batch["input_ids"])}}
    logits = llama(**batch, **{"use_cache": False, **options[trap]}).logits
    check_mixed(plan, 0, logits, llama_alone(llama))
