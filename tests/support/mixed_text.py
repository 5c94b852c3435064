"""Text of every sort, to compare tokenizers on."""

import random
from pathlib import Path

MIXED = (
    "def add(a: int) -> int:\n    return a + b  # O(1)\n\n\nclass A:\n\tx = {'k': [1, 22, 333, 4444]}\n",
    "for(int i=0;i<n;++i){ s[i]^=0xFF; }\r\n#include <stdio.h>\r\n\r\n",
    "中文字符测试,日本語のテキスト、한국어 텍스트。ไทย हिन्दी العربية עברית Ελληνικά нещо",
    "👩‍👩‍👧‍👦 🏳️‍🌈😀😃 🇨🇳🇺🇸 ✌🏽 ½ ² Ⅷ ٣ ५ 𝟘 12,345.67 1234567890 3.14e-10",
    "   \t\t \n\n \r\n\r\n  \u3000\u00a0\u2003 x  \n   y \n",
    "I'M sure you'LL say it's WE'RE don't 'tis 'S 'ſ’s o'clock" + "'Sap".join("uvwxyzUVWXYZ"),
    "e\u0301 n\u0303 \u1100\u1161 \u212b \ufb01 ǅ Å x\u0338",
    "\x00\x01\x02\x7f\x1b[0m\x85\u2028\ufeff\ufffd\U0010ffff",
    "a<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_start|><|im_start",
    "a" * 70 + " " * 40 + "\n" * 9 + "\t" * 17 + "!!!!!!" + "x=" * 9,
    "",
)

_ALPHABET = [
    *"abcXYZ'sStTrRe 019\n\r\t.,;!?(){}<>|/\\\"#@é",
    "\u0301",
    "中",
    "🙂",
    "\u00a0",
    "\u3000",
    "ß",
    "İ",
    "ſ",
]
_ALPHABET += ["\x1c", "\x00", "½", "٣", "ʰ", "̈", "ा", "’", " ", " ", "\n"]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Short texts of characters that pre-tokenizers treat differently."""
    chance = random.Random(seed)
    return ["".join(chance.choices(_ALPHABET, k=chance.randint(1, 40))) for _ in range(count)]


def own_sources() -> list[str]:
    """A few files of this project."""
    here = Path(__file__)
    return [path.read_text(encoding="utf-8") for path in sorted(here.parent.glob("*.py"))[:3]]
