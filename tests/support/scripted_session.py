"""A session that says what it was told to, in rounds with known sources, at a pace the test controls."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from specdec_onnx.tui.chat.session import OnProgress, Piece, Request, Round, Source

SOURCES: tuple[Source, ...] = ("suffix", "draft", "draft")


class ScriptedSession:
    """Each word is a token; rounds of `width` words, the last word of each from the target."""

    name, about, exactness, device = "scripted-pair", "w8a8 + int4 · cpu", "bit-identical", "cpu"
    running = True

    def __init__(
        self,
        answers: Sequence[str],
        *,
        modes: tuple[str, ...] = ("plain", "suffix", "draft", "auto"),
        context: int = 4096,
        pause: float = 0.0,
        width: int = 4,
        hold_after: int | None = None,
    ) -> None:
        self.modes, self.context = modes, context
        self.requests: list[Request] = []
        self.closed = False
        self.go_on = asyncio.Event()
        self._answers, self._pause, self._width, self._hold = list(answers), pause, width, hold_after
        self._stopped = False
        self._counts: dict[str, Any] = {}

    async def reply(self, request: Request, on_progress: OnProgress) -> AsyncIterator[Round]:
        """The next answer of the script; the last one is repeated for ever."""
        self.requests.append(request)
        self._stopped = False
        text = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if request.partial and text.startswith(request.partial):
            text = text[len(request.partial) :]
        words = split(text)
        prompt = sum(len(message["content"].split()) for message in request.messages)
        self._counts = {"prompt_tokens": prompt, "new_tokens": len(words), "decode_tokens_per_second": 42.0}
        self._counts |= {"time_to_first_token_ms": 300.0, "seconds": 1.0 if request.mode == "plain" else 0.5}
        on_progress(prompt, prompt)
        width = 1 if request.mode == "plain" else self._width
        rounds, drafted, accepted = [words[at : at + width] for at in range(0, len(words), width)], 0, 0
        for number, words in enumerate(rounds):
            if number == self._hold:
                await asyncio.wait_for(self.go_on.wait(), 60)
            await asyncio.sleep(self._pause)
            if self._stopped:
                yield Round("", (), "cancelled")
                return
            pieces = made(words, width)
            drafted += sum(piece.source != "target" for piece in pieces)
            accepted += len(words) - 1
            self._counts |= {"rounds": number + 1, "tokens_per_round": width, "drafted": drafted}
            self._counts |= {"accepted": accepted, "acceptance_rate": accepted / drafted if drafted else 0.0}
            yield Round("".join(words), pieces, "eos" if number == len(rounds) - 1 else None)

    def statistics(self) -> Mapping[str, Any]:
        """Fixed rates, counted tokens."""
        return dict(self._counts)

    def cancel(self) -> None:
        """End before the next round; a held answer is let go."""
        self._stopped = True
        self.go_on.set()

    async def close(self) -> None:
        """Note it."""
        self.closed = True


def split(text: str) -> list[str]:
    """Words with the white space after them."""
    words, word = [], ""
    for character in text:
        if word and word[-1].isspace() and not character.isspace():
            words.append(word)
            word = ""
        word += character
    return [*words, word] if word else words


def made(words: Sequence[str], width: int) -> tuple[Piece, ...]:
    """All but the last word drafted; a full round also had one draft rejected."""
    drafted = [Piece(word, SOURCES[at % len(SOURCES)]) for at, word in enumerate(words[:-1])]
    fallen = [Piece("perhaps ", "rejected")] if len(words) == width and width > 1 else []
    return (*drafted, *fallen, Piece(words[-1], "target"))
