"""The built-in chat templates, all with generation marks.

Each writes conversations byte for byte as its family's own template does, or refuses what that one would omit or this one
does not write. What each was compared with (`python -m tools.compare_templates`, the conversations of the tests):

    qwen3, llama3, gemma3, deepseek-v3     the family's own template and vocabulary, by text and by token
    qwen2.5, qwen3-2507, llama3.1, llama3.2, gemma, deepseek-r1, deepseek-v3.1, phi3, phi3.5, phi4, phi4-mini
                                           the family's own template, by text
    mistral-v1, mistral-v3, mistral-v3-tekken
                                           templates that axolotl ships, and the texts of mistral-common
    mistral-v7-tekken                      a template that axolotl ships

Not tested: Llama 3.3 (as llama3.1 but for its date), Gemma 2 (as gemma), Mistral's v2 (as v3). Tools and tool calls are
written by qwen*, llama3.1 and llama3.2, reasoning by qwen3; the other templates refuse conversations that have them.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
_CHATML_END, _LLAMA_END, _GEMMA_END, _MISTRAL_END = "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "[/INST]"
_DEEPSEEK_END, _PHI_END = "<｜end▁of▁sentence｜>", "<|end|>"

# By name: the file, what is put before its text, and a string that any template of the family holds ("": none has it).
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

# By name, for templates whose turns end with a special token of the family: that token. Mistral's are text in v1.
TURN_ENDS = {name: end for name, (_, _, end) in _SOURCES.items() if end not in ("", _MISTRAL_END)}


def may_be_like(text: str) -> list[str]:
    """Names of the built-in templates that another template, by its text, may be of the same family as."""
    return [name for name, (_, _, end) in _SOURCES.items() if end and end in text]
