"""A folder that already holds an ONNX graph: taken as it is, and laid out like our own."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from specdec_onnx.export.checkpoint import TOKENIZER_FILES, SourceFiles, copy_files
from specdec_onnx.export.graph.genai_config import prebuilt_config
from specdec_onnx.export.graph.model_writer import model_facts, require_fitting_tokenizer
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, inside, open_model
from specdec_onnx.models.progress import Progress

FORMAT = "prebuilt"
"""The format in reports and specdec.json, where a graph's own is not known."""

_TOOLS = ("specdec-onnx", "onnxruntime")


@dataclass(frozen=True)
class PrebuiltModel:
    """A model folder as ONNX Runtime GenAI, onnx-community or Optimum lay it out."""

    model: ModelFolder

    @cached_property
    def source(self) -> SourceFiles:
        """Its files, graph first; SpecdecError if the graph is damaged or lacks its data."""
        name = self.model.path.resolve().name
        return SourceFiles(name, name, (self.model.graph, *_external_data(self.model.graph)))


def find_prebuilt(path: Path) -> PrebuiltModel | None:
    """The model in a folder with a graph and no safetensors, else None; SpecdecError if it lacks something."""
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    if not any(path.glob("*.onnx")) and not any(path.glob("onnx/*.onnx")):
        return None
    model = open_model(path)
    require_fitting_tokenizer(model, str(path))
    return PrebuiltModel(model)


class PrebuiltWriter:
    """Fills an empty folder with a prebuilt model: what describes it, then the graph."""

    steps = 1
    format_name = FORMAT
    findings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, prebuilt: PrebuiltModel, folder: Path) -> None:
        """SpecdecError for a graph without its data, or one that can't verify drafts; nothing is written yet."""
        self._model, self._source, self._folder = prebuilt.model, prebuilt.source, folder
        self._graph = folder / "onnx" / prebuilt.model.graph.name
        self._genai_config = self._read_genai_config()
        _require_working(prebuilt.model)

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy_files((*TOKENIZER_FILES, "generation_config.json"), self._model.path, self._folder)
        write_json(self._folder / "config.json", self._model.config)
        return open_model(self._folder, self._graph)

    def build(self, progress: Progress) -> dict[str, int]:
        """Copy the graph and its data, write specdec.json; returns the bytes of each file."""
        progress("copying", 0, 1)
        sizes = {}
        for part in self._source.parts:
            copy = self._graph.parent / part.relative_to(self._model.graph.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part, copy)
            sizes[part.name] = part.stat().st_size
        write_json(self._folder / "specdec.json", model_facts(self._source, FORMAT, _TOOLS))
        write_json(self._folder / "genai_config.json", self._genai_config)
        progress("copying", 1, 1)
        return sizes

    def _read_genai_config(self) -> Mapping[str, Any]:
        """The model's own genai_config.json with the graph's new path; a new one if it has none."""
        file, graph = self._model.path / "genai_config.json", f"onnx/{self._graph.name}"
        if not file.is_file():
            return prebuilt_config(self._model, graph)
        config = json.loads(file.read_text(encoding="utf-8"))
        config["model"]["decoder"]["filename"] = graph
        return dict(config)


def _external_data(graph: Path) -> tuple[Path, ...]:
    """The files of a graph's external data; SpecdecError if one is missing or lies outside its folder."""
    try:
        model = onnx.load(graph, load_external_data=False)
    except Exception as error:  # whatever the parser raised
        raise SpecdecError(f"{graph} is not an ONNX graph", str(error), "download the model again") from error
    tensors = [tensor for tensor in model.graph.initializer if tensor.external_data]
    names = sorted(
        {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    )
    files = tuple(inside(graph.parent, name) for name in names)
    for file in files:
        if not file.is_file():
            raise SpecdecError(
                f"{graph} lacks its data",
                f"{file.name} is missing from its folder",
                "download the model again",
            )
    return files


def _require_working(model: ModelFolder) -> None:
    from specdec_onnx.runtime.model.decoder import Decoder

    decoder = Decoder.open(model, capacity=min(8, model.context_length))
    try:
        decoder.forward([0, 0])
    except SpecdecError as error:
        raise SpecdecError(
            f"{model.graph} does not work", f"{error.what}: {error.why}", "download the model again"
        ) from error
