"""Type errors of a program that uses tokenstore: one run of mypy over a small client."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# After `#:`, a part of what mypy reports for the line; a line without it has no error
CLIENT = """
from collections.abc import Iterator
from pathlib import Path

import torch

import tokenstore
from tokenstore.builder import BuildOptions, build_store

build_store(BuildOptions(inputs=("a.txt",), output=Path("web"), tokenizer="bytes", workers=2))
BuildOptions(inputs=("a.txt",), output=Path("web"), tokeniser="bytes")  #: Unexpected keyword argument "tokeniser"

store = tokenstore.open_store("stores/web", check="lazy")
tokenstore.open_store("stores/web", checks="lazy")  #: Unexpected keyword argument "checks"
tokenstore.verify("stores/web", versoin=1)  #: Unexpected keyword argument "versoin"
length: int = store.num_tokens
name: str = store.num_tokens  #: Incompatible types in assignment

tokenstore.PlanConfig(sequence_length=8, global_batch_size=4, sources={"web": {"path": "stores/web", "weight": 0.5}})
tokenstore.PlanConfig(sequence_length=8, global_batch_size=4, sources={}, pakcing="none")  #: "pakcing"
tokenstore.PlanConfig(sequence_length=8, global_batch_size=4, sources={"web": {"paht": "web"}})  #: incompatible type "str": "dict[str, str]"
plan = tokenstore.Plan.of("stores/web", sequence_length=8, global_batch_size=4, packing="concat", num_steps=9)
tokenstore.Plan.of("stores/web", sequence_length=8, global_batch_size=4, shuffel=True)  #: "shuffel"
plan.batch(0, rnak=1)  #: Unexpected keyword argument "rnak"
plan.batch(0)["labels"]  #: has no key "labels"

loader = tokenstore.TokenLoader(plan, rank=0, world_size=1, prefetch=2)
for batch in loader:
    ids: torch.Tensor = batch["input_ids"]
    batch["labels"]  #: has no key "labels"
tokenstore.TokenLoader(plan, microbatchsize=4)  #: No overload variant of "TokenLoader"
tokenstore.TokenLoader(plan, fields=["targets"], worldsize=4)  #: No overload variant of "TokenLoader"
for fields in tokenstore.TokenLoader(plan, format="hf", pin_memory=True):
    labels = fields["labels"]
for inputs, targets in tokenstore.TokenLoader(plan, format="torchtitan"):
    positions: torch.Tensor = inputs["positions"]
tokenstore.TokenDataset(plan, prefetch=2)  #: No overload variant of "TokenDataset"
tokenstore.SequenceDataset(plan)[3]["target"]  #: has no key "target"


def first(loader: Iterator[tokenstore.Batch]) -> torch.Tensor:
    return next(loader)["targets"]


first(loader)
first(tokenstore.TokenLoader(plan, format="torchtitan"))  #: incompatible type
"""


@pytest.mark.deep  # from a cold cache mypy takes as long as a tenth of the default tests
def test_a_clients_mistakes_are_type_errors(tmp_path: Path) -> None:
    """A misspelt keyword of a public function, or key of a batch, is an error at its line; correct code has none."""
    client = tmp_path / "client.py"
    client.write_text(CLIENT)
    root = Path(__file__).parents[2]  # the settings of the project, and its mypy cache
    command = [sys.executable, "-m", "mypy", str(client)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    found: dict[int, str] = {}
    for line, message in re.findall(r"client\.py:(\d+): error: (.*)", done.stdout):
        found[int(line)] = f"{found.get(int(line), '')}{message}\n"
    wanted = {number: line.split("  #: ")[1] for number, line in enumerate(CLIENT.splitlines(), 1) if "  #: " in line}
    assert found.keys() == wanted.keys(), done.stdout + done.stderr
    for line, part in wanted.items():
        assert part in found[line]
