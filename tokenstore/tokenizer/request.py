"""The arguments of `load_tokenizer` other than the file, and how the end-of-text token is found: the same for every kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenstore.errors import ConfigError
from tokenstore.outside import ANYWHERE

PLAIN, SPECIAL = "plain", "special"
# A hundred times the largest vocabulary. A file may name any id, and a table of this many takes 128 MB.
MOST_IDS = 1 << 24
# Real files have a thousand. tiktoken makes a regular expression of all their names, with 5 KB of memory for each; and of a
# tekken.json only their number is needed.
MOST_SPECIAL = 1 << 16

# Usual names of the end-of-text token; most files do not say which token it is.
_EOS_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<|eos|>", "[EOS]")


@dataclass(frozen=True)
class Request:
    """The arguments of `load_tokenizer` other than the file; documented there."""

    eos_token: str | None = None
    eos_id: int | None = None
    special_text: str = PLAIN
    pattern: str | None = None
    special_tokens: tuple[str, ...] = ()
    add_special_tokens: bool = False
    allow_links: Path | None = ANYWHERE
    listed: frozenset[str] | None = None

    def refuse(self, kind: str, *names: str) -> None:
        """ConfigError if one of the fields `names` was given although it does not apply to this kind of tokenizer."""
        for name in names:
            if value := getattr(self, name):
                raise ConfigError(
                    f"{name.replace('_', ' ')}: not valid for a {kind} tokenizer, found {value!r}; omit it"
                )

    def find_eos(
        self, path: Path, configured: str | None, specials: Sequence[str], id_of: Callable[[str], int | None]
    ) -> int | None:
        """Id of the end-of-text token: the requested one, else the configured one, else the only token with a usual name."""
        if self.eos_id is not None:
            return self.eos_id
        if self.eos_token is not None:
            if (requested := id_of(self.eos_token)) is None:
                listed = ", ".join(map(repr, specials[:20])) or "none"
                raise ConfigError(
                    f"eos token: expected a token of {path}, found {self.eos_token!r}; its special tokens: {listed}"
                )
            return requested
        if configured is not None and (found := id_of(configured)) is not None:
            return found
        known = [found for name in _EOS_NAMES if (found := id_of(name)) is not None]
        return known[0] if len(known) == 1 else None

    def eos_note(
        self,
        chosen: int | None,
        id_of: Callable[[str], int | None],
        token_of: Callable[[int], str | None],
        generation: Sequence[int],
    ) -> str:
        """A note for the user if a tokenizer's files suggest several end-of-text tokens and none was requested; otherwise "".

        Args:
            chosen: the id that `find_eos` returned.
            id_of: id of a token string, or None.
            token_of: token string of an id, or None.
            generation: ids at which generation_config.json makes a model stop.
        """
        if chosen is None or self.eos_id is not None or self.eos_token is not None:
            return ""
        others = [(name, i) for name in _EOS_NAMES if (i := id_of(name)) not in (None, chosen)]
        notes = [f"the vocabulary also has {name!r} ({i})" for name, i in others]
        named = [
            (name, i) for i in generation if (name := token_of(i)) is not None
        ]  # it may name an id that does not exist
        if named and chosen not in generation:
            others.insert(0, named[0])
            notes.append(f"generation_config.json names {named[0][0]!r} ({named[0][1]})")
        if not notes:
            return ""
        return (
            f"documents end with {token_of(chosen)!r} ({chosen}), the tokenizer's end of text; {', and '.join(notes)}:"
            f" choose with --eos, as in --eos {others[0][0]!r}"
        )
