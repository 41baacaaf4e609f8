"""Small texts in several languages and scripts, written for these tests."""

TEXTS = [
    "A store holds documents, and a document holds tokens. The order of the documents is the order of the files.",
    "The model reads eight sequences at every step. When it is stopped, it goes on from the step it was stopped at.",
    "def add(left, right):\n    # two numbers in, one number out\n    return left + right\n\n\nprint(add(2, 40))\n",
    "Ein Speicher hält Dokumente, und jedes Dokument hält Wörter. Größe, Maß und Straße bleiben, wie sie sind.",
    "Le modèle lit la même phrase à chaque époque, mais jamais à la même place. C'était déjà l'été à Orléans.",
    "El año pasado llovió mucho; este año, ¿quién sabe? La señora Núñez mira el cielo y no dice nada.",
    "Каждый документ прочитан ровно один раз. Порядок зависит только от чисел, а не от машины.",
    "每一个文档都只读一次。顺序只取决于整数，与机器无关。模型在第十步停下，又从第十步继续。",
    "すべての文書は一度だけ読まれます。順番は整数だけで決まり、機械には関係ありません。",
    "كل مستند يُقرأ مرة واحدة فقط. الترتيب يعتمد على الأعداد وحدها.",
    "हर दस्तावेज़ ठीक एक बार पढ़ा जाता है। क्रम केवल पूर्णांकों पर निर्भर है।",
    "Σε κάθε βήμα το μοντέλο διαβάζει οκτώ ακολουθίες, ούτε μία λιγότερη.",
    "Emoji are letters too: 🦊🌲 and 👩‍👩‍👧 and 🇪🇺, and so are ligatures: ﬁ, œ, ǆ.",
    "tabs\tand  double  spaces, trailing space \nCRLF line\r\nline separator\u2028paragraph separator\u2029end",
    "numbers: 0 1 12 123 1234 3.14159 -17 1e-9 0xFF; signs: !?.,;:()[]{}<>+-*/=&%$#@^~|\\\"'`_",
    "the the the the the the the the and and and and of of of of a a a a",
]
