"""Tiny random checkpoints of the real families, and complete model folders exported from them in milliseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.tiny_tokenizer import write_tokenizer

from specdec_onnx.export.checkpoint import Checkpoint, SourceFiles
from specdec_onnx.export.checkpoint.weights import HEAD, expected_shapes
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.spec import Options
from specdec_onnx.models.progress import Progress, silent


@dataclass(frozen=True)
class TinySource(SourceFiles):
    """A source without files; its digest is that of the weights."""

    digest: str = ""

    @property
    def sha256(self) -> str:  # type: ignore[override]
        return self.digest


@dataclass(frozen=True)
class TinyCheckpoint:
    """A Checkpoint held in memory."""

    config: dict[str, Any]
    tensors: Mapping[str, NDArray[np.float32]]
    spare_rows: int = 0
    source: SourceFiles = field(init=False)

    def __post_init__(self) -> None:
        digest = sha256(b"".join(self.tensors[name].tobytes() for name in sorted(self.tensors))).hexdigest()
        object.__setattr__(self, "source", TinySource("tiny", "tiny", (), digest=digest))

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        return self.tensors[name].copy()

    def write_tokenizer(self, folder: Path) -> None:
        write_tokenizer(folder, self.config["vocab_size"] - self.spare_rows)


def tiny_config(family: str = "qwen2", **sizes: Any) -> dict[str, Any]:
    """A config.json of `family`; any of its keys may be given."""
    config: dict[str, Any] = {
        "architectures": [
            {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}.get(
                family, "Other"
            )
        ],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 384,
    } | sizes
    vocabulary = config["vocab_size"] - sizes.get("spare_rows", 0)
    config.pop("spare_rows", None)
    return {"bos_token_id": vocabulary - 3, "eos_token_id": vocabulary - 1} | config


def tiny_checkpoint(family: str = "qwen2", seed: int = 0, **sizes: Any) -> TinyCheckpoint:
    """Random weights scaled so that logits spread by a few units and argmax varies with the context.

    Keys of config.json may be given (`num_hidden_layers=1`), and `spare_rows=n` for n padded vocabulary rows.
    """
    config = tiny_config(family, **sizes)
    architecture = read_architecture(config)
    random = np.random.default_rng(seed)
    shapes = expected_shapes(architecture)
    if not architecture.tied:
        shapes |= {HEAD: (architecture.vocabulary, architecture.hidden)}
    tensors = {name: _random(random, name, shape) for name, shape in shapes.items()}
    return TinyCheckpoint(config, tensors, int(sizes.get("spare_rows", 0)))


def export_model(
    source: str | Path | Checkpoint,
    out: Path,
    *,
    format: str = "w8a8",
    trim: int | None = None,
    measure: bool = False,
    progress: Progress = silent,
    **options: Any,
) -> Path:
    """Export one model to a folder; `trim` trims its head, which makes it the draft of a pair on the way."""
    if trim is None:
        chosen = Options(target_format=format, **options)
        return export_pair(source, None, out, chosen, measure=measure, progress=progress)
    format = f"{format}-32" if format == "int4" else format  # a draft's own default is another
    with TemporaryDirectory(dir=out.parent) as folder:
        chosen = Options(target_format="fp32", draft_format=format, trim=trim, **options)
        (export_pair(source, source, Path(folder) / "pair", chosen) / "draft").rename(out)
    return out


def export_tiny(
    folder: Path,
    family: str = "qwen2",
    format: str = "fp32",
    seed: int = 0,
    *,
    trim: int | None = None,
    **sizes: Any,
) -> Path:
    """A complete model folder at `folder`, written by the real exporter."""
    return export_model(tiny_checkpoint(family, seed, **sizes), folder, format=format, trim=trim)


def export_tiny_pair(
    folder: Path,
    *,
    family: str = "qwen2",
    target_format: str = "w8a8",
    draft_format: str = "int4",
    seed: int = 0,
    draft_seed: int | None = None,
    trim: int | None = None,
    target_sizes: Mapping[str, Any] | None = None,
    draft_sizes: Mapping[str, Any] | None = None,
) -> Path:
    """A complete pair at `folder`; the draft has the target's weights unless given another seed or other sizes."""
    target = tiny_checkpoint(family, seed, **(target_sizes or {}))
    draft = tiny_checkpoint(
        family, seed if draft_seed is None else draft_seed, **(draft_sizes or target_sizes or {})
    )
    return export_pair(
        target, draft, folder, Options(target_format=target_format, draft_format=draft_format, trim=trim)
    )


def _random(random: np.random.Generator, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    if "norm" in name:
        return (1 + 0.1 * random.standard_normal(shape)).astype(np.float32)
    if name.endswith(".bias"):
        return (0.1 * random.standard_normal(shape)).astype(np.float32)
    if name in ("model.embed_tokens.weight", HEAD):
        return (0.5 * random.standard_normal(shape)).astype(np.float32)
    return (1.5 * random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def export_padded_pair(folder: Path) -> Path:
    """A draft that is near its target, with logits for part of the vocabulary, and padding in the target's."""
    sizes = {"vocab_size": 424, "spare_rows": 40}
    return export_tiny_pair(folder, target_format="w8a8", seed=5, trim=330, target_sizes=sizes)
