"""Prompts of a wanted length, in tokens."""

from typing import TYPE_CHECKING

from specdec_onnx.tui.bench.prompts import built_in_prompts

if TYPE_CHECKING:
    from specdec_onnx.models.folder import ModelFolder

TASK = "\n\nWhat is the text above about? Answer in a few sentences."


def prompt_of(model: "ModelFolder", length: int) -> list[int]:
    """Token ids of a question about some text: as many as fit in `length`, or the bare question if it is longer."""
    from specdec_onnx.runtime.prompt import prompt_tokens

    text = "\n\n".join(turn for prompt in built_in_prompts() for turn in prompt.turns)
    text *= 1 + 8 * length // len(text)  # a token is hardly ever longer than eight characters
    fits, too_long = 0, len(text) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if len(prompt_tokens(model, text[:middle] + TASK)) <= length:
            fits = middle
        else:
            too_long = middle
    return prompt_tokens(model, text[:fits] + TASK)
