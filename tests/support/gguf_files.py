"""GGUF files and safetensors folders written from tiny checkpoints, for the readers to read back."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from support.tiny import TinyCheckpoint
from support.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer, write_tokenizer
from tokenizers import Tokenizer

ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama"}
"""What GGUF calls a model_type, where that is another name."""

PAIRED = ("llama", "mistral", "granite", "smollm3")
"""Families whose query and key rows converters reorder."""


def write_gguf(
    path: Path,
    checkpoint: TinyCheckpoint,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    kinds: Mapping[str, GGMLQuantizationType] | None = None,
    metadata: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    extra: Mapping[str, NDArray[np.float32]] | None = None,
    alignment: int | None = None,
) -> Path:
    """Write a checkpoint as a converter would; `metadata` sets entries, `without` leaves some out.

    Matrices are stored as `kind`, those whose names hold one of the `kinds` as that.
    """
    arch = architecture(checkpoint.config)
    writer = GGUFWriter(path, arch)
    if alignment:
        writer.add_custom_alignment(alignment)
    entries = model_entries(checkpoint.config) | tokenizer_entries(
        tiny_tokenizer(checkpoint.config["vocab_size"] - checkpoint.spare_rows)
    )
    for key, value in (entries | dict(metadata or {})).items():
        if key not in without:
            _add(writer, key, value)
    tensors = {gguf_name(name, arch): _stored(checkpoint, name) for name in checkpoint.names()}
    for name, values in (tensors | dict(extra or {})).items():
        if name not in without:
            named = (own for part, own in (kinds or {}).items() if part in name)
            used = next(named, kind) if values.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(name, quantize(values, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_one_tensor(path: Path, raw: NDArray[Any], kind: GGMLQuantizationType) -> Path:
    """A GGUF file with nothing in it but `raw` as tensor "x"."""
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, checkpoint: TinyCheckpoint, dtype: Any = np.float32, shards: int = 1) -> Path:
    """Write a checkpoint as a Hugging Face folder of `shards` safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    write_tokenizer(folder, checkpoint.config["vocab_size"] - checkpoint.spare_rows)
    names = sorted(checkpoint.names())
    parts = [names[index::shards] for index in range(shards)]
    files = [f"model-{index + 1:05}-of-{shards:05}.safetensors" for index in range(shards)]
    if shards == 1:
        files = ["model.safetensors"]
    else:
        where = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    for file, part in zip(files, parts, strict=True):
        save_file({name: checkpoint.tensor(name).astype(dtype) for name in part}, folder / file)
    return folder


BFLOAT16 = ml_dtypes.bfloat16


def architecture(config: Mapping[str, Any]) -> str:
    """What GGUF calls the family."""
    return ARCHITECTURES.get(config["model_type"], config["model_type"])


def gguf_name(name: str, arch: str) -> str:
    """`blk.0.attn_q.weight` of `model.layers.0.self_attn.q_proj.weight`, as converters name it."""
    number = next(arch_id for arch_id, known in gguf.MODEL_ARCH_NAMES.items() if known == arch)
    found = gguf.get_tensor_name_map(number, 8).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found, f"{arch} has no {name}"
    return found


def model_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata a converter writes for a config.json."""
    arch = architecture(config)
    return {
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": config["rope_theta"],
    } | {f"{arch}.{key}": value for key, value in _family_entries(config).items()}


def _family_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """What only some families' files hold."""
    copied = {
        "head_dim": "attention.key_length",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    entries = {theirs: config[ours] for ours, theirs in copied.items() if ours in config}
    if config["model_type"] in ("gemma2", "gemma3_text", "phi3"):
        entries["attention.sliding_window"] = config.get("sliding_window") or 0
    if "partial_rotary_factor" in config:
        size = config["hidden_size"] // config["num_attention_heads"]
        entries["rope.dimension_count"] = int(size * config["partial_rotary_factor"])
    return entries


def tokenizer_entries(tokenizer: Tokenizer, pre: str = "gpt-2") -> dict[str, Any]:
    """The metadata a converter writes for a byte-level BPE tokenizer with three special tokens at its end."""
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    model = json.loads(tokenizer.to_str())["model"]
    added = tokenizer.get_added_tokens_decoder()
    kinds = {True: 3, False: 4}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            kinds[added[i].special] if i in added else 1 for i in range(len(tokens))
        ],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.padding_token_id": len(tokens) - 3,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _stored(checkpoint: TinyCheckpoint, name: str) -> NDArray[np.float32]:
    """A tensor as the converter stores it: `llama` q and k rows go from two halves a head to rotary pairs."""
    values, kind = checkpoint.tensor(name), checkpoint.config["model_type"]
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1
    if kind not in PAIRED or not {"q_proj", "k_proj"} & set(name.split(".")):
        return values
    size = checkpoint.config.get("head_dim") or (
        checkpoint.config["hidden_size"] // checkpoint.config["num_attention_heads"]
    )
    order = [first + half for first in range(size // 2) for half in (0, size // 2)]
    heads = [values[start : start + size][order] for start in range(0, len(values), size)]
    return np.concatenate(heads)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
