"""One model folder: graph, tokenizer, configurations and the facts only the exporter knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.checkpoint.layer_subset import Shortened
from specdec_onnx.export.checkpoint.weights import Weights
from specdec_onnx.export.graph.architecture import Architecture, read_architecture
from specdec_onnx.export.graph.genai_config import model_config
from specdec_onnx.export.graph.half_cache import halve_cache
from specdec_onnx.export.graph.transformer import GRAPH_FILE, Recipe, Step, write_graph
from specdec_onnx.export.graph.vocabulary import Trimming, trim
from specdec_onnx.export.quantization.calibration import CalibratedWeights, segments, summary, token_counts
from specdec_onnx.export.quantization.linear import Calibrated, Format
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model

CONTEXT = 32768
"""Most positions the rotary tables cover unless another number is asked for."""

_TOOLS = ("specdec-onnx", "onnx", "onnxruntime", "numpy")
_OWN_KEYS = ("rope_freq_factors",)


Depth = int | Literal["auto"]
Cache = Literal["fp32", "fp16"]


@dataclass(frozen=True)
class Order:
    """What to make of one checkpoint; `trim` is how many token ids the head keeps, None for all.

    `smooth`: calibrate on text, in formats that gain from it. `graph`: "fused" or "portable". `trim_by`: the "lowest"
    ids, or those of the highest "frequency". `layers` are those that stay, None for all; `depth` is how many are to be
    chosen by their effect. Of the formats `candidates`, if there are any, the best is taken.
    """

    format: Format
    trim: int | None = None
    context: int = CONTEXT
    smooth: bool = True
    graph: str = "fused"
    trim_by: str = "lowest"
    layers: tuple[int, ...] | None = None
    depth: Depth | None = None
    candidates: tuple[Format, ...] = ()
    cache: Cache = "fp32"


class Writer(Protocol):
    """Fills an empty folder with one model: first what describes it, then the graph."""

    @property
    def steps(self) -> int:
        """How many steps `build` reports."""
        ...

    @property
    def format_name(self) -> str:
        """As people write it."""
        ...

    @property
    def findings(self) -> Mapping[str, Any]:
        """What else belongs in the report, once the graph is written."""
        ...

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        ...

    def build(self, step: Step) -> dict[str, int]:
        """Write the graph and the facts; returns the bytes of each tensor."""
        ...


class ModelWriter:
    """Fills an empty folder with one model: first what describes it, then the graph."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, order: Order) -> None:
        """SpecdecError for an unknown family or a missing tensor; nothing is written yet."""
        self.checkpoint = checkpoint if order.layers is None else Shortened(checkpoint, order.layers)
        self.folder, self.order = folder, order
        self.architecture: Architecture = read_architecture(self.checkpoint.config, order.context)
        self._weights = Weights(self.checkpoint, self.architecture, order.format)
        self._positions = min(self.architecture.context, order.context)
        self.steps = self.architecture.layers + 2

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        return describe(self.checkpoint, self.folder)

    def build(self, step: Step) -> dict[str, int]:
        """Write the graph and the facts; returns the bytes of each tensor."""
        self._calibrate()
        recipe = Recipe(self.order.format, self.order.format, self._positions, self._trimming())
        self._graph_folder.mkdir()
        sizes = write_graph(self._graph_folder, self._weights, self.architecture, recipe, step)
        write_json(self.folder / "specdec.json", self._facts(recipe.trimming))
        if self.order.cache == "fp16":
            halve_cache(self.folder)
        model = open_model(self.folder)
        write_json(self.folder / "genai_config.json", model_config(model, self.architecture, self._positions))
        return sizes

    @property
    def format_name(self) -> str:
        """As people write it."""
        return self.order.format.name

    @property
    def calibration(self) -> dict[str, Any] | None:
        """What calibrating found, once the graph is written."""
        return summary(self._weights) if isinstance(self._weights, CalibratedWeights) else None

    @property
    def findings(self) -> Mapping[str, Any]:
        """How many of the source's tensors were written as it stores them, and what calibrating found."""
        carried = {"carried_tensors": len(self._weights.carried)}
        return carried if self.calibration is None else carried | {"calibration": self.calibration}

    def _calibrate(self) -> None:
        format = self.order.format
        if self.order.smooth and isinstance(format, Calibrated):
            tokens = segments(self._described())
            self._weights = CalibratedWeights(self.checkpoint, self.architecture, format, tokens)

    @property
    def _graph_folder(self) -> Path:
        return self.folder / "onnx"

    def _trimming(self) -> Trimming | None:
        if self.order.trim is None:
            return None
        model = self._described()
        seen = token_counts(model) if self.order.trim_by == "frequency" else None
        return trim(self.order.trim, model.tokenizer.added_ids, self.architecture.vocabulary, seen)

    def kept_ids(self) -> NDArray[np.int64] | None:
        """The ids that the head scores, None for all; the folder has been described before."""
        trimming = self._trimming()
        return None if trimming is None else trimming.ids()

    def _described(self) -> ModelFolder:
        """The folder before it has a graph."""
        return open_model(self.folder, self._graph_folder / GRAPH_FILE)

    def _facts(self, trimming: Trimming | None) -> dict[str, Any]:
        source = self.checkpoint.source
        facts: dict[str, Any] = {
            "name": source.name,
            "format": self.order.format.name,
            "context_length": self._positions,
            "source": {"file": source.file, "sha256": source.sha256},
            "versions": {tool: version(tool) for tool in _TOOLS},
        }
        if self.calibration is not None:
            facts["calibration"] = self.calibration
        if self.order.layers is not None:
            facts["kept_layers"] = list(self.order.layers)
        if trimming is not None:
            facts["trimmed_vocabulary"] = [list(bounds) for bounds in trimming.ranges]
        return facts


def describe(checkpoint: Checkpoint, folder: Path) -> ModelFolder:
    """Write tokenizer and config.json into `folder`; SpecdecError if the two do not fit."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_tokenizer(folder)
    config = {key: value for key, value in checkpoint.config.items() if key not in _OWN_KEYS}
    write_json(folder / "config.json", config)
    model = open_model(folder, folder / "onnx" / GRAPH_FILE)
    require_fitting_tokenizer(model, checkpoint.source.file)
    return model


def require_fitting_tokenizer(model: ModelFolder, source: str) -> None:
    """SpecdecError, naming `source`, when it has no tokenizer, or one with tokens that the model does not score."""
    what, fix = f"{source} cannot be exported", "get the source again"
    try:
        size = model.tokenizer.size
    except SpecdecError as error:
        raise SpecdecError(what, f"its tokenizer cannot be used: {error.why or error.what}", fix) from error
    if size > model.vocab_size:
        why = f"the tokenizer has {size} tokens, the model scores only {model.vocab_size}: they don't belong together"
        raise SpecdecError(what, why, fix)
