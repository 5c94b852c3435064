"""The portable graph: Optimum traces the model, our formats replace its linear layers, the rest stays plain ONNX."""

import logging
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import save_file

from specdec_onnx.export.checkpoint import Checkpoint
from specdec_onnx.export.graph.builder import Graph, TensorFile
from specdec_onnx.export.graph.genai_config import prebuilt_config
from specdec_onnx.export.graph.model_writer import describe, model_facts
from specdec_onnx.export.graph.transformer import DATA_FILE, GRAPH_FILE
from specdec_onnx.export.quantization.linear import Format
from specdec_onnx.export.spec import ModelSpec
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.progress import Progress
from specdec_onnx.runtime.model.decoder import Decoder

_TOOLS = ("specdec-onnx", "onnx", "onnxruntime", "optimum-onnx", "torch", "transformers")


class PortableWriter:
    """Fills an empty folder with one model, its graph traced by Optimum."""

    steps = 2
    findings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, checkpoint: Checkpoint, folder: Path, spec: ModelSpec) -> None:
        """SpecdecError without the extra, or for weights that transformers would read differently."""
        _optimum()
        if "rope_freq_factors" in checkpoint.config:
            why = "its rotary frequencies are in a separate tensor, which transformers ignores"
            raise SpecdecError(f"{checkpoint.source.file} has no portable graph", why, "leave out --graph")
        self._checkpoint, self._folder, self._format = checkpoint, folder, spec.format
        self.format_name = spec.format.name

    def describe(self) -> ModelFolder:
        """Write tokenizer and config.json; the folder can be compared with another one, but not run."""
        return describe(self._checkpoint, self._folder)

    def build(self, progress: Progress) -> dict[str, int]:
        """Trace, quantize, write specdec.json; returns the bytes of each tensor."""
        graph_folder = self._folder / "onnx"
        with TemporaryDirectory(dir=self._folder, prefix=".traced-") as work:
            progress("tracing with Optimum", 0, self.steps)
            _trace(_as_folder(self._checkpoint, Path(work) / "source"), Path(work) / "traced")
            progress("quantizing", 1, self.steps)
            graph_folder.mkdir()
            sizes = rewrite_linears(Path(work) / "traced" / GRAPH_FILE, graph_folder, self._format)
        facts = model_facts(self._checkpoint.source, self.format_name, _TOOLS)
        write_json(self._folder / "specdec.json", facts | {"graph": "portable"})
        model = open_model(self._folder)
        write_json(self._folder / "genai_config.json", prebuilt_config(model, f"onnx/{GRAPH_FILE}"))
        Decoder.open(model, capacity=8)  # refuses a graph that cannot verify drafts, and says why
        progress("quantizing", self.steps, self.steps)
        return sizes


def _as_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    """The checkpoint as a folder that transformers opens."""
    folder.mkdir(parents=True)
    checkpoint.write_tokenizer(folder)
    write_json(folder / "config.json", checkpoint.config)
    tensors = {name: np.ascontiguousarray(checkpoint.tensor(name)) for name in sorted(checkpoint.names())}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _trace(source: Path, traced: Path) -> None:
    main_export, before = _optimum(), logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main_export(
                str(source),
                output=traced,
                task="text-generation-with-past",
                dtype="fp32",
                do_validation=False,
                local_files_only=True,
            )
    except Exception as error:  # whatever Optimum, transformers or torch raised
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SpecdecError("Optimum cannot export this model", why, "choose another model") from error
    finally:
        logging.disable(before)


def _optimum() -> Any:
    try:
        return import_module("optimum.exporters.onnx").main_export
    except ImportError:
        raise SpecdecError(
            "the portable graph needs the optimum extra",
            "optimum-onnx and torch are not installed",
            "pip install specdec-onnx[optimum]",
        ) from None


def rewrite_linears(source: Path, folder: Path, format: Format) -> dict[str, int]:
    """Write `source` into `folder`, each product with a stored matrix in `format`; bytes of each tensor in the data."""
    model = onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    linears = {node.output[0] for node in model.graph.node if _is_linear(node, tensors)}
    with TensorFile(folder / DATA_FILE) as data:
        graph = Graph(data, opset=_opset(model))
        for name in _still_read(model, linears):
            graph.constant(name, onnx.numpy_helper.to_array(tensors[name]))
        for node in model.graph.node:
            if node.output[0] in linears:
                rows = onnx.numpy_helper.to_array(tensors[node.input[1]]).T
                format.linear(graph, node.input[0], np.ascontiguousarray(rows, np.float32), node.output[0])
            else:
                graph.copy(node)
        graph.copy_signature(model.graph)
        graph.save(folder / GRAPH_FILE)
    return data.sizes


def _is_linear(node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto]) -> bool:
    if node.op_type != "MatMul" or node.input[1] not in tensors:
        return False
    matrix = tensors[node.input[1]]
    return len(matrix.dims) == 2 and matrix.data_type == onnx.TensorProto.FLOAT and min(matrix.dims) > 1


def _still_read(model: onnx.ModelProto, linears: set[str]) -> list[str]:
    """Stored tensors that other nodes than linear layers read, in order; inner graphs may read any."""
    read = {
        name
        for node in model.graph.node
        for name in (node.input[:1] if node.output[0] in linears else node.input)
    }
    nested = any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute)
    return [tensor.name for tensor in model.graph.initializer if nested or tensor.name in read]


def _opset(model: onnx.ModelProto) -> int:
    return next(int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
