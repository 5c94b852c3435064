"""A folder that holds an ONNX graph already: taken as it is, and laid out like our own."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from specdec_onnx.export.checkpoint import Source
from specdec_onnx.export.graph.genai_config import plain_config
from specdec_onnx.export.graph.model_writer import require_fitting_tokenizer
from specdec_onnx.export.graph.transformer import Step
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, inside, open_model

FORMAT = "ready"
"""What reports call the format of a graph that was not made here."""

_BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
_TOOLS = ("specdec-onnx", "onnxruntime")


@dataclass(frozen=True)
class ReadyModel:
    """A model folder as ONNX Runtime GenAI, onnx-community or Optimum lay it out."""

    model: ModelFolder

    @property
    def source(self) -> Source:
        """Its files, graph first."""
        name = self.model.path.resolve().name
        return Source(name, name, (self.model.graph, *data_of(self.model.graph)))


def find_ready(path: Path) -> ReadyModel | None:
    """The ready model in a folder without safetensors, None if there is none; SpecdecError if it lacks something."""
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    if not any(path.glob("*.onnx")) and not any(path.glob("onnx/*.onnx")):
        return None
    model = open_model(path)
    require_fitting_tokenizer(model, str(path))
    return ReadyModel(model)


def data_of(graph: Path) -> tuple[Path, ...]:
    """The files of a graph's external data; SpecdecError if one is missing or lies outside its folder."""
    try:
        model = onnx.load(graph, load_external_data=False)
    except Exception as error:  # whatever the parser found
        raise SpecdecError(f"{graph} is not an ONNX graph", str(error), "get the model again") from error
    tensors = [tensor for tensor in model.graph.initializer if tensor.external_data]
    names = sorted(
        {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    )
    files = tuple(inside(graph.parent, name) for name in names)
    for file in files:
        if not file.is_file():
            raise SpecdecError(
                f"{graph} lacks its data", f"{file.name} is not beside it", "get the model again"
            )
    return files


def _require_working(model: ModelFolder) -> None:
    from specdec_onnx.runtime.model.decoder import Decoder

    decoder = Decoder.open(model, capacity=min(8, model.context_length))
    try:
        decoder.forward([0, 0])
    except SpecdecError as error:
        raise SpecdecError(
            f"{model.graph} does not work", f"{error.what}: {error.why}", "get the model again"
        ) from error


class ReadyWriter:
    """Fills an empty folder with a ready model: what describes it, then the graph."""

    steps = 1
    format_name = FORMAT
    findings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, ready: ReadyModel, folder: Path) -> None:
        """SpecdecError for a graph without its data, or one that can't verify drafts; nothing is written yet."""
        self.ready, self.folder = ready, folder
        self._source = ready.source
        self._config = self._genai()
        _require_working(ready.model)

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        model = self.ready.model
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in _BESIDE:
            if (model.path / name).is_file():
                shutil.copyfile(model.path / name, self.folder / name)
        write_json(self.folder / "config.json", model.config)
        return open_model(self.folder, self._goal)

    def build(self, step: Step) -> dict[str, int]:
        """Copy the graph and its data, write the facts; returns the bytes of each file."""
        step("copying", 0, 1)
        sizes = {}
        for part in self._source.parts:
            goal = self._goal.parent / part.relative_to(self.ready.model.graph.parent)
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part, goal)
            sizes[part.name] = part.stat().st_size
        write_json(self.folder / "specdec.json", self._facts())
        write_json(self.folder / "genai_config.json", self._config)
        step("copying", 1, 1)
        return sizes

    @property
    def _goal(self) -> Path:
        return self.folder / "onnx" / self.ready.model.graph.name

    def _facts(self) -> dict[str, Any]:
        source = self._source
        return {
            "name": source.name,
            "format": self.format_name,
            "source": {"file": source.file, "sha256": source.sha256},
            "versions": {tool: version(tool) for tool in _TOOLS},
        }

    def _genai(self) -> Mapping[str, Any]:
        """The model's own genai_config.json, the graph where it now lies; a plain one if it has none."""
        file = self.ready.model.path / "genai_config.json"
        if not file.is_file():
            return plain_config(self.ready.model, f"onnx/{self._goal.name}")
        config = json.loads(file.read_text(encoding="utf-8"))
        config["model"]["decoder"]["filename"] = f"onnx/{self._goal.name}"
        return dict(config)
