"""Where a model's files lie: names that may not lead outside, JSON, the graph and its external data."""

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from specdec_onnx.models.errors import SpecdecError

# Dynamically quantized graphs come last: the runtime refuses them (drafted tokens would change earlier logits).
_DYNAMIC = ("model_int8.onnx", "model_quantized.onnx", "model_uint8.onnx")


def inside(folder: Path, name: str) -> Path:
    """`folder / name` for a name read from a config; SpecdecError when it leads out of the folder."""
    windows = PureWindowsPath(name)
    parts = (*windows.parts, *PurePosixPath(name).parts)
    if not name or windows.drive or windows.root or ".." in parts:
        raise SpecdecError(
            f"{folder} names a file outside itself: {name!r}",
            "a model's files have to lie in its folder",
            "move them there, or give target and draft as two folders",
        )
    # Compared by name, not resolved: files of a hub cache are links that lead elsewhere.
    return folder.joinpath(*windows.parts)


def read_json(file: Path) -> Mapping[str, Any]:
    """The JSON object in `file`, {} when there is no such file; SpecdecError when it is not an object."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SpecdecError(
            f"{file} is not valid JSON", str(error), "export or download the model again"
        ) from error
    if not isinstance(content, dict):
        raise SpecdecError(f"{file} is not a JSON object", fix="export or download the model again")
    return content


def section(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The nested object `config[names[0]][names[1]]...`, {} where it or a parent is missing."""
    for name in names:
        found = config.get(name)
        config = found if isinstance(found, Mapping) else {}
    return config


def external_data(graph: Path) -> Iterator[Path]:
    """Files beside `graph` that it names: an ONNX graph spells the names of its external data."""
    others = {".onnx", ".json", ".jinja", ".txt", ".md", ".model"}
    beside = [file for file in graph.parent.iterdir() if file.is_file() and file.suffix not in others]
    if not beside or not graph.stat().st_size:
        return
    with graph.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield from [file for file in beside if content.find(file.name.encode()) >= 0]


def find_graph(path: Path, genai: Mapping[str, Any]) -> Path:
    """The model's .onnx file: the one genai_config.json names, else in onnx/, else model.onnx."""
    named = section(genai, "model", "decoder").get("filename")
    if named:
        candidates, why = [inside(path, str(named))], f"genai_config.json names {named}, which is missing"
    else:
        nested = sorted(
            (path / "onnx").glob("model*.onnx"), key=lambda file: (file.name in _DYNAMIC, file.name)
        )
        candidates, why = [*nested, path / "model.onnx"], "neither onnx/model*.onnx nor model.onnx is there"
    for graph in candidates:
        if graph.is_file():
            return graph
    raise SpecdecError(f"no ONNX graph in {path}", why, "make one with `specdec-export SOURCE -o DIR`")


def config_from_genai(path: Path, genai: Mapping[str, Any]) -> Mapping[str, Any]:
    """ONNX Runtime GenAI's own builder writes no config.json: its genai_config.json says the same."""
    model = section(genai, "model")
    if "vocab_size" not in model:
        nested = " (it holds a pair: target/ and draft/)" if (path / "target").is_dir() else ""
        raise SpecdecError(
            f"{path} is not a model folder{nested}",
            "it has no config.json",
            "make one with `specdec-export SOURCE -o DIR`",
        )
    renamed = {"model_type": model.get("type"), "max_position_embeddings": model.get("context_length")}
    return {**{key: model.get(key) for key in ("vocab_size", "eos_token_id", "bos_token_id")}, **renamed}


def sizes_from_genai(genai: Mapping[str, Any], graph: Path) -> Mapping[str, int]:
    """What genai_config.json says of a graph's heads, layers and widths, by config.json's names."""
    decoders = [section(genai, "model", role) for role in ("decoder", "draft")]
    names = [PureWindowsPath(str(decoder.get("filename", ""))).parts for decoder in decoders]
    own = (each for each, parts in zip(decoders, names, strict=True) if parts == graph.parts[-len(parts) :])
    said = next(own, {})
    same = ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")
    found = {"head_dim": said.get("head_size")} | {key: said.get(key) for key in same}
    return {key: value for key, value in found.items() if isinstance(value, int) and value > 0}
