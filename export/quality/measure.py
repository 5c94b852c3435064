"""What an export costs and loses: time per forward pass, and distance to its unquantized source."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.checkpoint.weights import Layer, Weights
from specdec_onnx.export.graph.architecture import Architecture, read_architecture
from specdec_onnx.export.graph.builder import Dimension, Graph
from specdec_onnx.export.graph.transformer import Block
from specdec_onnx.export.quantization.linear import Float32
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import session_options

TEXT = '''\
The harbour lay quiet under a thin layer of fog when Marta opened the workshop. She had repaired clocks for thirty
years, and she still began each day in the same way: she lit the stove, wiped the bench, and listened. A healthy clock
has a rhythm that hardly anyone notices, while a sick one stumbles, hurries, or pauses before it strikes. On this
particular morning the tall clock from the town hall refused to speak at all. Its pendulum was straight, its spring was
new, and yet the hands had stopped at nine minutes past four. "You are not broken," she told it. "You are only afraid
of something." She took off the face and found a spider, which had tied two wheels together with remarkable patience.

Water boils at a lower temperature on a mountain than at the coast, because the air above presses on it less. At sea
level the boiling point is 100 degrees Celsius; at 3,000 metres it is close to 90. Cooking therefore takes longer, and
a pressure cooker, which raises the pressure again, saves fuel as well as time. The same idea explains why a liquid
can be distilled gently in a vacuum.

from dataclasses import dataclass, field


@dataclass
class Inventory:
    """Counts items by name and remembers the smallest stock that was ever seen."""

    items: dict[str, int] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int = 1) -> None:
        if count < 0:
            raise ValueError(f"cannot add {count} of {name}")
        self.items[name] = self.items.get(name, 0) + count
        self.lowest.setdefault(name, self.items[name])

    def remove(self, name: str, count: int = 1) -> int:
        available = self.items.get(name, 0)
        taken = min(available, count)
        self.items[name] = available - taken
        self.lowest[name] = min(self.lowest.get(name, available), available - taken)
        return taken


def binary_search(values: list[int], wanted: int) -> int | None:
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == wanted:
            return middle
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return None

Question: Which is larger, three quarters of eighty or two thirds of ninety-six?
Answer: Three quarters of 80 is 60. Two thirds of 96 is 64. So two thirds of ninety-six is larger, by 4.

Question: Name three things to check before a long bicycle tour.
Answer: First, the brakes: the pads should not be worn and the cables should move freely. Second, the tyres: look for
cuts, and pump them to the pressure printed on the side. Third, the chain: clean it, oil it, and replace it if it has
stretched. It also helps to carry a spare tube, a small pump and some water.

SELECT city, COUNT(*) AS visits, AVG(duration) AS minutes
FROM journeys
WHERE started >= '2024-01-01' AND cancelled = FALSE
GROUP BY city
HAVING COUNT(*) > 10
ORDER BY visits DESC;

Dear Ms Okafor, thank you for your letter of 12 March. We have looked at the measurements that you sent, and we agree
that the second sensor reads about half a degree too high. Please return it in the enclosed box; we will replace it free
of charge and send you the calibration sheet of the new one. We apologise for the trouble. Kind regards, the service
team.
'''


Array = NDArray[np.float32]


class FedGraph(Graph):
    """A graph whose float tensors are inputs; `feeds` holds what this instance was built with."""

    def __init__(self) -> None:
        super().__init__()
        self.feeds: dict[str, NDArray[Any]] = {}

    def feed(self, name: str, array: NDArray[Any]) -> str:
        """An input and its value."""
        self.feeds[name] = array
        return self.input(name, array.dtype, array.shape)

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[Dimension]) -> str:
        """As in any graph, but caches hold several texts."""
        texts = ["texts", *shape[1:]] if name.startswith("past_key_values.") else shape
        return super().input(name, dtype, texts)

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        """Float tensors are fed, all else is part of the graph."""
        array = np.asarray(value)
        return self.feed(name, array) if array.dtype.kind == "f" else super().constant(name, array)

    def weight(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], chunks: Iterable[NDArray[Any]]
    ) -> str:
        """The chunks joined, and fed."""
        array, filled = np.empty(int(np.prod(shape)), dtype), 0
        for chunk in chunks:
            array[filled : filled + chunk.size] = chunk.ravel()
            filled += chunk.size
        return self.feed(name, array.reshape(shape))


@dataclass(frozen=True)
class Tapped(Float32):
    """Float32 that notes which value each linear layer reads, under `qkv`, `output`, `gate_up` and `down`."""

    inputs: dict[str, str] = field(default_factory=dict)

    def linear(self, graph: Graph, x: str, weight: Array, name: str) -> str:
        """One MatMul, and a note."""
        self.inputs[name.removesuffix(".unbiased").rpartition(".")[2]] = x
        return super().linear(graph, x, weight, name)


class FloatModel:
    """A checkpoint run in float32 over whole texts."""

    def __init__(self, checkpoint: Checkpoint, architecture: Architecture | None = None) -> None:
        """As `architecture` reads it, if given; SpecdecError for a checkpoint that the exporter cannot read."""
        self._look = architecture or read_architecture(checkpoint.config)
        self._weights = Weights(checkpoint, self._look)
        self._sessions: dict[bytes, ort.InferenceSession] = {}

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position: [len(tokens), vocabulary]."""
        x = self.embed(np.asarray([tokens]))
        residual = np.zeros_like(x)
        for index in range(self._look.layers):
            x, residual, _ = self.layer(self._weights.layer(index), x, residual)
        return self._head(x + residual)[0]

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        """What the first layer reads of several texts [texts, length]: [texts, length, hidden]."""
        return self._weights.embedding()[tokens]

    def layer(self, layer: Layer, x: Array, residual: Array) -> tuple[Array, Array, dict[str, Array]]:
        """One layer over whole texts [texts, length, hidden]: its results, and what each linear layer read."""
        graph, (texts, length, _) = FedGraph(), x.shape
        graph.feed("x", x)
        graph.feed("residual", residual)
        graph.constant("seqlens_k", np.full(texts, length - 1, np.int32))
        graph.constant("total_sequence_length", np.array(length, np.int32))
        format = Tapped()
        outputs = Block(graph, self._look, format, length).layer(0, layer, "x", "residual")
        empty = np.zeros((texts, self._look.kv_heads, 0, self._look.head_dim), np.float32)
        graph.feeds |= {f"past_key_values.0.{kind}": empty for kind in ("key", "value")}
        x, residual, *read = self._run(graph, [*outputs, *format.inputs.values()])
        return x, residual, dict(zip(format.inputs, read, strict=True))

    def normed(self, x: Array) -> Array:
        """What the head reads: the final norm of [texts, length, hidden]."""
        graph = FedGraph()
        graph.feed("x", x)
        block = Block(graph, self._look, Float32(), x.shape[1])
        name, _ = block.norm("x", "", self._weights.final_norm(), "final_norm")
        return self._run(graph, [name])[0]

    def _head(self, x: Array) -> Array:
        graph = FedGraph()
        graph.feed("x", self.normed(x))
        block = Block(graph, self._look, Float32(), x.shape[1])
        return self._run(graph, [block.logits("x", self._weights.head(), Float32(), "logits")])[0]

    def _run(self, graph: FedGraph, outputs: Sequence[str]) -> Any:
        for name in dict.fromkeys(outputs):
            graph.output(name, np.float32, [f"axis_{axis}" for axis in range(3)])
        model = graph.serialize()
        if model not in self._sessions:
            self._sessions[model] = ort.InferenceSession(model, session_options())
        return self._sessions[model].run(outputs, graph.feeds)


