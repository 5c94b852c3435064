"""Runs an exported graph through a plain ONNX Runtime session, with a growing cache and nothing else of the runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specdec_onnx.runtime.model.device import session_options


class GraphRunner:
    """Feeds tokens and carries the cache; `length` may be set back to forget."""

    def __init__(self, folder: Path) -> None:
        options = session_options(threads=1)
        self._session = ort.InferenceSession(str(folder / "onnx" / "model.onnx"), options)
        self._cache = {
            node.name: np.zeros((1, node.shape[1], 0, node.shape[3]), np.float32)
            for node in self._session.get_inputs()
            if node.name.startswith("past_key_values")
        }
        self.outputs = [node.name for node in self._session.get_outputs()]
        self.length = 0

    def forward(self, tokens: Sequence[int], **extra: Any) -> dict[str, NDArray[np.float32]]:
        """All outputs of one pass over `tokens`; `extra` names further inputs."""
        feeds: dict[str, Any] = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, self.length + len(tokens)), np.int64),
        }
        feeds |= {name: values[:, :, : self.length] for name, values in self._cache.items()}
        feeds |= {name: np.array(value, np.int64) for name, value in extra.items()}
        found = dict(zip(self.outputs, self._session.run(None, feeds), strict=True))
        self._cache = {name: found[name.replace("past_key_values", "present")] for name in self._cache}
        self.length += len(tokens)
        return found

    def logits(self, tokens: Sequence[int], **extra: Any) -> NDArray[np.float32]:
        """The logits of one pass: [rows, vocabulary]."""
        return self.forward(tokens, **extra)["logits"][0]
