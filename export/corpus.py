"""Text to calibrate on that every machine has: sources and docstrings of Python's standard library."""

import builtins
import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.prompt import chat_prompt, encode

SEGMENTS = 6
"""How many texts are read; each starts anew, as the first token of a text is unlike all others."""

LENGTH = 192

_PROSE = ("assignment", "exceptions", "formatstrings", "debugger", "typesseq", "import")
_CODE = ("heapq", "textwrap", "statistics", "bisect", "json.decoder", "fractions", "calendar", "random")
_ASKED = ("sorted", "print", "open", "int", "enumerate", "zip", "str", "property", "range", "sum")


def segments(model: ModelFolder, count: int = SEGMENTS, length: int = LENGTH) -> NDArray[np.int64]:
    """Token ids [count, length], shorter for a short context: code, prose and conversations in turn."""
    length = min(length, model.context_length)
    encoded = model.tokenizer.encode
    kinds = (map(encoded, _code()), map(encoded, _prose()), _conversations(model))
    rows = [_take(kinds[index % 3], length) for index in range(count)]
    return np.array(rows, np.int64)


def token_counts(model: ModelFolder) -> NDArray[np.int64]:
    """How often each id stands in the whole text: int64 [vocabulary]."""
    counts = np.zeros(model.vocab_size, np.int64)
    for text in _everything():
        counts += np.bincount(model.tokenizer.encode(text), minlength=len(counts))
    return counts


def _everything() -> Iterator[str]:
    """All modules, the whole handbook, and what is known of every built-in name."""
    yield from (_source(name) for name in _CODE)
    with suppress(ImportError):
        yield from import_module("pydoc_data.topics").topics.values()
    yield from (_described(name) for name in sorted(dir(builtins)))


def _take(texts: Iterator[list[int]], length: int) -> Sequence[int]:
    """The next texts joined until they fill a row, all of them as token ids."""
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += next(texts)
    return tokens[:length]


def _code() -> Iterator[str]:
    """Pieces of modules, endlessly: the later half of each, behind the licences and long comments."""
    while True:
        for name in _CODE:
            lines = _source(name).splitlines(keepends=True)
            yield "".join(lines[len(lines) // 2 :][:120])


def _source(name: str) -> str:
    """A module's text, or something where it is not at hand."""
    with suppress(ImportError, OSError, TypeError):
        return inspect.getsource(import_module(name))
    return _described("str")


def _prose() -> Iterator[str]:
    """The language's own handbook, endlessly."""
    topics: dict[str, str] = {}
    with suppress(ImportError):
        topics = import_module("pydoc_data.topics").topics
    while True:
        for name in _PROSE:
            yield topics.get(name) or _described("property")


def _conversations(model: ModelFolder) -> Iterator[list[int]]:
    """Questions about built-in functions and their answers, as the model's chat template writes them."""
    while True:
        for name in _ASKED:
            question = {"role": "user", "content": f"What does {name} do in Python?"}
            answer = {"role": "assistant", "content": _described(name)}
            try:
                yield encode(model, chat_prompt(model, [question, answer], open_answer=False))
            except SpecdecError:
                yield model.tokenizer.encode(f"{question['content']}\n\n{answer['content']}\n\n")


def _described(name: str) -> str:
    return inspect.getdoc(getattr(builtins, name)) or name
