"""Where weights come from: GGUF files and safetensors folders behind one protocol."""

from pathlib import Path

from specdec_onnx.export.checkpoint.base import Checkpoint, Source
from specdec_onnx.models.errors import SpecdecError

__all__ = ["Checkpoint", "Source", "open_checkpoint"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a `.gguf` file or a folder with safetensors and config.json; SpecdecError if it is neither."""
    path = Path(source).expanduser()
    if path.is_dir():
        from specdec_onnx.export.checkpoint.safetensors import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise SpecdecError(f"{path} does not exist", fix="give a .gguf file or a folder with safetensors")
    if path.suffix == ".safetensors":
        raise SpecdecError(f"{path} is only the weights", fix=f"give its folder: {path.parent}")
    if path.suffix in _PICKLES:
        why = f"{path.name} is a pickle, which can run any code when it is loaded"
        raise SpecdecError(f"{path} is not read", why, "convert the model to safetensors")
    from specdec_onnx.export.checkpoint.gguf import GgufCheckpoint

    return GgufCheckpoint(path)