REFERENCE = "fp32"
"""What quality is measured against: the source's own weights, in float arithmetic."""

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 300
TOKENS = 768
_CHUNK = 64
_REPEATS, _LAPS = 7, 3

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """Distance of a graph's predictions to its source's over `tokens` positions of the built-in text.

    `kl_mean` is in nats; a trimmed head is compared on the ids it keeps, and `kept_probability` is the share of
    the source's belief that lies on them. Perplexities are those of the text, on the same ids.
    """

    tokens: int
    kl_mean: float
    top1_agreement: float
    kept_probability: float
    perplexity: float
    source_perplexity: float


def measure(model: ModelFolder, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Forward cost and quality, as report.json holds them; only the cost without a float source."""
    costs = {str(width): round(ms, 3) for width, ms in forward_cost_ms(model).items()}
    if checkpoint is None:
        return {"forward_cost_ms": costs}
    source = FloatModel(checkpoint, read_architecture(checkpoint.config, model.context_length))
    quality = asdict(compare(source.logits(text_tokens(model)), model))
    tokens = quality.pop("tokens")
    if model.trimmed_vocabulary is None:
        del quality["kept_probability"]
    return {"forward_cost_ms": costs, **quality, "quality_reference": REFERENCE, "quality_tokens": tokens}


def forward_cost_ms(model: ModelFolder, widths: Sequence[int] = WIDTHS) -> dict[int, float]:
    """Milliseconds of a pass over S tokens behind 300 others, the median of several, for each S."""
    widths = [width for width in widths if width < _limit(model)]
    context = min(CONTEXT, _limit(model) - max(widths))
    decoder = Decoder.open(model, capacity=context + max(widths))
    tokens = _tokens(model, context + max(widths))
    decoder.forward(tokens[:context], keep=1)
    return {width: 1000 * _time_pass(decoder, tokens[context : context + width], context) for width in widths}


def steady_cost_ms(models: Sequence[ModelFolder], widths: Sequence[int] = WIDTHS) -> list[dict[int, float]]:
    """Forward costs of models that are to be compared: they take turns, and the fastest turn of each width counts.

    Only one of them is in memory at a time; what else the machine does must last several turns to bend the result.
    """
    laps = [[forward_cost_ms(model, widths) for model in models] for _ in range(_LAPS)]
    return [
        {width: min(costs[width] for costs in turns) for width in turns[0]}
        for turns in zip(*laps, strict=True)
    ]


def text_tokens(model: ModelFolder, count: int = TOKENS) -> list[int]:
    """The first tokens of the built-in text, as many as the model can hold."""
    return model.tokenizer.encode(TEXT)[: min(count, _limit(model))]


def compare(reference: Rows, model: ModelFolder) -> Quality:
    """Quality of `model` against the logits [tokens, vocabulary] that its source gives for `text_tokens`."""
    kept, tokens = model.trimmed_vocabulary, text_tokens(model, len(reference))
    decoder = Decoder.open(model, capacity=len(tokens) + 1)
    divergence, agreed, share, surprise = 0.0, 0, 0.0, np.zeros((2, 0))
    for first in range(0, len(tokens), _CHUNK):
        theirs, ours = reference[first : first + _CHUNK], decoder.forward(tokens[first : first + _CHUNK])
        best = ours.argmax(axis=1) if kept is None else kept[ours.argmax(axis=1)]
        agreed += int((best == theirs.argmax(axis=1)).sum())
        part = theirs if kept is None else theirs[:, kept]
        share += float(np.exp(_log_sum(part) - _log_sum(theirs)).sum())
        divergence += float(_divergence(part, ours).sum())
        following = np.array(tokens[first + 1 : first + _CHUNK + 1])
        both = [_surprise(rows, following, kept) for rows in (ours, part)]
        surprise = np.concatenate([surprise, both], axis=1)
    count, perplexities = len(tokens), np.exp(surprise.mean(axis=1)) if surprise.size else np.ones(2)
    return Quality(count, divergence / count, agreed / count, share / count, *map(float, perplexities))


def _surprise(
    logits: Rows, following: NDArray[np.int64], kept: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Nats of each next token, of those among the `kept` ids that the columns stand for."""
    rows, columns = np.arange(len(following)), following
    if kept is not None:
        rows = np.flatnonzero(np.isin(following, kept))
        columns = np.searchsorted(kept, following[rows])
    chosen = logits[rows].astype(np.float64)
    return _log_sum(logits[rows]) - chosen[np.arange(len(rows)), columns]


def _divergence(reference: Rows, other: Rows) -> NDArray[np.float64]:
    """KL(reference ‖ other) of each row, in nats."""
    left = reference.astype(np.float64) - _log_sum(reference)[:, None]
    right = other.astype(np.float64) - _log_sum(other)[:, None]
    return (np.exp(left) * (left - right)).sum(axis=1)


def _log_sum(logits: Rows) -> NDArray[np.float64]:
    peak = logits.max(axis=1, keepdims=True).astype(np.float64)
    return np.log(np.exp(logits - peak).sum(axis=1)) + peak[:, 0]


def _time_pass(decoder: Decoder, tokens: Sequence[int], start: int) -> float:
    seconds = []
    for _ in range(_REPEATS + 1):
        decoder.rollback(start)
        began = time.perf_counter()
        decoder.forward(tokens)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


def _tokens(model: ModelFolder, count: int) -> list[int]:
    tokens = model.tokenizer.encode(TEXT)
    return (tokens * (1 + count // len(tokens)))[:count]


def _limit(model: ModelFolder) -> int:
    """Most tokens a pass may reach; one is left for the row a lone token is padded with."""
    return model.context_length - 1
