"""Tokens to text as they come: never half a character, never text behind a stop string."""

from tokenizers.decoders import DecodeStream

from specdec_onnx.models.tokenizer import Tokenizer


class Detokenizer:
    """Turns a growing token sequence into pieces of text; special tokens give none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._emitted = 0

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is still in pieces."""
        self._ids.append(token)
        piece: str = self._stream.step(self._tokenizer.raw, token) or ""
        self._emitted += len(piece)
        return piece

    def flush(self) -> str:
        """What is left at the end: an incomplete character reads as the replacement character."""
        return self._tokenizer.decode(self._ids)[self._emitted :]


class StopStrings:
    """Holds text back while it may be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The part of all text so far that is safe to show; sets `found` when a stop string is complete."""
        self._held += text
        starts = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if starts:
            self.found = True
            return self._release(min(starts), forget=True)
        return self._release(len(self._held) - self._overlap())

    def flush(self) -> str:
        """What was held back, when the answer ends otherwise."""
        return self._release(len(self._held))

    def _release(self, end: int, *, forget: bool = False) -> str:
        shown, self._held = self._held[:end], "" if forget else self._held[end:]
        return shown

    def _overlap(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        lengths = (
            size
            for stop in self._stops
            for size in range(min(len(stop) - 1, len(self._held)), 0, -1)
            if self._held.endswith(stop[:size])
        )
        return max(lengths, default=0)
