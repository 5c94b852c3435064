"""Weights fitted to a format by each layer's activations on real text; the graph stays the same."""

import builtins
import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.checkpoint.weights import Layer, Weights
from specdec_onnx.export.graph.architecture import Architecture
from specdec_onnx.export.quality.float_model import FloatModel
from specdec_onnx.export.quantization.linear import Calibrated
from specdec_onnx.export.quantization.smoothing import Smoothing, best_smoothing
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.text.prompt import chat_prompt, encode

Array = NDArray[np.float32]

SEGMENTS = 6
"""How many texts are read; several, because the first token of a text is unlike all others."""

LENGTH = 192
"""Tokens of a text."""

_PROSE = ("assignment", "exceptions", "formatstrings", "debugger", "typesseq", "import")
_CODE = ("heapq", "textwrap", "statistics", "bisect", "json.decoder", "fractions", "calendar", "random")
_ASKED = ("sorted", "print", "open", "int", "enumerate", "zip", "str", "property", "range", "sum")

_KINDS = ("qkv", "output", "gate_up", "down")
_HEADS = ("logits", "logits.unbounded", "trimmed_logits", "trimmed_logits.unbounded")


class CalibratedWeights(Weights):
    """A checkpoint's weights, smoothed as they are read in this order: embedding, layers, final norm, head.

    The float model runs along, one layer at a time, unless all matrices are copied as stored. So every layer is
    fitted to the activations of the unquantized model. Scales are folded into what feeds a layer: its norm, the value projection, or the gated product.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        architecture: Architecture,
        format: Calibrated,
        tokens: NDArray[np.int64],
    ) -> None:
        """`tokens` are several texts [texts, length]."""
        super().__init__(checkpoint, architecture, format)
        self._architecture, self._format, self._tokens = architecture, format, tokens
        self._model = FloatModel(checkpoint, architecture)
        self._x = self._residual = np.zeros(0, np.float32)
        self._smoothed_head: Array | None = None
        self.choices: dict[str, Smoothing] = {}
        self.float_activations: list[str] = []

    def embedding(self) -> Array:
        """As stored; the calibration texts start here."""
        table = super().embedding()
        self._x = table[self._tokens]
        self._residual = np.zeros_like(self._x)
        return table

    def layer(self, index: int) -> Layer:
        """Layer `index`, smoothed; ValueError if the layers before it have not been read."""
        if index != len(self.choices) // len(_KINDS) or not self._x.size:
            raise ValueError("layers are read in order, after the embedding")
        layer, name = super().layer(index), f"layer.{index}"
        rows = {} if self.all_stored else self._run(layer)
        if not self._is_copied(layer, name, "qkv"):
            layer.input_norm = self._normed(f"{name}.qkv", rows["qkv"], layer.input_norm, layer.qkv)
        if not self._is_copied(layer, name, "gate_up"):
            layer.post_norm = self._normed(f"{name}.gate_up", rows["gate_up"], layer.post_norm, layer.gate_up)
        if not self._is_copied(layer, name, "output"):
            self._values(layer, rows["output"], name)
        if not self._is_copied(layer, name, "down"):
            self._product(layer, rows["down"], name)
        return layer

    def _run(self, layer: Layer) -> dict[str, Array]:
        """Run a layer of the float model; the rows that each of its matrices reads."""
        self._x, self._residual, read = self._model.layer(layer, self._x, self._residual)
        return {kind: values.reshape(-1, values.shape[-1]) for kind, values in read.items()}

    def _is_copied(self, layer: Layer, name: str, kind: str) -> bool:
        """Whether the layer's matrix is copied as stored; if so, that is noted."""
        matrix, _, stored = layer.linear(kind)
        if stored is not None:
            self.choices[f"{name}.{kind}"] = _copied(matrix.shape[1])
        return stored is not None

    def final_norm(self) -> Array:
        """The final norm, with the head's scales in it."""
        if self.copies_head:
            self.choices["head"] = _copied(self._architecture.hidden)
            return super().final_norm()
        rows, self._smoothed_head = self._model.normed(self._x + self._residual), super().head()
        choice = best_smoothing(self._format, rows.reshape(-1, rows.shape[-1]), self._smoothed_head)
        self._smoothed_head *= self._note("head", choice)
        return super().final_norm() / choice.scales

    def head(self) -> Array:
        """The head that fits the final norm; it can be read once."""
        if self._smoothed_head is None:
            raise ValueError("the head is read after the final norm, once")
        head, self._smoothed_head = self._smoothed_head, None
        return head

    def _normed(self, name: str, rows: Array, norm: Array | None, weight: Array) -> Array | None:
        """Smooth a layer after a norm; returns the norm's new weight. Without a norm, only note what matters."""
        if norm is None:
            self._note(name, best_smoothing(self._format, rows, weight, rules=()))
            return None
        scales = self._note(name, best_smoothing(self._format, rows, weight))
        weight *= scales
        return norm / scales

    def _values(self, layer: Layer, rows: Array, name: str) -> None:
        """Smooth the output projection, after the value rows of the packed projection, which heads share."""
        architecture, width = self._architecture, self._architecture.qkv_sizes[2]
        if "qkv" in layer.blocks:
            self._normed(f"{name}.output", rows, None, layer.output)
            return
        group = (architecture.heads // architecture.kv_heads, architecture.head_dim)
        scales = self._note(f"{name}.output", best_smoothing(self._format, rows, layer.output, group))
        layer.output *= scales
        once = scales.reshape(architecture.kv_heads, *group)[:, 0].reshape(-1, 1)
        layer.qkv[-width:] /= once
        if layer.qkv_bias is not None:
            layer.qkv_bias[-width:] /= once[:, 0]

    def _product(self, layer: Layer, rows: Array, name: str) -> None:
        """Smooth the down projection, after the upper half of the packed gate and up projections."""
        if "gate_up" in layer.blocks:
            self._normed(f"{name}.down", rows, None, layer.down)
            return
        scales = self._note(f"{name}.down", best_smoothing(self._format, rows, layer.down))
        layer.down *= scales
        layer.gate_up[len(scales) :] /= scales[:, None]
        if layer.gate_up_bias is not None:
            layer.gate_up_bias[len(scales) :] /= scales

    def _note(self, name: str, choice: Smoothing) -> Array:
        """Remember what was chosen, and tell the format; returns the scales."""
        self.choices[name] = choice
        names = _HEADS if name == "head" else (name, f"{name}.unbiased")
        if self._format.calibrate(names, choice.importance, choice.after, choice.power):
            self.float_activations.append(name)
        return choice.scales


def _copied(channels: int) -> Smoothing:
    """What is noted of a matrix that is copied as stored."""
    ones = np.ones(channels, np.float32)
    return Smoothing(ones, ones, "copied", 0.0, 0.0, 0.0)


def summary(weights: CalibratedWeights) -> dict[str, Any]:
    """What was chosen, for report.json: how often each rule, the mean error of each kind of layer, exceptions."""
    choices = weights.choices
    kinds: dict[str, list[Smoothing]] = {}
    for name, choice in choices.items():
        kinds.setdefault(name.rpartition(".")[2], []).append(choice)
    rules = [choice.rule for choice in choices.values()]
    results: dict[str, Any] = {
        "rules": {rule: rules.count(rule) for rule in sorted(set(rules))},
        "error": {kind: _errors(choices) for kind, choices in kinds.items()},
    }
    return results | ({"float_activations": weights.float_activations} if weights.float_activations else {})


def _errors(choices: list[Smoothing]) -> dict[str, float]:
    means = {key: np.mean([getattr(choice, key) for choice in choices]) for key in ("before", "after")}
    return {key: float(f"{mean:.3g}") for key, mean in means.items()}


def segments(model: ModelFolder, count: int = SEGMENTS, length: int = LENGTH) -> NDArray[np.int64]:
    """Token ids [count, length], shorter for a short context: code, prose and conversations in turn."""
    length = min(length, model.context_length)
    encoded = model.tokenizer.encode
    kinds = (map(encoded, _code()), map(encoded, _prose()), _conversations(model))
    rows = [_take(kinds[index % 3], length) for index in range(count)]
    return np.array(rows, np.int64)


def _take(texts: Iterator[list[int]], length: int) -> Sequence[int]:
    """The next texts, as token ids, joined until they fill a row."""
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += next(texts)
    return tokens[:length]


def _code() -> Iterator[str]:
    """Pieces of modules, endlessly: the later half of each, after the licence and long comments."""
    while True:
        for name in _CODE:
            lines = _source(name).splitlines(keepends=True)
            yield "".join(lines[len(lines) // 2 :][:120])


def _source(name: str) -> str:
    """A module's source; another text if it is not installed."""
    with suppress(ImportError, OSError, TypeError):
        return inspect.getsource(import_module(name))
    return _described("str")


def _prose() -> Iterator[str]:
    """Chapters of Python's own handbook, endlessly."""
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
