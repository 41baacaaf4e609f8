"""Split patterns of well-known rank files, with their special tokens: a rank file contains neither.

Each pattern is the one that the model was released with. Even an equivalent pattern would make a different tokenizer hash.
"""

from dataclasses import dataclass

_EOS = "<|endoftext|>"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LETTERS_FIRST = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_SIGNS_LAST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_LETTERS_FIRST}|\p{{N}}{{1,3}}|{_SIGNS_LAST}"
_QWEN2 = rf"{_LETTERS_FIRST}|\p{{N}}|{_SIGNS_LAST}"


@dataclass(frozen=True)
class Pattern:
    """A split regex.

    Attributes:
        regex: the regex.
        special_tokens: special tokens of each vocabulary that uses it, by the vocabulary's number of ranks.
        fast_name: the fast engine's name for it.
    """

    regex: str
    special_tokens: dict[int, dict[str, int]]
    fast_name: str


_GPT2_PATTERN = Pattern(_GPT2, {50256: {_EOS: 50256}, 50280: {_EOS: 50256}}, "gpt2")
PATTERNS = {
    "gpt2": _GPT2_PATTERN,
    "r50k_base": _GPT2_PATTERN,
    "p50k_base": _GPT2_PATTERN,
    "cl100k_base": Pattern(
        _CL100K,
        {
            100256: {
                _EOS: 100257,
                "<|fim_prefix|>": 100258,
                "<|fim_middle|>": 100259,
                "<|fim_suffix|>": 100260,
                "<|endofprompt|>": 100276,
            }
        },
        "gpt4",
    ),
    "o200k_base": Pattern(_O200K, {199998: {_EOS: 199999, "<|endofprompt|>": 200018}}, "o200k"),
    "llama3": Pattern(
        _LLAMA3,
        {
            128000: {
                "<|begin_of_text|>": 128000,
                "<|end_of_text|>": 128001,
                "<|start_header_id|>": 128006,
                "<|end_header_id|>": 128007,
                "<|eot_id|>": 128009,
            }
        },
        "gpt4",
    ),
    "qwen2": Pattern(_QWEN2, {151643: {_EOS: 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}}, "qwen2"),
}
