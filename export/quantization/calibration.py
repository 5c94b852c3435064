"""Weights prepared for a format by what each layer reads of real text; the graph stays as it is."""

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
from specdec_onnx.export.quality.measure import FloatModel
from specdec_onnx.export.quantization.linear import Calibrated, RowwiseInt8
from specdec_onnx.export.quantization.smoothing import Choice, choose
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.text.prompt import chat_prompt, encode

Array = NDArray[np.float32]

_KINDS = ("qkv", "output", "gate_up", "down")
TOLERATED_ERROR = 0.01
"""Squared error of a w8a8 layer, as a share of what it gives, from which its activations are left in float."""

_HEADS = ("logits", "logits.unbounded", "trimmed_logits", "trimmed_logits.unbounded")


class CalibratedWeights(Weights):
    """A checkpoint's weights, each smoothed when it is read: embedding, layers in order, final norm, head.

    The float model runs along, one layer at a time, so every layer is seen with the activations of the unquantized
    model. Scales are folded into whatever feeds a layer: its norm, the value projection, the gated product.
    """

    def __init__(
        self, checkpoint: Checkpoint, look: Architecture, format: Calibrated, tokens: NDArray[np.int64]
    ) -> None:
        """`tokens` are several texts [texts, length]."""
        super().__init__(checkpoint, look, format)
        self._look, self._format, self._tokens = look, format, tokens
        self._model = FloatModel(checkpoint, look)
        self._x = self._residual = np.zeros(0, np.float32)
        self._ready: Array | None = None
        self.choices: dict[str, Choice] = {}
        self.spared: list[str] = []

    def embedding(self) -> Array:
        """As it is; the texts start here."""
        table = super().embedding()
        self._x = table[self._tokens]
        self._residual = np.zeros_like(self._x)
        return table

    def layer(self, index: int) -> Layer:
        """Block `index`, smoothed; its predecessors have been read before."""
        if index != len(self.choices) // len(_KINDS) or not self._x.size:
            raise ValueError("layers are read in order, behind the embedding")
        layer, name = super().layer(index), f"layer.{index}"
        self._x, self._residual, read = self._model.layer(layer, self._x, self._residual)
        rows = {kind: values.reshape(-1, values.shape[-1]) for kind, values in read.items()}
        if not self._is_carried(layer, name, "qkv"):
            layer.input_norm = self._normed(f"{name}.qkv", rows["qkv"], layer.input_norm, layer.qkv)
        if not self._is_carried(layer, name, "gate_up"):
            layer.post_norm = self._normed(f"{name}.gate_up", rows["gate_up"], layer.post_norm, layer.gate_up)
        if not self._is_carried(layer, name, "output"):
            self._values(layer, rows["output"], name)
        if not self._is_carried(layer, name, "down"):
            self._product(layer, rows["down"], name)
        return layer

    def _is_carried(self, layer: Layer, name: str, kind: str) -> bool:
        """Whether the layer's matrix stays as it is stored; if so, that is noted."""
        carried = kind in layer.blocks
        if carried:
            self.choices[f"{name}.{kind}"] = _carried(getattr(layer, kind).shape[1])
        return carried

    def final_norm(self) -> Array:
        """The last norm, with the head's scales in it."""
        rows, self._ready = self._model.normed(self._x + self._residual), super().head()
        if self.head_blocks() is not None:
            self.choices["head"] = _carried(self._ready.shape[1])
            return super().final_norm()
        choice = choose(self._format, rows.reshape(-1, rows.shape[-1]), self._ready)
        self._ready *= self._note("head", choice)
        return super().final_norm() / choice.scales

    def head(self) -> Array:
        """The head that fits the last norm; it is kept nowhere else."""
        if self._ready is None:
            raise ValueError("the head is read after the last norm, once")
        head, self._ready = self._ready, None
        return head

    def _normed(self, name: str, rows: Array, norm: Array | None, weight: Array) -> Array | None:
        """Smooth a layer behind a norm; returns the norm's new weight. Without one it is only noted what matters."""
        if norm is None:
            self._note(name, choose(self._format, rows, weight, rules=()))
            return None
        scales = self._note(name, choose(self._format, rows, weight))
        weight *= scales
        return norm / scales

    def _values(self, layer: Layer, rows: Array, name: str) -> None:
        """The output projection, behind the value rows of the packed projection, which heads share."""
        look, width = self._look, self._look.qkv_sizes[2]
        if "qkv" in layer.blocks:
            self._normed(f"{name}.output", rows, None, layer.output)
            return
        group = (look.heads // look.kv_heads, look.head_dim)
        scales = self._note(f"{name}.output", choose(self._format, rows, layer.output, group))
        layer.output *= scales
        once = scales.reshape(look.kv_heads, *group)[:, 0].reshape(-1, 1)
        layer.qkv[-width:] /= once
        if layer.qkv_bias is not None:
            layer.qkv_bias[-width:] /= once[:, 0]

    def _product(self, layer: Layer, rows: Array, name: str) -> None:
        """The down projection, behind the upper half of the packed gate and up projections."""
        if "gate_up" in layer.blocks:
            self._normed(f"{name}.down", rows, None, layer.down)
            return
        scales = self._note(f"{name}.down", choose(self._format, rows, layer.down))
        layer.down *= scales
        layer.gate_up[len(scales) :] /= scales[:, None]
        if layer.gate_up_bias is not None:
            layer.gate_up_bias[len(scales) :] /= scales

    def _note(self, name: str, choice: Choice) -> Array:
        """Remember what was chosen, and tell the format what the layer reads; returns the scales."""
        self.choices[name] = choice
        names = _HEADS if name == "head" else (name, f"{name}.unbiased")
        self._format.importance.update(dict.fromkeys(names, choice.importance))
        if isinstance(self._format, RowwiseInt8) and choice.after > TOLERATED_ERROR:
            self._format.spared.update(names)
            self.spared.append(name)
        return choice.scales


def _carried(channels: int) -> Choice:
    """What is noted of a matrix that is not rounded here."""
    ones = np.ones(channels, np.float32)
    return Choice(ones, ones, "carried over", 0.0, 0.0)


def summary(weights: CalibratedWeights) -> dict[str, Any]:
    """What was chosen, as report.json holds it: how often each rule, the mean error of each kind of layer, exceptions."""
    choices = weights.choices
    kinds: dict[str, list[Choice]] = {}
    for name, choice in choices.items():
        kinds.setdefault(name.rpartition(".")[2], []).append(choice)
    rules = [choice.rule for choice in choices.values()]
    found: dict[str, Any] = {
        "rules": {rule: rules.count(rule) for rule in sorted(set(rules))},
        "error": {kind: _errors(choices) for kind, choices in kinds.items()},
    }
    return found | ({"float_activations": weights.spared} if weights.spared else {})


def _errors(choices: list[Choice]) -> dict[str, float]:
    means = {key: np.mean([getattr(choice, key) for choice in choices]) for key in ("before", "after")}
    return {key: float(f"{mean:.3g}") for key, mean in means.items()}


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
