"""A tokenizer's decoder as a chain that takes tokens one by one and returns the text that no later token can change.

`tokenizers` decodes whole sequences only. To decode a window of the last tokens again for each new one, as others do,
is not exact: a later byte token makes a whole run of earlier ones broken, a suffix that ends a word is only a space
if another word follows, and the first token is decoded differently from the others. (On random tokens of a Llama
tokenizer, such a window gives another text in a quarter of all cases.) So each link here does what the library's
decoder of that name does, and holds back only what is still open: half a character, bytes that may turn out broken, a
space that the end would drop. A decoder that cannot be split like this (a regular expression over the whole text)
waits for the end. Decoders that map each token by itself are the library's own.
"""

import codecs
import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

Spec = Mapping[str, Any]
"""A decoder as tokenizer.json describes it."""

BROKEN = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile(r"<0x(\+?[0-9a-fA-F]{1,2})>")
_EACH = {"Replace", "Strip", "Metaspace", "WordPiece", "Fuse"}


class Chain:
    """The decoder that `specs` describe, for tokens that come one by one."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._links = _links(specs)

    def feed(self, tokens: Iterable[str]) -> str:
        """The text that is final once `tokens` have come."""
        passed = list(tokens)
        for link in self._links:
            passed = link.feed(passed)
        return "".join(passed)

    def rest(self) -> str:
        """What is held back, as it reads if nothing more comes; the chain may still be fed."""
        passed: list[str] = []
        for link in map(copy.copy, self._links):
            passed = [*link.feed(passed), *link.end()]
        return "".join(passed)


class _Link(Protocol):
    """One decoder of the chain; copy.copy() copies its state."""

    def feed(self, tokens: list[str]) -> list[str]:
        """What is final once `tokens` have come."""
        ...

    def end(self) -> list[str]:
        """What was held back, if nothing more comes."""
        return []


def _links(specs: Sequence[Spec]) -> list[_Link]:
    """The chain's links; from the first decoder that needs the whole text on, the library does everything."""
    links: list[_Link] = [] if specs else [_Each(str, " {}".format)]
    fused = False
    for index, spec in enumerate(specs):
        last = index == len(specs) - 1
        link = _over_text(spec) if fused else _over_tokens(spec, last)
        if link is None:
            return [*links, _Whole(specs[index:], fused)]
        links.append(link)
        fused = fused or spec["type"] in ("Fuse", "ByteLevel")
    return links


def _over_tokens(spec: Spec, last: bool) -> _Link | None:
    """A link for whole tokens; None if it needs all of them."""
    kind = spec["type"]
    if kind in _EACH:
        return _Each(*_mapping(json.dumps(spec)))
    if kind == "BPEDecoder":
        return _WordEnds(spec["suffix"]) if last and spec["suffix"] else None
    if kind == "ByteFallback":
        return _Bytes()
    return _Utf8() if kind == "ByteLevel" else None


def _over_text(spec: Spec) -> _Link | None:
    """A link for pieces of one long token; None if it needs all of it."""
    if spec["type"] == "Fuse":
        return _Each(str, str)
    if spec["type"] == "Strip":
        return _Trimmed(spec)
    pattern = spec["pattern"].get("String") if spec["type"] == "Replace" else None
    return _Substituted(pattern, spec["content"]) if pattern else None


def _library(specs: Sequence[Spec]) -> Any:
    from tokenizers import decoders

    decoder = decoders.Fuse()
    decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": list(specs)}).encode())
    return decoder


