"""The bytes tokenizer with special tokens in texts, as chat templates write them."""

import numpy as np
import pytest

from tokenstore.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    "text", ["", "a", "<|endoftext|>", "é<|endoftext|><|startoftext|>b<|endoftext|", "<|padding|>☃"]
)
def test_special_strings_become_special_ids_only_on_request(text: str) -> None:
    """Decoding gives the same text either way; spans cover every character once."""
    special = load_tokenizer("bytes", special_text="special")
    plain = load_tokenizer("bytes")
    assert plain.encode_batch([text])[0].tolist() == list(text.encode())
    ids, spans = special.encode_with_spans(text)
    assert special.encode_batch([text, text])[0].tolist() == [*ids, *ids]
    assert special.decode(ids) == text
    covered = np.zeros(len(text) + 1, int)
    for start, stop in np.unique(spans, axis=0):
        covered[start:stop] += 1
    assert covered[:-1].tolist() == [1] * len(text)
    numbers = {"<|endoftext|>": 256, "<|startoftext|>": 257, "<|padding|>": 258}
    assert sorted(i for i in ids.tolist() if i > 255) == sorted(
        number for name, number in numbers.items() for _ in range(text.count(name))
    )
