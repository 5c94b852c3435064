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
SINGLE_DIGITS = ("smollm", "refact")
CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"


@lru_cache
def members(category: str) -> str:
    """All characters of a general category (such as "L" or "Lu"), as ranges for a character class."""
    codes = range(sys.maxunicode + 1)
    inside = [code for code in codes if unicodedata.category(chr(code)).startswith(category)]
    starts = [code for code, before in zip(inside, [-2, *inside], strict=False) if code != before + 1]
    ends = [code for code, after in zip(inside, [*inside[1:], -2], strict=True) if code != after - 1]
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))


@lru_cache
def rule(kind: str) -> re.Pattern[str]:
    """What one word is, for a kind of pre-tokenizer."""
    letter, digit, s = members("L"), members("N"), SPACE
    if kind in ("gpt-2", *SINGLE_DIGITS):
        words = f"{CONTRACTION}| ?[{letter}]+| ?[{digit}]+| ?[^{s}{letter}{digit}]+"
        return re.compile(f"{words}|[{s}]+(?![^{s}])|[{s}]+")
    if kind in ("gpt-4o", "tekken"):
        return re.compile(_cased(kind))
    most = 3 if kind in ("llama-bpe", "dbrx", "smaug-bpe") else 1
    words = f"(?i:{CONTRACTION})|[^\r\n{letter}{digit}]?[{letter}]+|[{digit}]{{1,{most}}}"
    rest = f" ?[^{s}{letter}{digit}]+[\r\n]*|[{s}]*[\r\n]+|[{s}]+(?![^{s}])|[{s}]+"
    return re.compile(f"{words}|{rest}")


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
    pieces = re.split(f"([{members('N')}])", text) if kind in SINGLE_DIGITS else [text]
    return [word for piece in pieces for word in rule(kind).findall(piece)]


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
        piece = unicodedata.normalize("NFC", piece) if self.kind == "qwen2" else piece
        found = (self._word(word) for word in words_of(self.kind, piece))
        return [
            self.vocabulary[symbol] for symbols in found for symbol in symbols if symbol in self.vocabulary
        ]

    def _word(self, word: str) -> list[str]:
        spelled = "".join(byte_alphabet()[byte] for byte in word.encode())
        if self.kind in ("llama-bpe", "tekken") and spelled in self.vocabulary:
            return [spelled]
        symbols = [symbol for symbol in spelled if symbol in self.vocabulary]
        while True:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(symbols)]
            if not pairs or min(pairs) == len(self.ranks):
                return symbols
            at = pairs.index(min(pairs))
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
