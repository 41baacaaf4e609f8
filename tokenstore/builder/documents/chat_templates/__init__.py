"""The built-in chat templates, all with generation marks.

Each writes a conversation byte for byte as its family's own template does, or refuses it, where the family's own would omit
something or the built-in one does not support it. Each was compared (`python -m tools.compare_templates`, with the
conversations of the tests) with:

    qwen3, llama3, gemma3, deepseek-v3     the family's own template and vocabulary, by text and by token
    qwen2.5, qwen3-2507, llama3.1, llama3.2, gemma, deepseek-r1, deepseek-v3.1, phi3, phi3.5, phi4, phi4-mini
                                           the family's own template, by text
    mistral-v1, mistral-v3, mistral-v3-tekken
                                           templates that axolotl ships, and the texts of mistral-common
    mistral-v7-tekken                      a template that axolotl ships

Not tested: Llama 3.3 (like llama3.1 except for its date), Gemma 2 (like gemma), Mistral's v2 (like v3). qwen*, llama3.1 and
llama3.2 write tools and tool calls, qwen3 writes reasoning; the other templates refuse conversations that have them.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
_CHATML_END, _LLAMA_END, _GEMMA_END, _MISTRAL_END = "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "[/INST]"
_DEEPSEEK_END, _PHI_END = "<｜end▁of▁sentence｜>", "<|end|>"

# By name: the file, a setting written before its text, and a string found in every template of the family ("": none).
_SOURCES = {
    "chatml": ("chatml", "", _CHATML_END),
    "plain": ("plain", "", ""),
    "alpaca": ("alpaca", "", ""),
    "qwen2.5": ("qwen", "version = '2.5'", _CHATML_END),
    "qwen3": ("qwen", "version = '3'", _CHATML_END),
    "qwen3-2507": ("qwen", "version = '2507'", _CHATML_END),
    "llama3": ("llama3", "", _LLAMA_END),
    "llama3.1": ("llama3.1", "date = '26 Jul 2024'", _LLAMA_END),
    "llama3.2": ("llama3.1", "date = strftime_now('%d %b %Y')", _LLAMA_END),
    "gemma": ("gemma", "version = '2'", _GEMMA_END),
    "gemma3": ("gemma", "version = '3'", _GEMMA_END),
    "mistral-v1": ("mistral", "version = 'v1'", _MISTRAL_END),
    "mistral-v3": ("mistral", "version = 'v3'", _MISTRAL_END),
    "mistral-v3-tekken": ("mistral", "version = 'v3-tekken'", _MISTRAL_END),
    "mistral-v7-tekken": ("mistral", "version = 'v7-tekken'", _MISTRAL_END),
    "deepseek-v3": ("deepseek", "version = 'v3'", _DEEPSEEK_END),
    "deepseek-r1": ("deepseek", "version = 'r1'", _DEEPSEEK_END),
    "deepseek-v3.1": ("deepseek", "version = 'v3.1'", _DEEPSEEK_END),
    "phi3": ("phi", "version = '3'", _PHI_END),
    "phi3.5": ("phi", "version = '3.5'", _PHI_END),
    "phi4": ("phi", "version = '4'", _CHATML_END),
    "phi4-mini": ("phi", "version = '4-mini'", _PHI_END),
}


def _text(file: str, setting: str) -> str:
    head = f"{{%- set {setting} -%}}\n" if setting else ""
    return head + (_FOLDER / f"{file}.jinja").read_text("utf-8")


BUILT_IN = {name: _text(file, setting) for name, (file, setting, _) in _SOURCES.items()}

# The special token that ends the turns, by name of the template. Not for Mistral, whose v1 writes plain text.
TURN_ENDS = {name: end for name, (_, _, end) in _SOURCES.items() if end not in ("", _MISTRAL_END)}


def may_be_like(text: str) -> list[str]:
    """Names of the built-in templates whose family another template may belong to, judged by its text."""
    return [name for name, (_, _, end) in _SOURCES.items() if end and end in text]
