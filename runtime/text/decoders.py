"""A tokenizer's decoder, as a chain that takes tokens one by one and gives what no later token can change.

`tokenizers` decodes whole sequences only. Each link does what the library's decoder of that name does to the whole, and
holds back just what is still open: half a character, bytes that may turn out broken, a space that the end would drop.
A decoder that can't be cut up so (a regular expression over the whole text) waits for the end.
"""

import codecs
import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

Spec = Mapping[str, Any]
"""A decoder as tokenizer.json describes it."""

BROKEN = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile(r"<0x(\+?[0-9a-fA-F]{1,2})>")
_CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class Link(Protocol):
    """One decoder of the chain; its state may be copied with copy.copy()."""

    def feed(self, tokens: list[str]) -> list[str]:
        """What is settled once `tokens` have come."""
        ...

    def end(self) -> list[str]:
        """What was held back, if nothing comes any more."""
        ...


class Chain:
    """The decoder described by `specs`, for tokens that come bit by bit."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._links = _links(specs)

    def feed(self, tokens: Iterable[str]) -> str:
        """The text that is settled once `tokens` have come."""
        passed = list(tokens)
        for link in self._links:
            passed = link.feed(passed)
        return "".join(passed)

    def rest(self) -> str:
        """What is held back, as it reads if nothing comes any more; the chain may still go on."""
        passed: list[str] = []
        for link in map(copy.copy, self._links):
            passed = [*link.feed(passed), *link.end()]
        return "".join(passed)


def _links(specs: Sequence[Spec]) -> list[Link]:
    """The chain's links; from the first decoder that needs the whole on, all are left to the library."""
    links: list[Link] = [] if specs else [_Spaced()]
    fused = False
    for place, spec in enumerate(specs):
        last = place == len(specs) - 1
        link = _over_text(spec) if fused else _over_tokens(spec, last)
        if link is None:
            return [*links, _Whole(specs[place:], fused)]
        links.append(link)
        fused = fused or spec["type"] in ("Fuse", "ByteLevel")
    return links


def _over_tokens(spec: Spec, last: bool) -> Link | None:
    """A link that gets whole tokens; None if it can't be done bit by bit."""
    kind = spec["type"]
    if kind == "BPEDecoder":
        return _WordEnds(spec["suffix"]) if last and spec["suffix"] else None
    made: dict[str, type[_Each | _Bytes | _Utf8]] = {
        "Replace": _Replaced,
        "Strip": _Stripped,
        "Metaspace": _Metaspace,
        "WordPiece": _WordPiece,
        "CTC": _Ctc,
        "Fuse": _Each,
        "ByteFallback": _Bytes,
        "ByteLevel": _Utf8,
    }
    return made[kind](spec) if kind in made else None


def _over_text(spec: Spec) -> Link | None:
    """A link that gets pieces of one long token; None if it can't be done bit by bit."""
    kind = spec["type"]
    if kind == "Fuse":
        return _Each(spec)
    if kind == "Strip":
        return _Trimmed(spec)
    pattern = spec["pattern"].get("String") if kind == "Replace" else None
    return _Substituted(pattern, spec["content"]) if pattern else None


def _library(specs: Sequence[Spec]) -> Any:
    from tokenizers import decoders

    made = decoders.Fuse()
    made.__setstate__(json.dumps({"type": "Sequence", "decoders": list(specs)}).encode())
    return made


class _Each:
    """Every token becomes another one, whatever the others are; only its being the first may count."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self._begun = spec, False

    def feed(self, tokens: list[str]) -> list[str]:
        """Each token's reading."""
        if self._begun or not tokens:
            return list(map(self.later, tokens))
        self._begun = True
        return [self.first(tokens[0]), *map(self.later, tokens[1:])]

    def end(self) -> list[str]:
        """Nothing is ever held."""
        return []

    def first(self, token: str) -> str:
        """What `token` becomes in the first place."""
        return self.later(token)

    def later(self, token: str) -> str:
        """What `token` becomes anywhere else."""
        return token


class _Spaced(_Each):
    """No decoder at all: tokens with spaces between them."""

    def __init__(self) -> None:
        super().__init__({})

    def first(self, token: str) -> str:
        return token

    def later(self, token: str) -> str:
        return f" {token}"


class _Replaced(_Each):
    """A string replaced inside each token, or a pattern, in the library's own dialect."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._text = spec["pattern"].get("String")
        self._pattern = None if self._text is not None else _library([spec])

    def later(self, token: str) -> str:
        if self._pattern is None:
            return token.replace(self._text, self.spec["content"])
        return self._pattern.decode([token])


class _Stripped(_Each):
    """Up to so many of a character taken from both ends of each token."""

    def later(self, token: str) -> str:
        token = token[_run(token, self.spec["content"], self.spec["start"]) :]
        return token[: len(token) - _run(token[::-1], self.spec["content"], self.spec["stop"])]


class _Metaspace(_Each):
    """SentencePiece's ▁ is a space, but for the one that was put before the text."""

    def first(self, token: str) -> str:
        kept = self.spec.get("prepend_scheme", "always") == "never"
        return token.replace(self.spec["replacement"], " " if kept else "")

    def later(self, token: str) -> str:
        return token.replace(self.spec["replacement"], " ")


