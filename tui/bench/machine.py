"""What the figures were measured on."""

import os
import platform
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.bench import processor

if TYPE_CHECKING:
    from specdec_onnx.models.folder import ModelFolder
    from specdec_onnx.models.pair import Pair


def machine() -> dict[str, Any]:
    """Processor, memory, system and versions."""
    import onnxruntime

    from specdec_onnx.runtime.kernels import kernels

    ours = kernels()
    return {
        "processor": processor.name(),
        "features": processor.features(),
        "cores": processor.logical_cores(),
        "physical_cores": processor.physical_cores(),
        "governor": processor.governor() or None,
        "on_battery": processor.on_battery(),
        "memory_bytes": _memory(),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "kernels": {"name": ours.name, "fingerprint": ours.fingerprint, "absent": ours.absent},
    }


def describe_pair(pair: "Pair") -> dict[str, Any]:
    """Target and draft: format, size, and the checkpoint they came from."""
    draft = None if pair.draft is None else _describe(pair.draft)
    return {"name": pair.path.resolve().name, "target": _describe(pair.target), "draft": draft}


def _describe(model: "ModelFolder") -> dict[str, Any]:
    return {
        "name": model.name,
        "format": model.facts.get("format"),
        "weight_bytes": model.weight_bytes,
        "source": model.facts.get("source"),
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
