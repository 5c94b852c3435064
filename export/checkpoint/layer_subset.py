"""A checkpoint without some of its layers: the others are renumbered, and everything else reads it as it is."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.export.checkpoint import BlockCheckpoint, Checkpoint, Source
from specdec_onnx.export.graph.architecture import read_architecture
from specdec_onnx.export.quantization.linear import Blocks

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class Shortened:
    """The layers `kept`, in ascending order, of a checkpoint whose family the graph builder knows."""

    def __init__(self, whole: Checkpoint, kept: Sequence[int]) -> None:
        self._whole = whole
        self.config: dict[str, Any] = shortened_config(whole.config, kept)
        self.source: Source = whole.source
        self._names = dict(_renamed(whole.names(), kept))

    def names(self) -> frozenset[str]:
        """Every tensor's name, layers counted anew."""
        return frozenset(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape [out, in], without reading the data."""
        return self._whole.shape(self._original(name))

    def tensor(self, name: str) -> NDArray[np.float32]:
        """One tensor as float32 [out, in]; SpecdecError if the checkpoint lacks it."""
        return self._whole.tensor(self._original(name))

    def block_type(self, name: str) -> str:
        """How the source stores a tensor."""
        return self._whole.block_type(self._original(name))

    def blocks(self, name: str) -> Blocks | None:
        """A matrix as it is stored, if the checkpoint tells."""
        whole = self._whole
        return whole.blocks(self._original(name)) if isinstance(whole, BlockCheckpoint) else None

    def write_tokenizer(self, folder: Path) -> None:
        """The whole model's."""
        self._whole.write_tokenizer(folder)

    def _original(self, name: str) -> str:
        return self._names.get(name, name)


def shortened_config(config: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """config.json of the layers `kept`; what a family derives from a layer's number is written out."""
    look = read_architecture(config)
    spans = [look.spans[index] for index in kept]
    short = {**config, "num_hidden_layers": len(kept)}
    if any(span.window for span in look.spans):
        short["layer_types"] = [f"{'sliding' if span.window else 'full'}_attention" for span in spans]
    elif "layer_types" in config:
        short["layer_types"] = [config["layer_types"][index] for index in kept]
    if look.family.without_rope_every:
        short["no_rope_layers"] = [int(span.rope is not None) for span in spans]
    return short


def _renamed(names: Iterable[str], kept: Sequence[int]) -> Iterable[tuple[str, str]]:
    """New and old name of every tensor that stays."""
    places = {index: place for place, index in enumerate(kept)}
    for name in names:
        match = _LAYER.fullmatch(name)
        if match is None:
            yield name, name
        elif int(match[1]) in places:
            yield f"model.layers.{places[int(match[1])]}.{match[2]}", name
