"""Kinds of characters. They decide which texts two engines may encode differently, and which texts are checked.

Engines use tables of different Unicode versions. So only characters that all of them know are trusted: those assigned in Unicode
14, whatever version the running Python has.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np

ASCII, FEW_LETTERS, LATIN, GREEK_CYRILLIC, CJK, INDIC_ARABIC, OTHER, UNTRUSTED = range(8)

# The first character of each range of one kind.
_STRETCHES = (
    (0x0, ASCII),
    (0x80, LATIN),
    (0x370, GREEK_CYRILLIC),
    (0x590, INDIC_ARABIC),
    (0x1E00, LATIN),
    (0x1F00, GREEK_CYRILLIC),
    (0x2000, LATIN),
    (0x2600, OTHER),
    (0x2E80, CJK),
    (0xA4D0, OTHER),
    (0xAC00, CJK),
    (0xD800, OTHER),
    (0xF900, CJK),
    (0xFB00, INDIC_ARABIC),
    (0xFE00, OTHER),
    (0xFF00, CJK),
    (0x10000, OTHER),
    (0x20000, CJK),
    (0x40000, OTHER),
)
# Lengths, in base 36, of alternating runs of assigned and unassigned characters, from 0; above 0x10000 without runs below 8.
_ASSIGNED = (
    "oo 2 6 4 7 1 1 1 k 1 b1 1 12 2 1e 2 3 1 1j 8 r 4 6 b 7i 1 1o 2 2t e 1n 2 1d 2 f 1 s 2 1 1 b 5 v 1 2 6 6k 1 8 2 "
    "2 2 m 1 7 1 1 3 4 2 9 2 2 2 4 8 1 4 2 1 5 2 p 2 3 1 6 4 2 2 m 1 7 1 2 1 2 1 2 2 1 1 5 4 2 2 3 3 1 7 4 1 1 7 h a "
    "3 1 9 1 3 1 m 1 7 1 2 1 5 2 a 1 3 1 3 2 1 f 4 2 c 7 7 1 3 1 8 2 2 2 m 1 7 1 2 1 5 2 9 2 2 2 3 7 3 4 2 1 5 2 i a "
    "2 1 6 3 3 1 4 3 2 1 1 1 2 3 2 3 3 3 c 4 5 3 3 1 4 2 1 6 1 e l 5 d 1 3 1 n 1 g 2 9 1 3 1 4 7 2 1 3 2 1 2 4 2 a 7 "
    "m 1 3 1 n 1 a 1 5 2 9 1 3 1 4 7 2 6 2 1 4 2 a 1 2 d d 1 3 1 1f 1 3 1 6 4 g 2 q 1 3 1 i 3 o 1 9 1 1 2 7 3 1 4 6 "
    "1 1 1 8 6 a 2 3 c 1m 4 t 11 2 1 1 1 5 1 o 1 1 1 n 2 5 1 1 1 6 2 a 2 4 w 20 1 10 4 13 1 10 1 f 1 d 11 5i 1 1 5 1 "
    "2 ah 1 4 2 7 1 1 1 4 2 15 1 4 2 x 1 4 2 7 1 1 1 4 2 f 1 1l 1 4 2 1v 2 w 3 q 6 2e 2 6 2 il 3 2h 7 m 9 o 9 k c d "
    "1 3 1 2 c 2m 2 a 6 a 6 q 6 2h 7 17 5 1y a v 1 c 4 c 4 1 3 16 2 5 b 18 4 q 6 b 3 1q 2 1t 1 t 2 b 6 a 6 e 2 v 1d "
    "25 3 1b 1 38 8 1o 3 f 3 1o 7 17 2 b 8 17 5 eu 2 6 2 12 2 6 2 8 1 1 1 1 1 1 1 v 2 1h 1 f 1 e 2 6 1 j 2 3 1 9 1 "
    "2t 1 c 2 r 1 d 3 x f x f 3w 4 if p b l 1ec 2 w 1 9p 5 19 1 1 5 1 2 1k 7 2 e o 9 7 1 7 1 7 1 7 1 7 1 7 1 7 1 7 1 "
    "3i y q 1 2h c 5y q c 4 1s 1 2e 2 2v 5 17 1 2m 1 2c c 1b 1 mlp 3 1j 9 9o k 54 8 5n 5 2 1 1 1 5 o 1n 3 a 6 1k 8 "
    "1y 8 c 6 38 b u 3 26 1 b 4 x 1 1j 9 e 2 a 2 2v o s a 6 2 6 2 6 9 7 1 7 1 1o 4 3i 2 a 6 8mc c n 4 1d 6is a6 2 2y "
    "12 7 c 5 5 q 1 5 1 1 1 2 1 2 1 3h g cd 2 1i 7 1 w 16 6 1f 1 j 1 4 4 5 1 3r 2 1 1 5a 3 6 2 6 2 6 2 3 3 7 1 7 a 5 "
    "2 c 1 q 1 j 4 f 2 e y 3f c 19 3 2g 1 d 1f 1a 3m t 3 1d f s 4 10 9 u 5 17 5 u 1 11 4 e 16 4e 2 a 6 10 4 10 4 14 "
    "8 1g b c 1 f c b 1 f 26 8n 9 m a 8 v 16 1 9 27 18 9 n 1 20 8 9 1c j 8 x 3 r 1y 1k 4 k 2 1e 8 8 5 t 9 a 7 9 7 1s "
    "w 13 4 c 9 1i 3 t 2 r 5 q 32 21 1j 1f d 1f 7 1a 8 a 86 v 1 16 2e 14 8 16 m q 12 s k n 9 26 4 10 9 1w d p 7 a 6 "
    "1h 1 i 8 13 9 2o 1 k b i 1 18 28 f 1 b 6 1n 5 a b 8 6 m i a 57 2k 10 20 8 a 4m 1i 2 12 y 1x b a 6 d j 1m 6 a 1i "
    "r 2 f 4 n 55 1o 2s 2b c 8 5 8 4 u 5 c 9 a 1y 8 2 1a 2 b r 20 8 2b d 21 7b 9 1 19 1 e a t 3 w 2 m 1 e 2c 18 8 9 "
    "8 a g 11 h a 8m p 5j 1e d pn 2u 33 h 5g 218 2r d tr 1 9 347 g7 6nt ft 7 v 1 a 4 29 1 a 6 u i 1y a a 9 l 5 j j4 "
    "2j 2t 23 4 1l 7 h 2o 4qg 8 ye 16 9 6wn 83 25 b0 1s4 2z 5 d 3 9 7 a 2 8 3mk 1a 2 n 9 38 1o 6u a 13 2 5e l 1y 4a "
    "k c 2f 9 p 3r 2d 1 1z h c b 1t 7 8 9 s o 9g 2 84 2 ji l f uo v 6h h 6f 19 3 e 2 a 92 v h 1m za f 1 5h 2 g 15 24 "
    "4 a lz 1w 24 1p 5j r 9 a 25 a 1 h f h 90 18 4 2s c f 2 f 1 f 1 11 a 4u 1k t d 18 4 9 53 rc 5 g 3 d 3 38 c 2h 7 "
    "c k c 4 1k 8 a 6 14 8 u 2a 9g c e y t 3 b l a 6 8 o 43 1 1j 11 a sm wyo w 37d 7 66 2 4g2 e 5rl 2e7 f2 15u 3t7 "
    "fcgl 2o 3k 6o 47bk"
)
_NUM_CHARACTERS = 0x110000
_ALL_ASCII = bytes(range(128))
_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_EXCERPT = 64
_LONGEST, _PIECE = 4096, 1024  # characters; of a longer text only a piece is checked


def kinds_of(encoded: Sequence[bytes], table: np.ndarray) -> np.ndarray:
    """Kind of each text, uint8[len(encoded)]: the largest kind of its characters in `table`, uint8[0x110000].

    `encoded` is UTF-8, which may hold surrogates. Only characters beyond ASCII are looked up: few even in texts that have them.
    """
    kinds = np.zeros(len(encoded), np.uint8)
    wide = []
    for i, text in enumerate(encoded):
        if not text.isascii():
            wide.append(i)
            continue
        excerpt = text[:_EXCERPT]
        kinds[i] = FEW_LETTERS if 2 * len(excerpt.translate(None, _LETTERS)) > len(excerpt) else ASCII
    if wide:
        beyond = [encoded[i].translate(None, _ALL_ASCII).decode("utf-8", "surrogatepass") for i in wide]
        characters = np.frombuffer("".join(beyond).encode("utf-32-le", "surrogatepass"), "<u4")
        lengths = np.fromiter(map(len, beyond), np.int64, len(beyond))
        kinds[wide] = np.maximum.reduceat(table[characters], np.cumsum(lengths) - lengths)
    return kinds


@cache
def kind_table(nfc: bool) -> np.ndarray:
    """The kind of every character: uint8[0x110000]. With `nfc`, characters that NFC may change or reorder are untrusted too."""
    starts = [start for start, _ in _STRETCHES] + [_NUM_CHARACTERS]
    table = np.repeat(np.array([kind for _, kind in _STRETCHES], np.uint8), np.diff(starts))
    runs = np.array([int(run, 36) for run in _ASSIGNED.split()])
    known = np.repeat(np.arange(runs.size) % 2 == 0, runs)
    table[: known.size][~known] = UNTRUSTED
    table[known.size :] = UNTRUSTED
    if nfc:
        table[_changed_by_nfc(np.flatnonzero(table != UNTRUSTED))] = UNTRUSTED
    return table


def _changed_by_nfc(characters: np.ndarray) -> list[int]:
    """Characters that NFC replaces, joins to the previous character, or reorders with neighbouring marks."""
    joining = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # vowels and finals of Hangul
    changed = []
    for code in characters.tolist():
        character = chr(code)
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            joining.add(int(parts[1], 16))
        if unicodedata.combining(character) or unicodedata.normalize("NFC", character) != character:
            changed.append(code)
    return sorted(joining.union(changed))


def choose_sample(texts: Sequence[str], kinds: np.ndarray, due: int, turn: int) -> tuple[list[int], list[str]]:
    """Choose texts to check; deterministic.

    Args:
        texts: a batch.
        kinds: uint8[len(texts)], as returned by `kinds_of`.
        due: about as many characters are checked, and at least one text of every kind; negative if earlier batches had more.
        turn: number of the batch.

    Returns:
        Indices of texts to check completely, and pieces of texts that are too long for that.
    """
    whole: list[int] = []
    pieces: list[str] = []
    queues = [_in_turn(np.flatnonzero(kinds == kind), texts, turn, due > 0) for kind in np.unique(kinds)]
    while queues:
        for i in [queue.pop() for queue in queues]:
            text = texts[i] if len(texts[i]) <= _LONGEST else _piece(texts[i], turn)
            due -= len(text)
            if text is texts[i]:
                whole.append(i)
            else:
                pieces.append(text)
        queues = [queue for queue in queues if queue and due > 0]
    return whole, pieces


def _in_turn(numbers: np.ndarray, texts: Sequence[str], turn: int, with_extremes: bool) -> list[int]:
    """Indices of texts of one kind, to be popped from the end: by turn, after the longest checked whole and the shortest."""
    order = np.roll(np.arange(numbers.size), -17 * turn)[:256].tolist()
    if with_extremes:
        lengths = np.fromiter((len(texts[i]) for i in numbers), np.int64, numbers.size)
        order = [int(np.where(lengths <= _LONGEST, lengths, 0).argmax()), int(lengths.argmin()), *order]
    chosen: list[int] = numbers[list(dict.fromkeys(order))].tolist()
    return chosen[::-1]


def _piece(text: str, turn: int) -> str:
    start = turn * 7919 * _PIECE % (len(text) - _PIECE + 1)
    return text[start : start + _PIECE]
