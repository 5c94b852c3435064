"""From messages to the text a model was trained on: its own Jinja template, run in a sandbox."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, partial, update_wrapper
from itertools import groupby, islice
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.tokenizer import ROLES, role_text
from specdec_onnx.runtime.text.provenance import Said, concat, followed, written

Message = dict[str, str]

SECONDS = 10.0
"""After this long, a template is assumed never to end."""

_MOST_PIECES = 5_000_000
_LARGEST = 10_000_000
_DEADLINE = ContextVar("deadline", default=float("inf"))
_PLAIN_FILTERS = {"trim", "replace", "list", "first", "last", "reverse", "default", "d", "map"}
"""Filters that only use operations which `Said` follows by itself."""


def render(model: ModelFolder, messages: Sequence[Message], *, open_answer: bool = True) -> str:
    """The prompt text for `messages` (dicts with `role` and `content`); `open_answer` begins the assistant's message.

    The text knows which of its characters come from messages (`provenance.mask`). If the template has no system role,
    the system prompt goes before the first user message; if it requires alternating roles, neighbours are joined.
    Raises SpecdecError if the model has no chat template, or the template rejects the messages.
    """
    if model.chat_template is None:
        raise SpecdecError(
            f"{model.name} has no chat template",
            "it is a base model, not made for chat",
            "give plain text (raw=True, or --raw on the command line)",
        )
    write = partial(_write, model, now=datetime.now(), open_answer=open_answer)
    messages = list(messages)
    others = _without_system_role(messages)
    try:
        text = write(messages)
    except SpecdecError:
        for adapted in (others, _alternating(others)):
            if adapted != messages:
                with suppress(SpecdecError):
                    return write(adapted)
        raise
    if others != messages:
        more = [messages[0] | {"content": f"one {messages[0]['content']} more"}, *messages[1:]]
        with suppress(SpecdecError):
            if write(more) == text:  # the system prompt does not appear at all
                return write(others)
    return text


@lru_cache(maxsize=8)
def literal_text(source: str) -> str:
    """All text that a template itself may write, separated by zero characters."""
    with _clear_errors("a chat template"):
        tree = _environment().parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = (node.value for node in tree.find_all(nodes.Const))
    return "\0".join([*texts, *(value for value in constants if isinstance(value, str))])


class _clear_errors:
    """Turns whatever a template's code raises into a SpecdecError."""

    def __init__(self, whose: str) -> None:
        self._whose = whose

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, SpecdecError):
            return
        text = " ".join(str(error).split())
        why = text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"
        raise SpecdecError(
            f"{self._whose} failed",
            why,
            "correct chat_template.jinja, or give plain text (raw=True, --raw)",
        ) from error


def _write(model: ModelFolder, messages: Sequence[Message], now: datetime, open_answer: bool) -> str:
    marked = [
        {key: value if _names_role(key, value) else Said(value) for key, value in message.items()}
        for message in messages
    ]
    before = _DEADLINE.set(time.monotonic() + SECONDS)
    try:
        with _clear_errors(f"the chat template of {model.name}"):
            return _compiled(str(model.chat_template)).render(
                messages=marked,
                tools=None,
                documents=None,
                add_generation_prompt=open_answer,
                strftime_now=now.strftime,
                **_specials(model),
            )
    finally:
        _DEADLINE.reset(before)


def _names_role(key: str, value: str) -> bool:
    """Whether the template may make a control token of it, as in `"<|" + role + "|>"`."""
    return key == "role" and value.replace("-", "_").isidentifier()


def _without_system_role(messages: list[Message]) -> list[Message]:
    """The messages with the system prompt moved into the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    rest = [dict(message) for message in messages[1:]]
    for message in rest:
        if message["role"] == "user":
            message["content"] = f"{messages[0]['content']}\n\n{message['content']}"
            return rest
    return messages


def _alternating(messages: list[Message]) -> list[Message]:
    """The messages with neighbours of the same role joined."""
    return [
        {"role": role, "content": "\n\n".join(message["content"] for message in same)}
        for role, same in groupby(messages, lambda message: message["role"])
    ]


class _Generation(Extension):
    """The tags that mark what the assistant wrote; they change nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return str(caller())


class _Generator(CodeGenerator):
    """Compiles `a ~ b` so that the environment joins it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(environment.finalize, (")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write(")))")


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that tracks the origin of text through every operation, and stops what would never end."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("%", "*", "**"))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join what a template wrote."""
        pieces = list(islice(parts, _MOST_PIECES + 1))
        if len(pieces) > _MOST_PIECES:
            raise TemplateError("it writes without end")
        return concat(pieces)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        call = super().call
        method = getattr(obj, "__wrapped__", obj)
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, (bytes, bytearray)):
            made = call(context, obj, *args, **kwargs)
            return Said(made) if isinstance(made, str) else made
        if not isinstance(text, str) or (isinstance(text, Said) and name in vars(Said)):
            return call(context, obj, *args, **kwargs)
        find = super().getattr
        return followed(
            lambda text, *args, **kw: call(context, find(text, name), *args, **kw), text, *args, **kwargs
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        compute = partial(super().call_binop, context, operator)
        sizes = [len(side) if isinstance(side, (str, list, tuple)) else side for side in (left, right)]
        if operator != "%" and all(isinstance(size, int) for size in sizes):
            size = sizes[0] * sizes[1] if operator == "*" else sizes[0].bit_length() * sizes[1]
            if size > _LARGEST and (operator == "**" or sizes != [left, right]):
                raise TemplateError(f"the result of {operator} is too large")
        return followed(compute, left, right)


def _check_time() -> None:
    if time.monotonic() > _DEADLINE.get():
        raise TemplateError(f"it did not end within {SECONDS:g} seconds")


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        cache_size=0,
        finalize=written,
    )
    environment.filters |= {"tojson": _tojson, "string": written}
    for name in environment.filters.keys() - _PLAIN_FILTERS:
        function = environment.filters[name]
        environment.filters[name] = update_wrapper(partial(followed, function), function)
    environment.globals["raise_exception"] = _refuse
    return environment


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _specials(model: ModelFolder) -> dict[str, str]:
    """The special tokens that the model's settings name; the others are undefined in the template."""
    texts = {role: role_text(model.tokenizer_config, role) for role in ROLES}
    return {role: text for role, text in texts.items() if text is not None}
