"""Stores and plans for the other examples, from the source of tokenstore: its modules are `code`, their docstrings `prose`.

    python -m tokenstore.examples.data RUN

A tenth of the prose is not in the training store; evaluate.py uses it.
"""

import argparse
from pathlib import Path

import yaml

import tokenstore
from tokenstore.builder import BuildOptions, build_store
from tokenstore.examples.sources import write_prose

MODULES = Path(tokenstore.__file__).resolve().parent
PLAN = {
    "sequence_length": 128,
    "global_batch_size": 8,
    "seed": 1234,
    "sources": {
        "code": {"path": "stores/code", "weight": 0.7},
        "prose": {"path": "stores/prose/train", "weight": 0.3},
    },
}
EVALUATION = {
    "sequence_length": 128,
    "global_batch_size": 8,
    "packing": "none",  # one document per row; a long one takes several rows
    "num_steps": "all_exhausted",  # every source once
    "sources": {"prose": {"path": "stores/prose/validation"}},
}


def build(folder: Path, num_steps: int) -> None:
    """Build the stores and write plan.yaml and evaluation.yaml next to them."""
    folder.mkdir(parents=True, exist_ok=True)
    prose = folder / "prose.jsonl"
    write_prose(sorted(MODULES.rglob("*.py")), prose)
    for name, text, split in (("code", MODULES, None), ("prose", prose, "train=0.9,validation=0.1")):
        build_store(
            BuildOptions(
                inputs=(str(text),),
                output=folder / "stores" / name,
                tokenizer="bytes",
                text_endings=(".py",),
                split=split,
            )
        )
    (folder / "plan.yaml").write_text(yaml.safe_dump({**PLAN, "num_steps": num_steps}, sort_keys=False))
    (folder / "evaluation.yaml").write_text(yaml.safe_dump(EVALUATION, sort_keys=False))


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the stores and plans")
    parser.add_argument("--steps", type=int, default=60, help="steps of the training plan (default: 60)")
    arguments = parser.parse_args()
    build(arguments.folder, arguments.steps)
    print(f"stores, plan.yaml and evaluation.yaml are in {arguments.folder}")


if __name__ == "__main__":
    main()
