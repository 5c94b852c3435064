"""A conversation: messages, their tokens, and the cache that stays valid between turns."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.tokenizer import require_text
from specdec_onnx.runtime.text.detokenizer import continuation
from specdec_onnx.runtime.text.prompt import Prompt, chat_prompt, encode
from specdec_onnx.runtime.text.provenance import Said, concat, same_origin
from specdec_onnx.runtime.text.template import Message
from specdec_onnx.runtime.turns import Steps, Stream

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine


_ROOM = 8
"""The part of the context, one in so many, that is kept free for an answer before the oldest turns are left out."""


class Transcript:
    """Text and tokens of the newest prompt and answer.

    An answer's text, encoded again, may give other tokens than the model chose; the cache would then not match. `stored`
    gives the tokens of texts that earlier processes have stored, for a conversation that began in one of them.
    """

    def __init__(self, model: ModelFolder, stored: Callable[[], Iterable[Sequence[int]]] = tuple) -> None:
        self._model, self._stored = model, stored
        self._text, self._tokens = "", list[int]()

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt; where it begins with the remembered text or a stored one, that part keeps its tokens."""
        text, size = prompt.text, len(self._text)
        if not (size and text.startswith(self._text) and same_origin(text[:size], self._text)):
            tokens, whole = encode(self._model, prompt), frozenset(self._model.tokenizer.added_ids)
            ways = (same_text(tokens, each, self._model.tokenizer.spelling, whole) for each in self._stored())
            own, kept = max(ways, default=(0, []), key=itemgetter(0))
            return [*kept, *tokens[own:]]
        return [*self._tokens, *encode(self._model, prompt, size)]

    def remember(self, prompt: Prompt, tokens: Sequence[int], answer: str, written: Sequence[int]) -> None:
        """Keep an answer's tokens if they spell it (with a stop string or half a character they may not)."""
        kept = list(written)
        while kept and kept[-1] in self._model.eos_token_ids:
            kept.pop()
        if continuation(self._model.tokenizer, tokens, kept) == answer:
            text = answer if prompt.raw else Said(answer)
            self._text, self._tokens = concat((prompt.text, text)), [*tokens, *kept]


def same_text(
    tokens: Sequence[int], other: Sequence[int], spelling: Callable[[int], str], whole: Collection[int]
) -> tuple[int, list[int]]:
    """How many of the first `tokens` spell the same text as some first ones of `other`, and these.

    Both may split the text differently, but must agree in the tokens of `whole`, which mean more than their text.
    """
    own = its = 0
    while own < len(tokens) and its < len(other):
        ends, texts = [own + 1, its + 1], [spelling(tokens[own]), spelling(other[its])]
        if tokens[own] != other[its]:
            if tokens[own] in whole or other[its] in whole:
                break
            while texts[0] != texts[1]:
                side = int(len(texts[1]) < len(texts[0]))
                ids = (tokens, other)[side]
                if ends[side] == len(ids) or ids[ends[side]] in whole:
                    return own, list(other[:its])
                texts[side] += spelling(ids[ends[side]])
                ends[side] += 1
                if not texts[0].startswith(texts[1]) and not texts[1].startswith(texts[0]):
                    return own, list(other[:its])
        own, its = ends
    return own, list(other[:its])


