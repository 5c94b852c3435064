"""From messages to the text a model was trained on: its own Jinja template, run in a sandbox."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder

Message = dict[str, str]


def render(model: ModelFolder, messages: Sequence[Message], *, open_answer: bool = True) -> str:
    """The prompt text for `messages` (dicts with `role` and `content`); with `open_answer` the model is to go on.

    Raises SpecdecError when the model has no chat template or the template refuses the messages.
    """
    if model.chat_template is None:
        raise SpecdecError(
            f"{model.name} has no chat template",
            "it is a base model, not made for chat",
            "give plain text (raw=True, or --raw on the command line)",
        )
    try:
        return _compiled(model.chat_template).render(
            messages=list(messages), add_generation_prompt=open_answer, **_specials(model)
        )
    except TemplateError as error:
        raise SpecdecError(f"the chat template of {model.name} failed", str(error)) from error


def prompt_tokens(
    model: ModelFolder, text: str, *, system: str | None = None, raw: bool = False
) -> list[int]:
    """The token ids that a model sees for a user's message, or for plain text when `raw` or without a template."""
    if raw or model.chat_template is None:
        opening = [model.bos_token_id] if model.adds_bos and model.bos_token_id is not None else []
        return [*opening, *model.tokenizer.encode(text)]
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return model.tokenizer.encode(render(model, [*messages, {"role": "user", "content": text}]))


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _specials(model: ModelFolder) -> dict[str, Any]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    values = {name: model.tokenizer_config.get(name) or "" for name in names}
    return {name: value["content"] if isinstance(value, dict) else value for name, value in values.items()}
