"""Fine-tune on conversations: build, pack, and train on the answers only.

    python -m tokenstore.examples.train_sft RUN

The build formats every conversation with a chat template and stores which tokens belong to the assistant. Whole conversations
are packed into rows. `targets` is -100 unless the next token is in the loss; `position_ids` and `cu_seqlens` isolate the
conversations of a row. The script prints a row, one line per conversation, with the tokens in the loss in [brackets].
"""

import argparse
import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import tokenstore
from tokenstore.builder import BuildOptions, build_store
from tokenstore.examples.model import GPT, by_pieces

FIELDS = ("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")


def conversations() -> Iterator[dict[str, Any]]:
    """Conversations about sums, some of them with two turns."""
    for left in range(30):
        for right in range(30):
            turns = [("user", f"{left} + {right}?"), ("assistant", f"{left + right}")]
            if right % 3 == 0:
                turns += [("user", "And one more?"), ("assistant", f"{left + right + 1}")]
            yield {"messages": [{"role": role, "content": text} for role, text in turns]}


def build(folder: Path) -> Path:
    """Build the conversations. The bytes tokenizer needs no file; a real one brings its own chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    records = folder / "sums.jsonl"
    records.write_text("".join(json.dumps(each) + "\n" for each in conversations()))
    options = BuildOptions(
        inputs=(str(records),),
        output=folder / "stores" / "sums",
        tokenizer="bytes",
        records="chat",
        chat_template="chatml",
        train_on="assistant",
    )
    return Path(build_store(options).path)


def marked(store: tokenstore.Store, batch: dict[str, Any], row: int) -> Iterator[str]:
    """The conversations of a row as text, with the tokens in the loss in brackets."""
    ids, documents = batch["input_ids"][row], batch["document_ids"][row]
    in_loss = torch.zeros_like(ids, dtype=torch.bool)
    in_loss[1:] = batch["targets"][row][:-1] != -100  # the target of a position is the next token
    for number in range(int(documents.max()) + 1):  # padding is -1
        inside = documents == number
        parts = groupby(zip(in_loss[inside].tolist(), ids[inside].tolist(), strict=True), itemgetter(0))
        texts = ((on, store.tokenizer.decode(np.array([token for _, token in part]))) for on, part in parts)
        yield "".join(f"[{text}]" if on else text for on, text in texts).replace("\n", "\\n")


def train(plan: tokenstore.Plan) -> Iterator[tuple[int, float]]:
    """Train to the end of the plan; yield each step with its mean loss over the targets."""
    vocabulary = max(store.vocab_size for store in plan.stores.values())
    model = GPT(vocabulary, plan.config.sequence_length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, batch in enumerate(tokenstore.TokenLoader(plan, fields=FIELDS)):
        apart = by_pieces(batch["cu_seqlens"], batch["max_seqlen"])
        logits = model(batch["input_ids"], batch["position_ids"], apart)
        loss = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss.item()


def main() -> None:
    """Build, print a row, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the store")
    parser.add_argument("--steps", type=int, default=40, help="steps to train (default: 40)")
    arguments = parser.parse_args()
    path = build(arguments.folder)
    plan = tokenstore.Plan.of(path, sequence_length=256, global_batch_size=8, num_steps=arguments.steps)
    first = next(iter(tokenstore.TokenLoader(plan, fields=FIELDS)))
    print(*marked(plan.stores["sums"], first, row=0), sep="\n")
    for step, loss in train(plan):
        print(json.dumps({"step": step, "loss": loss, **plan.metrics(step + 1)}), flush=True)


if __name__ == "__main__":
    main()
