"""Claim: a build is as fast as its tokenizer.

Four resources: CPU 1 core for the engine; disk writes 2-4 bytes a token; memory one batch. Text: the Python standard
library's modules as JSON lines. The bare engine encodes the same texts in batches of the same size, and nothing else.
"""

import json
from pathlib import Path

from benches.scenes import Row, ratio, rounds
from tokenstore.build import BuildOptions, build_store
from tokenstore.store.files import remove_tree, set_environment
from tokenstore.tokenizer import load_tokenizer
from tools.demo.sources import standard_library_files


def train_tokenizer(texts: list[str], path: Path, size: int = 30_000) -> Path:
    """A byte-level BPE tokenizer.json, trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return path


def run(folder: Path, smoke: bool) -> list[Row]:
    """End to end (JSON lines -> verified bytes on disk) against the bare engine, one core."""
    set_environment("TOKENIZERS_PARALLELISM", "false")
    texts = [path.read_text("utf-8") for path in standard_library_files()][: 20 if smoke else None]
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    file = train_tokenizer(texts[:100], folder / "tokenizer.json")
    rows = []
    for name, spec in (("Hugging Face tokenizers", str(file)), ("bytes", "bytes")):
        tokenizer = load_tokenizer(spec)
        output = folder / "built"
        options = BuildOptions(inputs=(str(source),), output=output, tokenizer=spec, workers=1)

        def build(options=options, output=output) -> None:
            remove_tree(output)
            build_store(options)

        def bare(tokenizer=tokenizer) -> None:
            for first in range(0, len(texts), 32):
                tokenizer.encode_batch(texts[first : first + 32])

        times = rounds({"bare": bare, "build": build}, 1 if smoke else 5)
        reach = "0.95" if spec != "bytes" else "-"
        speed = f"{megabytes / min(times['build']):.1f} MB/s of text, bare engine {megabytes / min(times['bare']):.1f}"
        rows.append(
            Row(
                f"build end to end, share of the bare engine, {name}",
                ratio(times["bare"], times["build"]),
                reach,
                speed,
            )
        )
    return rows
