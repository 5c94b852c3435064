"""Calls of tools in an answer: found while it streams, in the formats that models were trained on.

- Qwen and Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them, text before.
- Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`.
- Llama 3: the whole answer is `{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`, several with `;` between.
- Qwen's coders often put that into a code block.

Text that only looks like a call, because it is no JSON or names no tool that was offered, stays text.

A grammar keeps the calls to the tools' schemas: `call_grammar` where one must be made, `free_grammar` where the model
chooses. There the text is free until a call begins: with a mark, or, at the beginning of the answer, with JSON that
names a tool and comes to its arguments. From there to the end of the call the schema decides.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.sampling.constraint import embedded
from specdec_onnx.runtime.text.template import literal_text

_OPEN, _CLOSE, _MISTRAL, _PYTHON = "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
_MARKS = (_OPEN, _MISTRAL, _PYTHON)
_OPENINGS = ('{"name"', '```json{"name"', '```{"name"', '[{"name"')
"""How an answer begins that is nothing but a call, without its white space (a mark may be a token without text)."""

_GLANCE = 80
"""Characters that are looked at for that."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function's name and its arguments, as JSON text."""

    name: str
    arguments: str


class ToolCalls:
    """Splits an answer into text and calls as it arrives; `names` are the tools that may be called."""

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._held = names, ""
        self._blank, self._inside = True, False

    def push(self, text: str) -> Iterator[str | ToolCall]:
        """Text that can be shown, and calls that are complete."""
        self._held += text
        while self._held:
            if not self._inside:
                begin = self._begin()
                yield from self._shown(begin)
                self._inside = self._held != "" and self._may_call()
            end = self._held.find(_CLOSE) if self._held.startswith(_OPEN) else -1
            if not self._inside or end < 0:
                return
            piece, self._held = self._held[: end + len(_CLOSE)], self._held[end + len(_CLOSE) :]
            self._inside = False
            yield from self._calls(piece)

    def rest(self) -> Iterator[str | ToolCall]:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        yield from self._calls(held)

    def _begin(self) -> int:
        """Where the part begins that is no text, or may turn out to be none."""
        begin = self._beginning()
        if self._blank and any(begin.startswith(each) or each.startswith(begin) for each in _OPENINGS):
            return 0
        found = [at for mark in _MARKS if (at := self._held.find(mark)) >= 0]
        return min(found) if found else len(self._held) - max(_overlap(self._held, mark) for mark in _MARKS)

    def _may_call(self) -> bool:
        """Whether what is held begins with a call."""
        return self._held.startswith(_MARKS) or (self._blank and self._beginning().startswith(_OPENINGS))

    def _beginning(self) -> str:
        return "".join(self._held[:_GLANCE].split())

    def _shown(self, count: int) -> Iterator[str]:
        shown, self._held = self._held[:count], self._held[count:]
        self._blank = self._blank and not shown.strip()
        if shown:
            yield shown

    def _calls(self, piece: str) -> Iterator[str | ToolCall]:
        found = self._parsed(piece)
        self._blank = False
        if found:
            yield from found
        elif piece:
            yield piece

    def _parsed(self, piece: str) -> list[ToolCall]:
        """The calls in a piece; none if any of it is something else."""
        text = piece.strip()
        for mark in _MARKS:
            text = text.removeprefix(mark)
        text = text.removesuffix(_CLOSE).strip()
        if text.startswith("```"):
            text = text.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
        calls: list[ToolCall] = []
        while text:
            try:
                value, end = json.JSONDecoder().raw_decode(text)
            except (ValueError, RecursionError):
                return []
            for each in value if isinstance(value, list) else [value]:
                if (call := self._call(each)) is None:
                    return []
                calls.append(call)
            text = text[end:].lstrip().removeprefix(";").lstrip()
        return calls

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            return ToolCall(value["name"], arguments)
        return (
            ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))
            if isinstance(arguments, dict)
            else None
        )


ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}


def call_grammar(functions: Sequence[Mapping[str, Any]]) -> str:
    """Lark: one call, as JSON. Raises SpecdecError for a schema that is too deep or too long."""
    return "\n".join(["start: call", *_call_rules(functions, "arguments")])


def free_grammar(model: ModelFolder, functions: Sequence[Mapping[str, Any]]) -> str:
    """Lark: free text with calls, each as its function's schema says. Raises SpecdecError like `call_grammar`."""
    mark = _mark(model)
    bare = [f"bare_{index}" for index in range(len(functions))]
    lines = [
        f"start: ({' | '.join(bare)})? {'marked* ' if mark else ''}TEXT",
        r"TEXT: /(.|\n)*/",
        r"BLANK: /[ \n]{0,2}/",
        r'BEGIN: /\s*(```(json)?\s*)?\{\s*"name":\s*"/',
        r'KEY: /",\s*"(arguments|parameters)":/',
    ]
    for index, function in enumerate(functions):
        lines += [
            f"begin_{index}[lazy]: BEGIN {_literal(_name(function))} KEY",
            f'bare_{index}: begin_{index} BLANK arguments_{index} BLANK "}}"',
        ]
    lines += _call_rules(functions, "parameters" if mark == _PYTHON else "arguments")
    lines += _marked_rules(model.tokenizer, mark) if mark else []
    return "\n".join(lines)


def _mark(model: ModelFolder) -> str | None:
    """What this model was trained to write before a call, if anything."""
    text, tokens = literal_text(model.chat_template or ""), model.tokenizer.special_tokens
    if "[ARGS]" not in text:
        for mark in (_OPEN, _MISTRAL):
            if mark in text:
                return mark
    return _PYTHON if _PYTHON in tokens and '"parameters"' in text else None


def _marked_rules(tokenizer: Tokenizer, mark: str) -> list[str]:
    """The rule `marked`: free text, a mark, and a call or more."""
    if (token := tokenizer.special_tokens.get(mark)) is not None:
        head = f"head: TEXT <[{token}]>"
    else:
        head = f"head[lazy]: TEXT {_literal(mark)}"
    close = tokenizer.special_tokens.get(_CLOSE)
    closing = _literal(_CLOSE) if close is None else f"<[{close}]>"
    body = {
        _OPEN: f"call BLANK {closing}",
        _MISTRAL: '"[" call (", " call)* "]"',
        _PYTHON: 'call ("; " call)*',
    }
    return [head, f"marked: head BLANK {body[mark]}"]


def _call_rules(functions: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """The rule `call`: any of the functions, as JSON; and `arguments_N`, those of each."""
    begins = [_literal(f'{{"name": "{_name(each)}", "{key}": ') for each in functions]
    return [
        f"call: {' | '.join(f'call_{index}' for index in range(len(functions)))}",
        *(
            f'call_{index}: {begin} arguments_{index} "}}"\narguments_{index}: {_schema(function)}'
            for index, (begin, function) in enumerate(zip(begins, functions, strict=True))
        ),
    ]


def _name(function: Mapping[str, Any]) -> str:
    """A function's name as JSON writes it between quotation marks."""
    return json.dumps(function["name"], ensure_ascii=False)[1:-1]


def _schema(function: Mapping[str, Any]) -> str:
    return embedded(function.get("parameters") or ANY_ARGUMENTS)


def _literal(text: str) -> str:
    """Lark's way of writing a text."""
    return json.dumps(text, ensure_ascii=False)


def _overlap(text: str, mark: str) -> int:
    """How many of the last characters of `text` may be the beginning of `mark`."""
    return next(
        (size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0
    )
