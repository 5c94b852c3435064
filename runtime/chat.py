"""A conversation: messages, their tokens, and the cache that stays valid between turns."""

from collections.abc import Callable, Sequence
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


class Transcript:
    """Text and tokens of the newest prompt and answer.

    Encoding an answer again may give other tokens than the model chose; the cache would not match them.
    """

    def __init__(self, model: ModelFolder) -> None:
        self._model = model
        self._text, self._tokens = "", list[int]()

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt; if it begins with the remembered text, that part keeps its original tokens."""
        text, size = prompt.text, len(self._text)
        if not (size and text.startswith(self._text) and same_origin(text[:size], self._text)):
            return encode(self._model, prompt)
        return [*self._tokens, *encode(self._model, prompt, size)]

    def remember(self, prompt: Prompt, tokens: Sequence[int], answer: str, written: Sequence[int]) -> None:
        """Keep an answer's tokens if they spell it; after a stop string or half a character, they may not."""
        kept = list(written)
        while kept and kept[-1] in self._model.eos_token_ids:
            kept.pop()
        if continuation(self._model.tokenizer, tokens, kept) == answer:
            spoken = answer if prompt.raw else Said(answer)
            self._text, self._tokens = concat((prompt.text, spoken)), [*tokens, *kept]


class Chat:
    """Turns of user and assistant; each turn pays prefill only for new tokens.

    `messages` may be read at any time and includes the answer so far, even if it was stopped. A question or an edit is
    added with the answer's first step: an answer that is never read, fails or is stopped before then changes nothing.
    An answer to an earlier state of the conversation is refused, so that no turn is lost.
    """

    def __init__(self, engine: "Engine", system: str | None = None) -> None:
        self._engine, self._suffix = engine, engine.speculation.suffix()
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._transcript = Transcript(engine.pair.target)
        self._cancel: Callable[[], None] = lambda: None

    def send(self, text: str, **options: Any) -> Stream:
        """Send a message and stream the answer; takes the arguments of `Engine.stream`.

        Raises SpecdecError, with the counts, when the conversation no longer fits the context; it is then unchanged.
        """
        return self._answer([*self.messages, {"role": "user", "content": text}], **options)

    def regenerate(self, **options: Any) -> Stream:
        """Replace the last answer by a new one."""
        return self._answer(self.messages[: self._last("user") + 1], **options)

    def edit(self, index: int, text: str, **options: Any) -> Stream:
        """Replace the user message at `index`, delete what came after it and stream a new answer."""
        if not 0 <= index < len(self.messages) or self.messages[index]["role"] != "user":
            raise SpecdecError(f"message {index} cannot be edited", "it is not a message of the user")
        return self._answer([*self.messages[:index], {"role": "user", "content": text}], **options)

    def cancel(self) -> None:
        """End the answer requested last in this conversation, and no other; may be called from any thread."""
        self._cancel()

    def _answer(self, messages: list[Message], **options: Any) -> Stream:
        for message in messages:
            require_text(message["content"], f"the {message['role']}'s message")
        prompt = chat_prompt(self._engine.pair.target, messages)
        tokens = self._transcript.encode(prompt)
        steps = self._engine.stream(tokens, suffix=self._suffix, **options)
        self._cancel = steps.cancel
        before = [dict(message) for message in self.messages]
        return steps.through(self._record(steps, before, messages, prompt, tokens))

    def _record(
        self, steps: Stream, before: list[Message], asked: list[Message], prompt: Prompt, tokens: list[int]
    ) -> Steps:
        message, written = {"role": "assistant", "content": ""}, list[int]()
        self._check_unchanged(before)
        try:
            for step in steps:
                if not written and step.finish_reason != "cancelled":
                    self._check_unchanged(before)
                    self.messages = [*asked, message]
                message["content"] += step.text
                written.extend(step.tokens)
                yield step
        finally:
            if written and self.messages[-1:] and self.messages[-1] is message:
                self._transcript.remember(prompt, tokens, message["content"], written)

    def _check_unchanged(self, before: list[Message]) -> None:
        if self.messages != before:
            raise SpecdecError(
                "the conversation has changed",
                "another message was answered after this one was sent",
                "send it again",
            )

    def _last(self, role: str) -> int:
        indices = [index for index, message in enumerate(self.messages) if message["role"] == role]
        if not indices:
            raise SpecdecError("there is nothing to answer", "the conversation has no message yet")
        return indices[-1]
