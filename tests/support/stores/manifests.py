"""A manifest of two shards, its fields as JSON, and the place that messages about it name."""

import json

from tokenstore.format.manifest import FileEntry, Manifest, ShardEntry, TokenizerEntry
from tokenstore.format.manifest_file import encode_manifest

PLACE = "/stores/web/manifest.json"
MANIFEST = Manifest(
    dtype="uint16",
    vocab_size=300,
    num_tokens=9000,
    num_documents=5,
    ends_with_eos=True,
    tokenizer=TokenizerEntry("huggingface", "tokenizer.json", "ab" * 32, 299, 1, None, "tokenizers", "0.21"),
    shards=(
        ShardEntry("tokens-00000.bin", 12000, 6000, 0, 3, 0, "0" * 32),
        ShardEntry("tokens-00001.bin", 6000, 3000, 6000, 2, 3, "1" * 32),
    ),
    files={
        "boundaries.bin": FileEntry(8 * (6 + 3), "2" * 32),
        "inputs.jsonl": FileEntry(77, "3" * 32),
        "tokenizer.json": FileEntry(1234, "4" * 32),
    },
    options={"text_field": "téxt ☃", "eos": True, "endings": [".txt", None, -3]},
    counts={"documents": 5, "empty": 0},
    package_versions={"tokenstore": "0.1.0"},
)
BODY = json.loads(encode_manifest(MANIFEST))
