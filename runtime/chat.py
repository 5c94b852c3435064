"""A conversation: messages, their tokens, and the cache that is kept between turns."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.tokenizer import require_text
from specdec_onnx.runtime.prompt import Prompt, chat_prompt
from specdec_onnx.runtime.template import Message
from specdec_onnx.runtime.transcript import Transcript
from specdec_onnx.runtime.turns import Steps, Stream

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine


class Chat:
    """Turns of user and assistant; every turn pays prefill only for tokens that are new.

    `messages` may be read at any time and holds the answer so far, also one that was stopped. A question, or an edit of
    one, is there from the answer's first step on: one that is never read, fails or is stopped before leaves all as it was.
    A question asked before the conversation went on is refused, so that no turn is lost.
    """

    def __init__(self, engine: "Engine", system: str | None = None) -> None:
        self._engine, self._suffix = engine, engine.speculation.suffix()
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._transcript = Transcript(engine.pair.target)
        self._cancel: Callable[[], None] = lambda: None

    def send(self, text: str, **ask: Any) -> Stream:
        """Ask and stream the answer; takes what `Engine.stream` takes.

        Raises SpecdecError, with the counts, when the conversation has outgrown the context; it is then unchanged.
        """
        return self._answer([*self.messages, {"role": "user", "content": text}], **ask)

    def regenerate(self, **ask: Any) -> Stream:
        """Drop the last answer and stream another one."""
        return self._answer(self.messages[: self._last("user") + 1], **ask)

    def edit(self, index: int, text: str, **ask: Any) -> Stream:
        """Replace the user message at `index`, drop what came after it and stream a new answer."""
        if not 0 <= index < len(self.messages) or self.messages[index]["role"] != "user":
            raise SpecdecError(f"message {index} cannot be edited", "it is not a message of the user")
        return self._answer([*self.messages[:index], {"role": "user", "content": text}], **ask)

    def cancel(self) -> None:
        """End the answer asked for last in this conversation, and no other; may be called from any thread."""
        self._cancel()

    def _answer(self, messages: list[Message], **ask: Any) -> Stream:
        for message in messages:
            require_text(message["content"], f"the {message['role']}'s message")
        prompt = chat_prompt(self._engine.pair.target, messages)
        tokens = self._transcript.encode(prompt)
        steps = self._engine.stream(tokens, suffix=self._suffix, **ask)
        self._cancel = steps.cancel
        before = [dict(message) for message in self.messages]
        return steps.through(self._recorded(steps, before, messages, prompt, tokens))

    def _recorded(
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
                "the conversation has gone on meanwhile",
                "another message was answered since this one was sent",
                "send it again",
            )

    def _last(self, role: str) -> int:
        places = [place for place, message in enumerate(self.messages) if message["role"] == role]
        if not places:
            raise SpecdecError("there is nothing to answer", "the conversation has no message yet")
        return places[-1]