@lru_cache(maxsize=32)
def _mapping(spec: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """What a decoder that maps each token by itself makes of the first token, and of any other."""
    decode = _library([json.loads(spec)]).decode
    before = len(decode(["a"]))
    return lambda token: decode([token]), lru_cache(maxsize=1 << 16)(
        lambda token: decode(["a", token])[before:]
    )


def spelled_bytes(specs: Sequence[Spec], token: str) -> bytes:
    """What a token adds in the middle of a text; steps that need more than the token are left out."""
    fused = False
    for spec in specs:
        kind = spec["type"]
        if kind == "ByteLevel":
            return _bytes_of(token)
        if kind == "ByteFallback" and len(token) == 6 and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        fused = fused or kind == "Fuse"
        if kind in _EACH and not (fused and kind == "Strip"):
            token = _mapping(json.dumps(spec))[1](token)
    return token.encode()


class _Each(_Link):
    """Maps each token by itself; only the first may be mapped differently."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._next, self._later = first, later

    def feed(self, tokens: list[str]) -> list[str]:
        if not tokens:
            return []
        first, self._next = self._next(tokens[0]), self._later
        return [first, *map(self._later, tokens[1:])]


class _WordEnds(_Link):
    """BPEDecoder: a suffix that ends a word becomes a space, except at the end of the text."""

    def __init__(self, suffix: str) -> None:
        self._suffix, self._held = suffix, ""

    def feed(self, tokens: list[str]) -> list[str]:
        given: list[str] = []
        for token in tokens:
            given.append(self._held.replace(self._suffix, " "))
            at = token.find(self._suffix)
            given.append(token if at < 0 else token[:at])
            self._held = "" if at < 0 else token[at:]
        return given

    def end(self) -> list[str]:
        return [self._held.replace(self._suffix, "")]


class _Bytes(_Link):
    """ByteFallback: a run of byte tokens such as <0xE2> is text if all of it is UTF-8, else � for each."""

    def __init__(self) -> None:
        self._run, self._open, self._broken = b"", b"", False

    def feed(self, tokens: list[str]) -> list[str]:
        given: list[str] = []
        for token in tokens:
            byte = _BYTE.fullmatch(token) if len(token) == 6 else None
            if byte:
                given += self._add(bytes([int(byte[1], 16)]))
            else:
                given += [*self.end(), token]
                self._run, self._open, self._broken = b"", b"", False
        return given

    def end(self) -> list[str]:
        if self._open:
            return [BROKEN] * len(self._run)
        return [self._run.decode()] if self._run else []

    def _add(self, byte: bytes) -> list[str]:
        if self._broken:
            return [BROKEN]
        self._run += byte
        try:
            read = codecs.utf_8_decode(self._open + byte, "strict", False)[1]
        except UnicodeDecodeError:
            count = len(self._run)
            self._run, self._open, self._broken = b"", b"", True
            return [BROKEN] * count
        self._open = (self._open + byte)[read:]
        return []


class _Utf8(_Link):
    """ByteLevel: characters that stand for bytes (GPT-2's alphabet), decoded as UTF-8 across tokens."""

    def __init__(self) -> None:
        self._open = b""

    def feed(self, tokens: list[str]) -> list[str]:
        data = self._open + b"".join(map(_bytes_of, tokens))
        text, read = codecs.utf_8_decode(data, "replace", False)
        self._open = data[read:]
        return [text]

    def end(self) -> list[str]:
        return [self._open.decode(errors="replace")]


class _Trimmed(_Link):
    """Strip: removes up to so many of a character from both ends of the whole text; what is held, the end loses."""

    def __init__(self, spec: Spec) -> None:
        self._character, self._start, self._stop = spec["content"], spec["start"], spec["stop"]
        self._held = ""

    def feed(self, tokens: list[str]) -> list[str]:
        text = "".join(tokens)
        cut = _run(text, self._character, self._start)
        self._start = self._start - cut if cut == len(text) else 0
        text = self._held + text[cut:]
        kept = len(text) - _run(text[::-1], self._character, self._stop)
        self._held = text[kept:]
        return [text[:kept]]


class _Substituted(_Link):
    """Replace: a string in the whole text."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern, self._content, self._held = pattern, content, ""

    def feed(self, tokens: list[str]) -> list[str]:
        *before, last = (self._held + "".join(tokens)).split(self._pattern)
        kept = len(last) - overlap(last, self._pattern)
        self._held = last[kept:]
        return [self._content.join([*before, last[:kept]])]

    def end(self) -> list[str]:
        return [self._held]


class _Whole(_Link):
    """What only the library can decode, and only as a whole."""

    def __init__(self, specs: Sequence[Spec], fused: bool) -> None:
        self._decoder, self._fused = _library(specs), fused
        self._held: list[str] = []

    def feed(self, tokens: list[str]) -> list[str]:
        self._held = [*self._held, *tokens]
        return []

    def end(self) -> list[str]:
        return [self._decoder.decode(["".join(self._held)] if self._fused else self._held)]


def _alphabet() -> dict[str, int]:
    """GPT-2's characters for the 256 bytes: printable ones stand for themselves, the others are moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_ALPHABET = _alphabet()


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(map(_ALPHABET.__getitem__, token))
    except KeyError:  # an added token's own text
        return token.encode()


def _run(text: str, character: str, most: int) -> int:
    """How many times `character` is repeated at the beginning of `text`, up to `most`."""
    return len(text[:most]) - len(text[:most].lstrip(character))


def overlap(text: str, pattern: str) -> int:
    """Length of the longest end of `text` that is a beginning of `pattern`, shorter than it."""
    sizes = range(min(len(pattern) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(pattern[:size])), 0)
