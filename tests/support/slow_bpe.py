"""A byte-level BPE encoder of a few plain lines: the published cutting rules, then merges in order of rank.

It shares no code with the `tokenizers` library: the standard library's `re` cuts, with character classes
spelled out from `unicodedata`; merging is the textbook loop (Sennrich et al. 2016; byte alphabet: GPT-2).
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
EAST_ASIAN = "[\u0800-\u9fa5\uac00-\ud7ff]+"
WHOLE_WORDS_FIRST = ("llama-bpe", "tekken", "glm4", "minicpm5")
NORMALIZED = ("qwen2", "qwen35", "olmo", "command-r")
CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"


@lru_cache
def members(category: str) -> str:
    """All characters of a general category (such as "L" or "Lu"), as ranges for a character class."""
    codes = range(sys.maxunicode + 1)
    inside = [code for code in codes if unicodedata.category(chr(code)).startswith(category)]
    starts = [code for code, before in zip(inside, [-2, *inside], strict=False) if code != before + 1]
    ends = [code for code, after in zip(inside, [*inside[1:], -2], strict=True) if code != after - 1]
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in zip(starts, ends, strict=True))


@lru_cache
def rules(kind: str) -> tuple[re.Pattern[str], ...]:
    """What one word is, for a kind of pre-tokenizer: each rule cuts what the ones before left whole."""
    letter, digit, s = members("L"), members("N"), SPACE
    decimal, points = members("Nd"), members("P") + "$+<=>^|~"
    cased, deepseek = members("Lu") + members("Ll") + members("Lt"), "!-/:-~！-／：-～‘-‟\u3000-。"
    known: Mapping[str, Sequence[str]] = {
        "command-r": (f"[{digit}]", _gpt_2()),
        "deepseek-coder": (
            r"[\r\n]",
            f"[{s}]?[{letter}]+",
            f"[{s}]?[{members('P')}]+",
            EAST_ASIAN,
            f"[{digit}]",
        ),
        "deepseek-llm": (
            *(r"[\r\n]", f"[{s}]?[{cased}]+", f"[{s}]?[{deepseek}]+"),
            *(rf"[{s}]+\Z", EAST_ASIAN, f"[{digit}]+"),
        ),
        "default": (f"[{points}]+", _gpt_2(), f"[{digit}]+", "[0-9]{3}"),
        "falcon": (f"[{points}`]+", _gpt_2(), "[0-9]{3}"),
        "gpt-2": (_gpt_2(),),
        "gpt-4o": (_cased(kind),),
        "minicpm5": (f"[{digit}]{{1,3}}", _words("+")),
        "olmo": (_gpt_2(),),
        "qwen2": (_words(""),),
        "qwen35": (_words("", members("M")),),
        "seed-coder": (_words("", line_ends_apart=True),),
        "smollm": (f"[{digit}]", _gpt_2()),
        "superbpe": (f"[{digit}]+", f"(?=(?:[{decimal}]{{3}})+(?![{decimal}]))"),
        "tekken": (_cased(kind),),
        "viking": (rf" ?[^({s}|.,!?…。，、।۔،)]+", f"[{digit}]"),
    }
    return tuple(map(re.compile, known.get(kind, (_words("{1,3}"),))))


def _gpt_2() -> str:
    letter, digit, s = members("L"), members("N"), SPACE
    words = f"{CONTRACTION}| ?[{letter}]+| ?[{digit}]+| ?[^{s}{letter}{digit}]+"
    return f"{words}|[{s}]+(?![^{s}])|[{s}]+"


def _words(digits: str, marks: str = "", line_ends_apart: bool = False) -> str:
    """As cl100k and its kin have them: `digits` is how many go together, `marks` count as letters."""
    letter, digit, s = members("L"), members("N"), SPACE
    words = f"(?i:{CONTRACTION})|[^\r\n{letter}{digit}]?[{letter}{marks}]+|[{digit}]{digits}"
    inside, after = ("\r\n", "") if line_ends_apart else ("", "[\r\n]*")
    rest = f" ?[^{s}{letter}{marks}{digit}{inside}]+{after}"
    return f"{words}|{rest}|[{s}]*[\r\n]+|[{s}]+(?![^{s}])|[{s}]+"


def _cased(kind: str) -> str:
    """Words as o200k (and Tekken after it) has them: capitals, then small letters, marks among both."""
    letter, digit, s = members("L"), members("N"), SPACE
    either = members("Lm") + members("Lo") + members("M")
    upper, lower = f"[{members('Lu')}{members('Lt')}{either}]", f"[{members('Ll')}{either}]"
    before = f"[^\r\n{letter}{digit}]?"
    after, most = (f"(?i:{CONTRACTION})?", 3) if kind == "gpt-4o" else ("", 1)
    words = f"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}|[{digit}]{{1,{most}}}"
    return f"{words}| ?[^{s}{letter}{digit}]+[\r\n/]*|[{s}]*[\r\n]+|[{s}]+(?![^{s}])|[{s}]+"


def words_of(kind: str, text: str) -> list[str]:
    """Cut `text` into words."""
    pieces = [text]
    for rule in rules(kind):
        pieces = [word for piece in pieces for word in _cut(rule, piece)]
    return pieces


def _cut(rule: re.Pattern[str], piece: str) -> list[str]:
    """What the rule finds, and what lies between."""
    ends = {end for found in rule.finditer(piece) for end in found.span()} | {0, len(piece)}
    return [piece[start:end] for start, end in pairwise(sorted(ends))]


@lru_cache
def byte_alphabet() -> tuple[str, ...]:
    """The printable character that stands for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    codes = dict(zip(shown, shown, strict=True)) | {byte: 256 + i for i, byte in enumerate(hidden)}
    return tuple(chr(codes[byte]) for byte in range(256))


class SlowBpe:
    """Encode as a model's own tokenizer does; `whole` texts (special tokens) are never cut."""

    def __init__(
        self, kind: str, vocabulary: Mapping[str, int], merges: Iterable[Sequence[str]], whole: Iterable[str]
    ) -> None:
        self.kind, self.vocabulary = kind, vocabulary
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        self.whole = sorted(whole, key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; bytes that the vocabulary lacks vanish."""
        pieces = re.split("(" + "|".join(map(re.escape, self.whole)) + ")", text) if self.whole else [text]
        return [index for piece in pieces for index in self._piece(piece)]

    def _piece(self, piece: str) -> list[int]:
        if piece in self.whole:
            return [self.vocabulary[piece]]
        piece = unicodedata.normalize("NFC", piece) if self.kind in NORMALIZED else piece
        found = (self._word(word) for word in words_of(self.kind, piece))
        return [
            self.vocabulary[symbol] for symbols in found for symbol in symbols if symbol in self.vocabulary
        ]

    def _word(self, word: str) -> list[str]:
        spelled = "".join(byte_alphabet()[byte] for byte in word.encode())
        if self.kind in WHOLE_WORDS_FIRST and spelled in self.vocabulary:
            return [spelled]
        symbols = [symbol for symbol in spelled if symbol in self.vocabulary]
        while True:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(symbols)]
            if not pairs or min(pairs) == len(self.ranks):
                return symbols
            at = pairs.index(min(pairs))
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
