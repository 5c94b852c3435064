"""Where a model runs: device names and what ONNX Runtime offers for them."""

from dataclasses import dataclass, field
from typing import Any

import onnxruntime as ort

from specdec_onnx.models.errors import SpecdecError

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
_EXTRAS = {"cpu": "cpu", "cuda": "cuda", "dml": "directml", "webgpu": "webgpu"}


def session_options(threads: int = 0) -> Any:
    """How every session is opened; `threads` 0 means the physical cores.

    Pass widths vary, so no memory pattern. Pools stop spinning after a pass, since target and draft take turns.
    The precise mode keeps int8 sums exact on processors whose unsigned-by-signed kernels would saturate.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


@dataclass(frozen=True, slots=True)
class Device:
    """One execution provider and its options."""

    name: str = "cpu"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def provider(self) -> str:
        """The name ONNX Runtime knows this device by."""
        return PROVIDERS[self.name]

    def session(self, path: str, options: ort.SessionOptions) -> Any:
        """Open the graph at `path` here, with the CPU provider behind it for what this device lacks."""
        providers: list[Any] = [(self.provider, self.options)]
        if self.name != "cpu":
            providers.append(PROVIDERS["cpu"])
        return ort.InferenceSession(path, options, providers=providers)


def lacks(name: str) -> str:
    """Why the device called `name` cannot be used here; empty when it can."""
    if PROVIDERS[name] in ort.get_available_providers():
        return ""
    return f"this onnxruntime {ort.__version__} has no {PROVIDERS[name]}"


def remedy(name: str) -> str:
    """How to get the provider of the device called `name`."""
    return f"pip install 'specdec-onnx[{_EXTRAS[name]}]' in an environment without another onnxruntime"


def find_device(name: str) -> Device:
    """The device called `name`; SpecdecError when it is unknown or its provider is not installed."""
    if name not in PROVIDERS:
        raise SpecdecError(f"unknown device {name!r}", fix=f"choose one of {', '.join(PROVIDERS)}")
    if why := lacks(name):
        raise SpecdecError(f"device {name!r} is not available", why, remedy(name))
    return Device(name)
