"""What the figures were measured on."""

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_onnx.models.folder import ModelFolder
    from specdec_onnx.models.pair import Pair

INT8_FEATURES = ("avx2", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
"""Processor flags that decide how fast int8 multiplies."""


def machine() -> dict[str, Any]:
    """Processor, memory, system and versions."""
    import onnxruntime

    return {
        "processor": _processor(),
        "features": [flag for flag in INT8_FEATURES if flag in _cpuinfo("flags", "Features").split()],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
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


def _processor() -> str:
    return _cpuinfo("model name", "Model") or platform.processor() or platform.machine()


def _cpuinfo(*keys: str) -> str:
    """The first value of one of these keys; "" where the system has no such file."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
