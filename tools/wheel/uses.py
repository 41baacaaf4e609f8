"""One use of each extra, in an environment that has only this one: `python uses.py EXTRA`, in an empty folder."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenstore

CLONE = Path(__file__).resolve().parents[2]
TEXTS = ["the quick brown fox jumps over the lazy dog", "a token store", "eins zwei drei", "ab " * 30] * 4


def records() -> str:
    """A JSON lines file of texts."""
    Path("in.jsonl").write_text(
        "".join(json.dumps({"text": text, "url": f"u{i}"}) + "\n" for i, text in enumerate(TEXTS))
    )
    return "in.jsonl"


def built(source: str = "", **options: Any) -> tokenstore.Store:
    """A store of TEXTS, or of a file, which is checked: all documents are there, and a plan gives batches."""
    result = tokenstore.build(source or records(), output="store", overwrite=True, **options)
    assert result.num_documents > 0
    assert tokenstore.verify(result.path) == []
    next(tokenstore.TokenLoader(tokenstore.Plan.of("store", sequence_length=16, global_batch_size=2)))
    return tokenstore.open_store("store")


def tokenizer_file(*special: str) -> str:
    """A small tokenizer.json, trained here."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = ["<|endoftext|>", *special]
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=names, initial_alphabet=alphabet)
    )
    made.save("tokenizer.json")
    Path("tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return "tokenizer.json"


def build() -> None:
    """Parquet, a tokenizer.json, metadata, a report."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": TEXTS, "url": [f"u{i}" for i in range(len(TEXTS))]}), "in.parquet")
    store = built("in.parquet", tokenizer=tokenizer_file(), keep=("url",))
    assert store.decode(1).startswith(TEXTS[1])
    assert store.metadata(1) == {"url": "u1"}
    subprocess.run(["tokenstore", "report", "store"], check=True)


def fast() -> None:
    """The fast engine."""
    built(tokenizer=tokenizer_file(), engine="fast")


def tiktoken() -> None:
    """A rank file."""
    import base64

    lines = (f"{base64.b64encode(bytes([i])).decode()} {i}" for i in range(256))
    Path("ranks.tiktoken").write_text("\n".join(lines) + "\n")
    built(tokenizer="ranks.tiktoken", pattern="gpt2", special_tokens={"<|endoftext|>": 256})


def sentencepiece() -> None:
    """A model, trained here."""
    import sentencepiece as library

    settings: dict[str, Any] = {"vocab_size": 300, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2}
    library.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_prefix="made", **settings)
    built(tokenizer="made.model")


def chat() -> None:
    """Conversations with a built-in template."""
    turns = [{"role": "user", "content": "one and one?"}, {"role": "assistant", "content": "two"}]
    Path("chat.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
    store = built(
        "chat.jsonl", tokenizer=tokenizer_file("<|im_start|>", "<|im_end|>"), records="chat", chat_template="chatml"
    )
    assert 0 < store.loss_mask(0).sum() < len(store[0])


def remote() -> None:
    """A store on a server on this machine: the same batches as from the folder, and the command line."""
    built(tokenizer="bytes")
    plan: dict[str, Any] = {"sequence_length": 16, "global_batch_size": 4, "packing": "concat"}
    command = [sys.executable, "-m", "tests.support.servers.range_server", str(Path.cwd())]
    with subprocess.Popen(command, cwd=CLONE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = f"{server.stdout.readline().strip()}/data/store"
        options = tokenstore.RemoteOptions(cache=Path("cache").resolve())
        here, there = tokenstore.Plan.of("store", **plan), tokenstore.Plan.of(url, **plan, remote=options)
        for step in range(8):
            assert (here.batch(step)["input_ids"] == there.batch(step)["input_ids"]).all()
        subprocess.run(["tokenstore", "verify", url, "--cache", "cache"], check=True, stdout=subprocess.DEVNULL)
        server.stdin.close()  # ends it


def ray() -> None:
    """A build on a local Ray."""
    built(tokenizer="bytes", executor="ray", workers=1)


def trained(example: str) -> Callable[[], None]:
    """The example of a trainer, to its end."""

    def run() -> None:
        subprocess.run(["tokenstore", "examples", "copied"], check=True, stdout=subprocess.DEVNULL)
        for line in (("data", "RUN", "--steps", "4"), (f"trainers.{example}", "RUN", "CHECKPOINTS")):
            subprocess.run([sys.executable, "-m", *line], cwd="copied", check=True)

    return run


USES: dict[str, Callable[[], None]] = {
    "build": build,
    "fast": fast,
    "tiktoken": tiktoken,
    "sentencepiece": sentencepiece,
    "chat": chat,
    "huggingface": trained("hf"),
    "lightning": trained("lightning_module"),
    "torchdata": trained("torchdata_nodes"),
    "grain": trained("grain_dataset"),
    "ray": ray,
    "remote": remote,
}

if __name__ == "__main__":
    USES[sys.argv[1]]()
    print(f"{sys.argv[1]}: used")
