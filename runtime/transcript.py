"""What a model last read and wrote, so that its own words keep their tokens when they are read again."""

from collections.abc import Sequence

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.detokenizer import continuation
from specdec_onnx.runtime.prompt import Prompt, encode
from specdec_onnx.runtime.provenance import Said, concat, same_origin


class Transcript:
    """Text and tokens of the newest prompt and answer.

    A written answer, encoded again, may get other tokens than the model chose; the cache would then not fit.
    """

    def __init__(self, model: ModelFolder) -> None:
        self._model = model
        self._text, self._tokens = "", list[int]()

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt; where it begins with what was remembered, that part keeps its very tokens."""
        text, size = prompt.text, len(self._text)
        if not (size and text.startswith(self._text) and same_origin(text[:size], self._text)):
            return encode(self._model, prompt)
        return [*self._tokens, *encode(self._model, prompt, size)]

    def remember(self, prompt: Prompt, tokens: Sequence[int], answer: str, written: Sequence[int]) -> None:
        """Keep an answer's tokens if they spell it (a stop string or half a character may say otherwise)."""
        kept = list(written)
        while kept and kept[-1] in self._model.eos_token_ids:
            kept.pop()
        if continuation(self._model.tokenizer, tokens, kept) == answer:
            said = answer if prompt.raw else Said(answer)
            self._text, self._tokens = concat((prompt.text, said)), [*tokens, *kept]
