"""From messages to the text a model was trained on: its own Jinja template, run in a sandbox."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import date, datetime
from functools import lru_cache, partial, update_wrapper
from itertools import groupby, islice
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.tokenizer import ROLES, role_text
from specdec_onnx.runtime.text.provenance import Said, concat, followed, written

Message = dict[str, Any]
"""A message: its `role`, and its `content` as text; `tool_calls` and what else a template knows may be beside them."""

Tools = Sequence[Mapping[str, Any]]
"""Functions that the model may call, as OpenAI's API describes them."""

SECONDS = 10.0
"""After this long, a template is assumed never to end."""

_MOST_PIECES = 1_000_000
_SOME = 1000
_LARGEST = 10_000_000
_LARGEST_INPUT = 2_000_000
_LARGEST_NUMBER = 1_000_000
_GROWTH = 200_000_000
_SHRINKING = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count", "length", "default", "d"}
_SHRINKING |= {
    "trim",
    "split",
    "rsplit",
    "splitlines",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
}
_SHRINKING |= {"strip", "lstrip", "rstrip", "first", "last", "list"}
"""What returns no more than it was given."""
_FORMATTING = {"format", "format_map", "strftime", "%"}
_INTERNAL = (Environment, EvalContext, Context)
_DEADLINE = ContextVar("deadline", default=float("inf"))
_PLAIN_FILTERS = {"string", "trim", "replace", "list", "first", "last", "reverse", "default", "d", "map"}
"""Filters that only use operations which `Said` follows by itself."""


def render(
    model: ModelFolder, messages: Sequence[Message], *, tools: Tools = (), open_answer: bool = True
) -> str:
    """The prompt text for `messages` (dicts with `role` and `content`); `open_answer` begins the assistant's message.

    `tools` are offered to the model if its template knows any (`knows_tools`). The text knows which of its characters
    come from messages (`provenance.mask`). If the template has no system role, the system prompt goes before the first
    user message; if it requires alternating roles, neighbours are joined.

    Raises SpecdecError if the model has no chat template, or the template rejects the messages.
    """
    if model.chat_template is None:
        raise SpecdecError(
            f"{model.name} has no chat template",
            "it is a base model, not made for chat",
            "give plain text (raw=True, or --raw on the command line)",
        )
    write = partial(_write, model, now=datetime.now(), tools=tools, open_answer=open_answer)
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


def knows_tools(model: ModelFolder) -> bool:
    """Whether the chat template tells the model which tools it may call."""
    return model.chat_template is not None and "tools" in _variables(model.chat_template)


@lru_cache(maxsize=8)
def _variables(source: str) -> frozenset[str]:
    """What a template reads that it does not set itself."""
    with _clear_errors("a chat template"):
        return frozenset(find_undeclared_variables(_environment().parse(source)))


@lru_cache(maxsize=8)
def literal_text(source: str) -> str:
    """All text that a template itself may write, separated by zero characters."""
    with _clear_errors("a chat template"):
        tree = _environment().parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = (node.value for node in tree.find_all(nodes.Const))
    return "\0".join([*texts, *(value for value in constants if isinstance(value, str))])


@contextmanager
def _clear_errors(whose: str) -> Iterator[None]:
    """Turn whatever a template's code raises into a SpecdecError."""
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:
        text = "it takes more memory than there is" if isinstance(error, MemoryError) else str(error)
        text = " ".join(text.split())
        why = text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"
        fix = "correct chat_template.jinja, or give plain text (raw=True, --raw)"
        raise SpecdecError(f"{whose} failed", why, fix) from error


def _write(
    model: ModelFolder, messages: Sequence[Message], now: datetime, tools: Tools, open_answer: bool
) -> str:
    marked = [
        {key: value if _names_role(key, value) else _said(value) for key, value in message.items()}
        for message in messages
    ]
    before = _DEADLINE.set(time.monotonic() + SECONDS)
    try:
        with _clear_errors(f"the chat template of {model.name}"):
            return _compiled(str(model.chat_template)).render(
                messages=marked,
                tools=_said(list(tools)) if tools else None,
                documents=None,
                add_generation_prompt=open_answer,
                strftime_now=now.strftime,
                **_specials(model),
            )
    finally:
        _DEADLINE.reset(before)