class Chat:
    """A conversation of user and assistant; each turn pays prefill only for its new tokens.

    `messages` may be read at any time and includes the answer so far, even if it was stopped. A new or edited question
    is added when the first step of its answer arrives; if the answer is never read, fails or is stopped before that,
    nothing changes. If another question was answered in the meantime, it is refused, so that no turn is lost.

    `raw` is for models without a chat template, which read the messages as plain text, one paragraph each.

    `left_out` is how many of the oldest messages the newest answer's prompt does without, see `answer`.
    """

    def __init__(self, engine: "Engine", system: str | None = None, *, raw: bool = False) -> None:
        self._engine, self._suffix, self._raw = engine, engine.speculation.suffix(), raw
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._transcript, self.left_out = Transcript(engine.pair.target, engine.stored_texts), 0
        self._cancel: Callable[[], None] = lambda: None

    def send(self, text: str, **options: Any) -> Stream:
        """Send a message and stream the answer; takes the arguments of `Engine.stream`.

        Raises SpecdecError, with the counts, when the conversation no longer fits the context; it is then unchanged.
        """
        return self.answer([*self.messages, {"role": "user", "content": text}], **options)

    def regenerate(self, **options: Any) -> Stream:
        """Drop the last answer and stream another one."""
        return self.answer(self.messages[: self._last("user") + 1], **options)

    def resume(self, **options: Any) -> Stream:
        """Continue the last answer, which was stopped or reached a limit; streams the new part."""
        if self._last("assistant") != len(self.messages) - 1:
            raise SpecdecError("there is no answer to continue", "the last message is not an answer")
        return self.answer(self.messages[:-1], partial=self.messages[-1]["content"], **options)

    def edit(self, index: int, text: str, **options: Any) -> Stream:
        """Replace the user message at `index`, delete what came after it and stream a new answer."""
        if not isinstance(index, int) or not 0 <= index < len(self.messages):
            last = len(self.messages) - 1
            raise SpecdecError(f"there is no message {index!r}", f"they are numbered from 0 to {last}")
        if self.messages[index].get("role") != "user":
            raise SpecdecError(f"message {index} cannot be edited", "it is not a user message")
        return self.answer([*self.messages[:index], {"role": "user", "content": text}], **options)

    def answer(
        self, messages: Sequence[Message], *, partial: str = "", drop_oldest: bool = False, **options: Any
    ) -> Stream:
        """Make `messages` the conversation and stream an answer to them.

        Args:
            messages: What the model reads, oldest first.
            partial: The beginning of the answer, which is continued.
            drop_oldest: Where the context has no room for them and an answer, leave out the oldest turns, but not the
                system prompt, until half of it is free. They stay in `messages`.
            options: What `Engine.stream` takes.

        Raises:
            SpecdecError: The messages do not fit the context, or an argument is invalid.
        """
        for index, message in enumerate(messages):
            _check_message(index, message)
        require_text(partial, "the answer so far")
        self.left_out = self.left_out if drop_oldest else 0
        prompt, tokens = self._fitting(messages, partial) if drop_oldest else self._encoded(messages, partial)
        if len(tokens) >= self._engine.context:
            raise SpecdecError(
                f"the conversation has {len(tokens)} tokens, the context has room for {self._engine.context}",
                "an answer needs room too",
                "let the oldest turns be left out (drop_oldest; in the chat, F2), begin a new conversation, or load the "
                "model with a larger context (--context)",
            )
        steps = self._engine.stream(tokens, suffix=self._suffix, **options)
        self._cancel = steps.cancel
        before = [dict(message) for message in self.messages]
        answer = {"role": "assistant", "content": partial}
        # Copies: an earlier answer that is still read on does not change what this one was asked.
        return steps.through(self._recorded(steps, before, [*map(dict, messages), answer], prompt))

    def fork(self) -> "Chat":
        """An independent copy, which starts without drafts from this conversation's answers."""
        twin = Chat(self._engine, raw=self._raw)
        twin.messages = [dict(message) for message in self.messages]
        twin._transcript, twin.left_out = copy(self._transcript), self.left_out
        return twin

    def cancel(self) -> None:
        """End the answer requested last in this conversation, and no other; may be called from any thread."""
        self._cancel()

    def _fitting(self, messages: Sequence[Message], partial: str) -> tuple[Prompt, list[int]]:
        """The prompt without what has to be left out; what was left out before stays out, so that the cache fits."""
        room, opening = self._engine.context, int(bool(messages) and messages[0]["role"] == "system")
        starts = [at for at, each in enumerate(messages) if each["role"] == "user" and at > opening]

        def encoded(start: int) -> tuple[Prompt, list[int]]:
            return self._encoded([*messages[:opening], *messages[start:]], partial)

        for start in {opening: None, self.left_out + opening: None}:
            if start in (opening, *starts) and len((found := encoded(start))[1]) <= room - room // _ROOM:
                self.left_out = start - opening
                return found
        if not starts:
            return self._encoded(messages, partial)
        first = bisect_left(starts, -room // 2, hi=len(starts) - 1, key=lambda start: -len(encoded(start)[1]))
        self.left_out = starts[first] - opening
        return encoded(starts[first])

    def _encoded(self, messages: Sequence[Message], partial: str) -> tuple[Prompt, list[int]]:
        prompt = self._prompt(messages, partial)
        return prompt, self._transcript.encode(prompt)

    def _prompt(self, messages: Sequence[Message], partial: str) -> Prompt:
        if self._raw:
            return Prompt("\n\n".join([*(message["content"] for message in messages), partial]), raw=True)
        return chat_prompt(self._engine.pair.target, messages, partial=partial)

    def _recorded(self, steps: Stream, before: list[Message], after: list[Message], prompt: Prompt) -> Steps:
        """The answer's steps; `after`, whose last message is the answer, becomes the conversation with the first."""
        answer, begun = after[-1], False
        self._check_unchanged(before)
        try:
            for step in steps:
                if not begun and step.finish_reason != "cancelled":
                    self._check_unchanged(before)
                    self.messages, begun = after, True
                answer["content"] += step.text
                yield step
        finally:
            if begun and self.messages[-1:] and self.messages[-1] is answer:
                result = steps.result
                self._transcript.remember(prompt, result.prompt, result.text, result.tokens)

    def _check_unchanged(self, before: list[Message]) -> None:
        if self.messages != before:
            raise SpecdecError(
                "the conversation has moved on",
                "another message was answered since this one was sent",
                "send it again",
            )

    def _last(self, role: str) -> int:
        indices = [index for index, message in enumerate(self.messages) if message.get("role") == role]
        if not indices:
            raise SpecdecError("there is nothing to answer", "the conversation has no messages yet")
        return indices[-1]


def _check_message(index: int, message: object) -> None:
    """Raise SpecdecError if an entry of the conversation is no message of text."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise SpecdecError(
            f"entry {index} of the conversation is {message!r:.60}",
            "a message is a dict with role and content",
            "correct chat.messages",
        )
    require_text(message["role"], f"the role of message {index}")
    require_text(message["content"], f"the {message['role']}'s message")
