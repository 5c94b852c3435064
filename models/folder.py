"""One model on disk: a Hugging Face style folder with its ONNX graph."""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import require_utf8
from specdec_onnx.models.tokenizer import Declared, Tokenizer, declared_tokens, merged_settings, role_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Dynamically quantized graphs come last: the runtime rejects them (drafted tokens would change earlier logits).
_DYNAMIC = ("model_int8.onnx", "model_quantized.onnx", "model_uint8.onnx")


def inside(folder: Path, name: str) -> Path:
    """`folder / name` for a name from a config file. Raises SpecdecError if it leads out of the folder."""
    windows = PureWindowsPath(name)
    parts = (*windows.parts, *PurePosixPath(name).parts)
    if not name or windows.drive or windows.root or ".." in parts:
        raise SpecdecError(
            f"{folder} names a file outside itself: {name!r}",
            "a model's files must be in its folder",
            "move them there, or give target and draft as two folders",
        )
    # Compared by name, not resolved: files of a hub cache are links that lead elsewhere.
    return folder.joinpath(*windows.parts)


def read_json(file: Path) -> Mapping[str, Any]:
    """The JSON object in `file`, {} if there is no such file. Raises SpecdecError if it is not an object."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(file, "valid JSON", str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(file, "a JSON object")
    return content


def _damaged(file: Path, what: str, why: str = "") -> SpecdecError:
    return SpecdecError(f"{file} is not {what}", why, "export or download the model again")


def section(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The nested object `config[names[0]][names[1]]...`, {} where it or a parent is missing."""
    for name in names:
        value = config.get(name)
        config = value if isinstance(value, Mapping) else {}
    return config


def external_data(graph: Path) -> Iterator[Path]:
    """The files beside `graph` whose names occur in it: an ONNX graph names its external data."""
    others = {".onnx", ".json", ".jinja", ".txt", ".md", ".model"}
    beside = [file for file in graph.parent.iterdir() if file.is_file() and file.suffix not in others]
    if not beside or not graph.stat().st_size:
        return
    with graph.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield from [file for file in beside if content.find(file.name.encode()) >= 0]


def _find_graph(path: Path, genai: Mapping[str, Any]) -> Path:
    """The model's .onnx file: the one that genai_config.json names, else one in onnx/, else model.onnx."""
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