class _WordPiece(_Each):
    """Tokens are words, or go on with one."""

    def first(self, token: str) -> str:
        return _cleaned(token) if self.spec["cleanup"] else token

    def later(self, token: str) -> str:
        goes_on = token.startswith(self.spec["prefix"])
        return self.first(token.removeprefix(self.spec["prefix"]) if goes_on else f" {token}")


class _Ctc(_Each):
    """A token said twice counts once, padding not at all."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._said: str | None = None

    def feed(self, tokens: list[str]) -> list[str]:
        """The readings of those that say something new."""
        heard = [self._said, *tokens]
        self._said = heard[-1]
        said = (token for last, token in pairwise(heard) if token is not None and token != last)
        return [text for token in said if (text := self.later(token))]

    def later(self, token: str) -> str:
        token = token.replace(self.spec["pad_token"], "")
        if not self.spec["cleanup"]:
            return token
        return _cleaned(token).replace(self.spec["word_delimiter_token"], " ")


class _WordEnds:
    """A suffix that ends a word is a space, unless it ends the text."""

    def __init__(self, suffix: str) -> None:
        self._suffix, self._held = suffix, ""

    def feed(self, tokens: list[str]) -> list[str]:
        """All tokens but for the last one's suffix."""
        given: list[str] = []
        for token in tokens:
            given.append(self._held.replace(self._suffix, " "))
            at = token.find(self._suffix)
            given.append(token if at < 0 else token[:at])
            self._held = "" if at < 0 else token[at:]
        return given

    def end(self) -> list[str]:
        """The last token without its suffix."""
        return [self._held.replace(self._suffix, "")]


class _Bytes:
    """Runs of byte tokens such as <0xE2>: a text if they are UTF-8 from end to end, else � for each."""

    def __init__(self, spec: Spec) -> None:
        self._run, self._open, self._broken = b"", b"", False

    def feed(self, tokens: list[str]) -> list[str]:
        """All but a run that goes on and may still be whole."""
        given: list[str] = []
        for token in tokens:
            found = _BYTE.fullmatch(token) if len(token) == 6 else None
            if found:
                given += self._add(bytes([int(found[1], 16)]))
            else:
                given += [*self.end(), token]
                self._run, self._open, self._broken = b"", b"", False
        return given

    def end(self) -> list[str]:
        """The run as it stands."""
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


class _Utf8:
    """Characters that stand for bytes (GPT-2's alphabet), read as UTF-8 over all tokens."""

    def __init__(self, spec: Spec) -> None:
        self._open = b""

    def feed(self, tokens: list[str]) -> list[str]:
        """All characters that are whole, or certainly broken."""
        data = self._open + b"".join(map(_bytes_of, tokens))
        text, read = codecs.utf_8_decode(data, "replace", False)
        self._open = data[read:]
        return [text]

    def end(self) -> list[str]:
        """A character that was never finished."""
        return [self._open.decode(errors="replace")]


class _Trimmed:
    """Up to so many of a character taken from both ends of the whole text."""

    def __init__(self, spec: Spec) -> None:
        self._character, self._start, self._stop = spec["content"], spec["start"], spec["stop"]
        self._held = ""

    def feed(self, tokens: list[str]) -> list[str]:
        """The text but for what the end might lose."""
        text = "".join(tokens)
        cut = _run(text, self._character, self._start)
        self._start = self._start - cut if cut == len(text) else 0
        text = self._held + text[cut:]
        kept = len(text) - _run(text[::-1], self._character, self._stop)
        self._held = text[kept:]
        return [text[:kept]]

    def end(self) -> list[str]:
        """Nothing: what was held is what the end loses."""
        return []


class _Substituted:
    """A string replaced in the whole text."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern, self._content, self._held = pattern, content, ""

    def feed(self, tokens: list[str]) -> list[str]:
        """The text but for an end that may become the string."""
        *before, last = (self._held + "".join(tokens)).split(self._pattern)
        kept = len(last) - overlap(last, self._pattern)
        self._held = last[kept:]
        return [self._content.join([*before, last[:kept]])]

    def end(self) -> list[str]:
        """The end as it is."""
        return [self._held]


class _Whole:
    """What only the library can do, and only to the whole."""

    def __init__(self, specs: Sequence[Spec], fused: bool) -> None:
        self._decoder, self._fused = _library(specs), fused
        self._held: list[str] = []

    def feed(self, tokens: list[str]) -> list[str]:
        """Nothing: all is held."""
        self._held = [*self._held, *tokens]
        return []

    def end(self) -> list[str]:
        """The whole text."""
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


def _cleaned(text: str) -> str:
    for old, new in _CLEANED:
        text = text.replace(old, new)
    return text


def _run(text: str, character: str, most: int) -> int:
    """How many times `character` stands at the beginning of `text`, counted up to `most`."""
    return len(text[:most]) - len(text[:most].lstrip(character))


def overlap(text: str, pattern: str) -> int:
    """Length of the longest end of `text` that begins `pattern` and is shorter than it."""
    sizes = range(min(len(pattern) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(pattern[:size])), 0)
