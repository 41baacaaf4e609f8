"""Texts, written for this purpose, on which the fast engine must agree with the reference before it is used at all.

They contain what engines were observed to encode differently: spaces and line ends of every kind in every position,
contractions, runs of digits and signs, capitals inside words, marks, ligatures and wide forms, joined emoji, long runs.
"""

from collections.abc import Sequence

_PROSE = (
    "The tokens of a text, one after the other: that's what we'll count, isn't it? I'd say they've DONE it; he'S sure.",
    "In 2024, 1234567 of 89 machines (roughly 3.14%) wrote  two   spaces ,  and $5,000.00 - or 0x1F, 1e-9 & more...",
    "Die Straße führt über größere Hügel; „Öl“ kostet 3,50 €. Où êtes-vous, façade? Mañana, señor Núñez! Łódź, İstanbul.",
    "Каждое утро в 7 часов он читает газету, а потом идёт на работу. Το πρωί διαβάζει την εφημερίδα του, έτσι δεν είναι;",
    "昨天下雨了，今天天气很好。図書館で本を三冊借りました。カタカナとひらがな。오늘은 날씨가 좋습니다. ＡＢＣ１２３",
    "हर सुबह वह अख़बार पढ़ता है। প্রতিদিন সকালে তিনি পড়েন। ทุกเช้าเขาอ่านหนังสือ เขา ١٢٣ 在",
    "يقرأ الجريدة كل صباح، ثم يذهب إلى العمل. בכל בוקר הוא קורא עיתון: שָׁלוֹם. دریای بزرگ ۱۲۳",
    "🦉 hoots 👩‍👩‍👧‍👦, 🏳️‍🌈 and 🇫🇷🇩🇪; 👍🏽👍 ❤️‍🔥 ☂︎ ✓ → ∑ ≠ ∞ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀𓀁 ½ ² Ⅷ ① ㎏ ﬁ ﬀ ǆ ǅ ſ",
    "e\u0301 a\u0308\u0323 n\u0303 o\u0302\u0301 \u0301x q\u0307\u0323 \u1112\u1161\u11ab A\u030a \u212b \u0344 ﬁ\u0368",
)
_CODE = (
    "def area(w: float, h: float) -> float:\n    # both in metres\n\tif w<0 or h<0:\n\t\traise ValueError(f'{w=} {h!r}')\n"
    "    return w*h\n\n\n\nclass Box(object):\n\n    N_MAX=10_000;__x__=None  \n",
    'for(int i=0;i<10;++i){sum+=a[i]->next;}//!!\r\n#include <stdio.h>\r\n\r\n  printf("%d\\n", x&&y||!z);\r\n',
    '<p class="a">x &amp; y</p>\n<!-- {{title}} -->\n{"key": [1, 2.5e3, null], "k2": "v\\u00e9"}\n| a | b |\n|---|---|\n',
    "camelCaseWord HTTPServerError snake_case_name SCREAMING_CASE iPhone15Pro v2.0.1-rc3 user@example.org /usr/lib64",
)
_SPACES = (
    *(
        "",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        " \n ",
        "   x",
        "x   ",
        "\nx\n",
        "\tx",
        " \t \n x",
        "x \n\n  y",
        "\x85x",
    ),
    *(
        f"{space}a{space}{space}b {space}c{space}"
        for space in "\n\r\t\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u2029\u3000"
    ),
    *(f"a{other}b {other} {other}{other}" for other in "\x00\x7f\xad\u200b\u200d\ufeff\ufe0f\u2581\ufffd\u0120"),
    *(f"{'x' * n}{' ' * n}y{chr(10) * n}1{'2' * n} {'=' * n}" for n in (2, 3, 4, 7, 8, 15, 16, 31, 64, 200)),
)
_JOINS = tuple(
    first + second
    for first in ("a", "1", " ", "'", ".", "\n", "é", "中", "\u0301", "🦉", "_", "A")
    for second in ("b", "2", "  ", "'s", "'S ", "!?", "\r\n", "ß", "文", "\u0308c", "🦊", "__", "Bc", "'ll", "'ſ")
)
_LONG = ("a" * 3000, "ab" * 1500, "1" * 3000, " " * 3000, "\n" * 3000, "é" * 1500, "中文" * 700, "!" * 3000)
_MOST_SPECIAL = 64


def self_test_texts(special: Sequence[str]) -> list[str]:
    """All test texts. `special` are the tokenizer's special tokens and other strings that it splits from the text around them."""
    some = special[:: len(special) // _MOST_SPECIAL + 1]
    apart = [f"a{token}b {token} {token}{token}\n{token[:-1]} {token[1:]}" for token in some]
    return [*_PROSE, *_CODE, *_SPACES, *_JOINS, *_LONG, *apart, "\n".join(_PROSE), "".join(_CODE)]