def _config_from_genai(path: Path, genai: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of a folder without config.json: ONNX Runtime GenAI's builder only writes genai_config.json."""
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


def _sizes_from_genai(genai: Mapping[str, Any], graph: Path) -> Mapping[str, int]:
    """The heads, layers and widths of a graph in genai_config.json, by config.json's names."""
    decoders = [section(genai, "model", role) for role in ("decoder", "draft")]
    names = [PureWindowsPath(str(decoder.get("filename", ""))).parts for decoder in decoders]
    own = (each for each, parts in zip(decoders, names, strict=True) if parts == graph.parts[-len(parts) :])
    decoder = next(own, {})
    same = ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")
    sizes = {"head_dim": decoder.get("head_size")} | {key: decoder.get(key) for key in same}
    return {key: value for key, value in sizes.items() if isinstance(value, int) and value > 0}


@dataclass(frozen=True)
class ModelFolder:
    """What the files beside a graph say about the model; the graph itself is not read here.

    `tokenizer_config` includes special_tokens_map.json; `facts` are what our export recorded in specdec.json.
    """

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    graph: Path
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the source if the export recorded it, else of the folder."""
        return str(self.facts.get("name") or self.path.resolve().name)

    @property
    def model_type(self) -> str:
        """Architecture family as config.json spells it, such as "qwen2"."""
        return str(self.config.get("model_type", "unknown"))

    @property
    def vocab_size(self) -> int:
        """Width of the logits, padding included."""
        return self._number("vocab_size")

    @property
    def context_length(self) -> int:
        """The most tokens that the graph can attend to: as the export recorded, else as the model was trained."""
        recorded = self.facts.get("context_length")
        if recorded is None:
            return self._number("max_position_embeddings")
        return self._checked("specdec.json", "context_length", recorded)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text: generation_config's, config's, then the tokenizer's own EOS, without repeats."""
        own = self._token_named("eos_token")
        return tuple(dict.fromkeys([*self._ids("eos_token_id"), *([] if own is None else [own])]))

    @property
    def bos_token_id(self) -> int | None:
        """The id that opens a text, or None; `adds_bos` says whether it is added."""
        ids = self._ids("bos_token_id")
        return ids[0] if ids else self._token_named("bos_token")

    @property
    def adds_bos(self) -> bool:
        """Whether the model's own tokenizer begins a raw text with BOS."""
        added = self.tokenizer_config.get("add_bos_token")
        if added is not None and not isinstance(added, bool):
            raise self._unusable("tokenizer_config.json", "add_bos_token", added)
        return added if added is not None else self.bos_token_id in self.tokenizer.prefix_ids

    @cached_property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template (the one named "default" if there are several), or None."""
        file = self.path / "chat_template.jinja"
        if file.is_file():
            try:
                return file.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                raise _damaged(file, "UTF-8 text", str(error)) from error
        value = template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list) and all(isinstance(entry, Mapping) for entry in template):
            named = {entry.get("name"): entry.get("template") for entry in template}
            template = named.get("default", next(iter(named.values()), None))
        if template is not None and not isinstance(template, str):
            raise self._unusable("tokenizer_config.json", "chat_template", value)
        return template

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer, with the tokens that other files declare; loaded once."""
        width = self.config.get("vocab_size")
        return Tokenizer.load(self.path, self.declared_tokens, width if isinstance(width, int) else None)

    @cached_property
    def declared_tokens(self) -> tuple[Declared, ...]:
        """Tokens that the files beside tokenizer.json declare."""
        return declared_tokens(self.tokenizer_config, read_json(self.path / "added_tokens.json"))

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes on disk of the graph and its external data."""
        return sum(file.stat().st_size for file in (self.graph, *external_data(self.graph)))

    @cached_property
    def trimmed_vocabulary(self) -> "NDArray[np.int64] | None":
        """Token id of each column of `trimmed_logits` [T], or None when the head is whole."""
        import numpy as np

        ranges = self.facts.get("trimmed_vocabulary")
        if not ranges:
            return None
        try:
            return np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in ranges])
        except (TypeError, ValueError) as error:
            raise self._unusable("specdec.json", "trimmed_vocabulary", ranges) from error

    def number(self, key: str) -> int | None:
        """The whole number that config.json has at `key`, or None. Raises SpecdecError for anything else."""
        return None if self.config.get(key) is None else self._number(key)

    def _number(self, key: str) -> int:
        return self._checked("config", key, self.config.get(key))

    def _checked(self, file: str, key: str, value: Any) -> int:
        """`value` if it can be a size."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._unusable(file, key, value)
        return value

    def _token_named(self, role: str) -> int | None:
        text = role_text(self.tokenizer_config, role)
        return self.tokenizer.id_of(text) if text else None

    def _ids(self, key: str) -> list[int]:
        """Token ids that generation_config and config have at `key`, one or a list."""
        ids = list[int]()
        for file, values in ("generation_config.json", self.generation), ("config", self.config):
            value = values.get(key)
            several = value if isinstance(value, list) else [] if value is None else [value]
            ids += [self._checked(file, key, each) for each in several]
        return ids

    def _unusable(self, file: str, key: str, value: Any) -> SpecdecError:
        shown = repr(value) if len(repr(value)) < 100 else repr(value)[:100] + "…"
        return SpecdecError(
            f"the {file} of {self.path} has no usable {key}", f"it says {shown}", "export the model again"
        )


def open_model(path: Path | str, graph: Path | None = None) -> ModelFolder:
    """Read a model folder (ours, ONNX Runtime GenAI's, onnx-community's or Optimum's); `path` may also be its graph."""
    path = Path(path)
    require_utf8(path)
    if path.suffix == ".onnx" and path.is_file():
        path, graph = (path.parent.parent if path.parent.name == "onnx" else path.parent), path
    if not path.is_dir():
        raise SpecdecError(
            f"{path} is not a folder",
            "it is a file" if path.exists() else "nothing is there",
            "give a folder that specdec-export made; it converts checkpoints and .gguf files",
        )
    genai = read_json(path / "genai_config.json")
    config = read_json(path / "config.json") or _config_from_genai(path, genai)
    graph = graph or _find_graph(path, genai)
    known = {key: value for key, value in config.items() if value is not None}
    return ModelFolder(
        path=path,
        config={**config, **_sizes_from_genai(genai, graph), **known},
        generation=read_json(path / "generation_config.json"),
        tokenizer_config=merged_settings(
            read_json(path / "tokenizer_config.json"), read_json(path / "special_tokens_map.json")
        ),
        graph=graph,
        facts=read_json(path / "specdec.json"),
    )
