"""One model folder: graph, tokenizer, configurations and the facts that only the exporter knows."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import Checkpoint, SourceFiles
from specdec_onnx.export.checkpoint.weights import Weights
from specdec_onnx.export.graph.architecture import Architecture, read_architecture
from specdec_onnx.export.graph.genai_config import model_config
from specdec_onnx.export.graph.half_cache import halve_cache
from specdec_onnx.export.graph.transformer import GRAPH_FILE, Recipe, write_graph
from specdec_onnx.export.graph.vocabulary import Trimming, trim
from specdec_onnx.export.quantization.calibration import CalibratedWeights, segments, summary
from specdec_onnx.export.quantization.linear import AsStored, Calibrated
from specdec_onnx.export.spec import ModelSpec
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.progress import Progress

_TOOLS = ("specdec-onnx", "onnx", "onnxruntime", "numpy")

_ROUNDED_ANEW = (
    "Blocks with zero points were rounded anew, as int4: specdec's kernels are not available here, "
    "and ONNX Runtime's take 15 times as long for them."
)

_OWN_KEYS = ("rope_freq_factors",)
"""Keys of a checkpoint's config that Hugging Face's config.json does not have."""


class ModelWriter:
    """Fills an empty folder with one model, its graph built by us."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, spec: ModelSpec) -> None:
        """SpecdecError for an unknown family or a missing tensor; nothing is written yet."""
        self.checkpoint, self.folder, self.spec = checkpoint, folder, spec
        self.architecture: Architecture = read_architecture(checkpoint.config, spec.context)
        self.format_name = spec.format.name
        self.steps = self.architecture.layers + 2
        self._weights = Weights(checkpoint, self.architecture, spec.format)
        self._positions = min(self.architecture.context, spec.context)

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        return describe(self.checkpoint, self.folder)

    def build(self, progress: Progress) -> dict[str, int]:
        """Write the graph and specdec.json; returns the bytes of each tensor."""
        if self.spec.smooth and isinstance(self.spec.format, Calibrated):
            tokens = segments(self._described())
            self._weights = CalibratedWeights(self.checkpoint, self.architecture, self.spec.format, tokens)
        trimming = self._trimming()
        recipe = Recipe(self.spec.format, self._positions, trimming)
        (self.folder / "onnx").mkdir()
        sizes = write_graph(self.folder / "onnx", self._weights, self.architecture, recipe, progress)
        if isinstance(self.spec.format, AsStored) and not self._weights.has_blocks:
            self.format_name = self.spec.format.otherwise
        write_json(self.folder / "specdec.json", self._facts(trimming))
        if self.spec.cache == "fp16":
            halve_cache(self.folder)
        config = model_config(open_model(self.folder), self.architecture, self._positions)
        write_json(self.folder / "genai_config.json", config)
        return sizes

    @property
    def findings(self) -> Mapping[str, Any]:
        """How many of the source's tensors were copied as stored, what calibration found, and what to know."""
        weights, format = self._weights, self.spec.format
        is_rounded_anew = isinstance(format, AsStored) and not format.offsets and weights.lost_zeros
        notes = {"notes": [_ROUNDED_ANEW]} if is_rounded_anew else {}
        return {"copied_tensors": len(weights.copied), **self._calibration(), **notes}

    def kept_ids(self) -> NDArray[np.int64] | None:
        """The ids that the head scores, None for all; `describe` comes first."""
        trimming = self._trimming()
        return None if trimming is None else trimming.ids()

    def _calibration(self) -> dict[str, Any]:
        weights = self._weights
        return {"calibration": summary(weights)} if isinstance(weights, CalibratedWeights) else {}

    def _trimming(self) -> Trimming | None:
        if self.spec.trim is None:
            return None
        return trim(self.spec.trim, self._described().tokenizer.added_ids, self.architecture.vocabulary)

    def _described(self) -> ModelFolder:
        """The folder before it has a graph."""
        return open_model(self.folder, self.folder / "onnx" / GRAPH_FILE)

    def _facts(self, trimming: Trimming | None) -> dict[str, Any]:
        facts = model_facts(self.checkpoint.source, self.format_name, _TOOLS)
        facts |= {"context_length": self._positions, **self._calibration()}
        if self._weights.has_zeros:
            facts["zero_points"] = "float"
        if trimming is not None:
            facts["trimmed_vocabulary"] = [list(bounds) for bounds in trimming.ranges]
        return facts


def model_facts(source: SourceFiles, format: str, packages: Sequence[str]) -> dict[str, Any]:
    """What specdec.json records of any model; `packages` are those whose versions matter."""
    return {
        "name": source.name,
        "format": format,
        "source": {"file": source.file, "sha256": source.sha256},
        "versions": {package: version(package) for package in packages},
    }


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
    """SpecdecError, naming `source`, for a missing tokenizer or one with tokens that the model does not score."""
    what, fix = f"{source} cannot be exported", "download the source again"
    try:
        size = model.tokenizer.size
    except SpecdecError as error:
        raise SpecdecError(what, f"its tokenizer cannot be used: {error.why or error.what}", fix) from error
    if size > model.vocab_size:
        why = f"the tokenizer has {size} tokens, but the model scores only {model.vocab_size}: they do not match"
        raise SpecdecError(what, why, fix)
