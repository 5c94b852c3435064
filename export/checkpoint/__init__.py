"""Where weights come from: GGUF files and safetensors folders behind one protocol."""

from pathlib import Path

from specdec_onnx.export.checkpoint.base import Checkpoint, Source

__all__ = ["Checkpoint", "Source", "open_checkpoint"]


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a `.gguf` file or a folder with safetensors and config.json; SpecdecError if it is neither."""
    path = Path(source).expanduser()
    if path.is_dir():
        from specdec_onnx.export.checkpoint.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    from specdec_onnx.export.checkpoint.gguf import GgufCheckpoint

    return GgufCheckpoint(path)
