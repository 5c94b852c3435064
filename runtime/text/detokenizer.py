"""Tokens to text as they come: never half a character, never text after a stop string."""

from collections.abc import Iterable, Sequence
from itertools import compress

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.text.decoders import Chain, overlap, spelled_bytes


class Detokenizer:
    """Turns the tokens that follow `before` into pieces of text; special tokens give none.

    The pieces and the rest, joined, are what the tokens add to the text when everything is decoded at once.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._spellings, self._special = tokenizer.spellings, tokenizer.special_tokens
        self._chain = Chain(tokenizer.decoder)
        self._chain.feed(self._spelled(before))
        self._known = self._chain.rest()

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        piece = self._chain.feed(self._spelled((token,)))
        new = self._new(piece)
        self._known = "" if new else self._known[len(piece) :]
        return new

    def rest(self) -> str:
        """What is left if the text ends here: an incomplete character becomes the replacement character."""
        return self._new(self._chain.rest())

    def _new(self, text: str) -> str:
        """The part of `text` that was not in the text before."""
        known = self._known[: len(text)]
        while not text.startswith(known):
            known = known[:-1]
        return text[len(known) :]

    def _spelled(self, tokens: Iterable[int]) -> list[str]:
        spellings, size = self._spellings, len(self._spellings)
        spelled = (spellings[token] for token in tokens if token < size)
        return [text for text in spelled if text is not None and text not in self._special]


def continuation(tokenizer: Tokenizer, before: Sequence[int], tokens: Iterable[int]) -> str:
    """The text that `tokens` add to the text of `before`."""
    stream = Detokenizer(tokenizer, before)
    return "".join([*map(stream.push, tokens), stream.rest()])


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """What each id [size] adds in the middle of a text, which may be half a character; nothing for a special token."""
    special, specs = tokenizer.special_tokens, tokenizer.decoder
    return [
        spelled_bytes(specs, text) if text and text not in special else b"" for text in tokenizer.spellings
    ]


class StopStrings:
    """Holds text back while it may be the beginning of a stop string.

    Special tokens have no text, but a stop string may spell them: their spellings are held with the text and never
    shown.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self.found = False
        self._held, self._shown = "", b""  # the characters held back, and whether each is text
        self._count = 0  # characters of text so far
        self._marks = list[tuple[int, str]]()  # spellings of special tokens after text that has not come yet

    def push(self, text: str) -> str:
        """Add text; returns what is safe to show of all so far, and sets `found` when a stop string is complete."""
        settled = bool(text)
        while settled and self._marks:
            position, spelling = self._marks.pop(0)
            cut = max(0, position - self._count)
            self._hold(text[:cut])
            self._hold(spelling, shown=False)
            text = text[cut:]
        self._hold(text)
        return self._checked()

    def mark(self, spelling: str, pending: str = "") -> str:
        """The same for a special token, which follows text that is not final yet: it reads `pending` so far."""
        before = self._held, self._shown, self._count
        self._hold(pending)
        self._hold(spelling, shown=False)
        if pending and not any(stop in self._held for stop in self._stops):
            self._held, self._shown, self._count = before
            self._marks.append((self._count + len(pending), spelling))
            return ""
        return self._checked()

    def flush(self) -> str:
        """What was held back, if the answer ends without a stop string."""
        return self._release(len(self._held))

    def _hold(self, text: str, *, shown: bool = True) -> None:
        self._held += text
        self._shown += bytes([shown]) * len(text)
        self._count += len(text) if shown else 0

    def _checked(self) -> str:
        starts = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if starts:
            self.found = True
            shown = self._release(min(starts))
            self._held, self._shown = "", b""
            return shown
        kept = max((overlap(self._held, stop) for stop in self._stops), default=0)
        return self._release(len(self._held) - kept)

    def _release(self, end: int) -> str:
        shown = "".join(compress(self._held[:end], self._shown))
        self._held, self._shown = self._held[end:], self._shown[end:]
        return shown