def _said(value: Any) -> Any:
    """A message's text, or data with such texts, whose characters count as a message's."""
    if isinstance(value, str):
        return Said(value)
    if isinstance(value, Mapping):
        return {_said(key): _said(item) for key, item in value.items()}
    return [_said(item) for item in value] if isinstance(value, (list, tuple)) else value


def _names_role(key: str, value: Any) -> bool:
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
    """The messages with neighbours of the same role joined, unless there is more to them than text."""
    if any(message.keys() - {"role", "content"} for message in messages):
        return messages
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
    intercepted_binops = frozenset(("%", "*", "**", "+"))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join what a template wrote."""
        parts, pieces, size = iter(parts), list[str](), 0
        while some := list(islice(parts, _SOME)):
            pieces += some
            size += sum(map(len, some))
            if size > _LARGEST or len(pieces) > _MOST_PIECES:
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
        if isinstance(text, (str, bytes, bytearray)):
            _check_growth(name, (text, *args, *kwargs.values()))
        elif isinstance(text, date):
            _check_growth(name, args)
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
        _check_time()
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_growth(operator, (left, right))
        elif operator != "%" and _result_size(operator, left, right) > _LARGEST:
            raise TemplateError(f"the result of {operator} is too large")
        return followed(compute, left, right)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """The characters, items or bits of `left operator right`; 0 where these are no limit."""
    sizes = [len(side) if isinstance(side, (str, bytes, list, tuple)) else side for side in (left, right)]
    if not all(isinstance(size, int) for size in sizes):
        return 0
    first, second = (abs(size) for size in sizes)
    if sizes == [left, right]:
        bits = first.bit_length(), second.bit_length()
        return {"**": bits[0] * second, "*": sum(bits), "+": 0}[operator]
    return first + second if operator == "+" else first * second


def _check_growth(name: str, args: Sequence[Any]) -> None:
    """Raise TemplateError before a call that could take all memory, or more time than a check can interrupt.

    No function returns more than its first argument times the largest other one, by value if it is a number.
    """
    _check_time()
    first, *others = [arg for arg in args if not isinstance(arg, _INTERNAL)] or [None]
    size = _size(first)
    values = [*others, *(item for arg in others if isinstance(arg, tuple) for item in arg)]
    numbers = [abs(value) for value in values if isinstance(value, int)]
    if name in _FORMATTING and isinstance(first, str):
        numbers.append(sum(int(number[:9]) for number in re.findall(r"\d+", first)))
        numbers.append(_LARGEST if re.search(r"\{[^{}]*\{", first.replace("{{", "")) else 0)
    largest = max([0, *numbers, *map(_size, others)])
    too_much = max([0, *numbers]) > _LARGEST_NUMBER or size > _LARGEST_INPUT or size * largest > _GROWTH
    if too_much and name not in _SHRINKING:
        raise TemplateError(f"the result of {name} may be too large")


def _size(value: Any) -> int:
    """Characters and items in a value, counted up to a limit."""
    left, counted = [value], 0
    while left and counted <= _LARGEST:
        item = left.pop()
        counted += 1
        if isinstance(item, (str, bytes, bytearray)):
            counted += len(item)
        elif isinstance(item, (list, tuple)):
            left += item
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, range):
            counted += len(item)
    return counted


def _written(value: Any) -> str:
    if not isinstance(value, str) and _size(value) > _LARGEST_INPUT:
        raise TemplateError("what it writes is too large")
    return written(value)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is refused what would be too large, and whose result knows its origin."""
    run = function if name in _PLAIN_FILTERS else partial(followed, function)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        _check_growth(name, (*args, *kwargs.values()))
        return run(*args, **kwargs)

    return update_wrapper(guarded, function)


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
        finalize=_written,
    )
    environment.filters |= {"tojson": _tojson, "string": written}
    environment.filters = {name: _guarded(name, function) for name, function in environment.filters.items()}
    del environment.globals["lipsum"]
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
    config = model.tokenizer_config
    return {role: text for role in ROLES if (text := role_text(config, role)) is not None}
