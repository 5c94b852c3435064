"""Where a model runs: the devices, their execution providers, and how sessions are opened on them."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.graph_file import read_small_graph, with_half_cache
from specdec_onnx.models.graph_fusion import with_gated_products
from specdec_onnx.models.system import own_cores
from specdec_onnx.runtime.kernels import Kernels, kernels

PACKAGES = {"WebGpuExecutionProvider": "onnxruntime_ep_webgpu"}
"""The Python package with a plugin provider's library."""


@lru_cache
def obstacle(provider: str) -> str:
    """Why the plugin of `provider` cannot be used; empty when it can. The first call registers its library."""
    if not hasattr(ort.InferenceSession, "create_ortvalue_from_shape_and_type"):
        return f"onnxruntime {ort.__version__} cannot keep a cache in a plugin's memory"
    try:
        package = importlib.import_module(PACKAGES[provider])
        ort.register_execution_provider_library(
            provider.removesuffix("ExecutionProvider").lower(), package.get_library_path()
        )
    except ImportError:
        return f"the package {PACKAGES[provider].replace('_', '-')} is not installed"
    except Exception as error:  # noqa: BLE001 - whatever the loader says is the reason
        return f"onnxruntime {ort.__version__} rejects the plugin: {str(error).splitlines()[0]}"
    return "" if plugin_devices(provider) else "no graphics processor was found"


def plugin_devices(provider: str) -> list[Any]:
    """The hardware devices that a registered plugin can use, graphics processors first."""
    offered = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    real = [device for device in offered if device.device.metadata.get("is_virtual") != "1"]
    return sorted(real, key=lambda device: device.device.type != ort.OrtHardwareDeviceType.GPU)


@lru_cache
def plugin_version(provider: str) -> str:
    """The version of a registered plugin and the hardware it runs on: what measurements depend on."""
    device = plugin_devices(provider)[0]
    hardware = device.device
    return f"{device.ep_metadata.get('version')} {hardware.vendor} {hardware.device_id} {hardware.type}"


PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
AUTO = "auto"
CACHES = (AUTO, "fp32")
"""How keys and values are kept: float16 where our attention runs, or as the graph has them."""
"""Stands for the fastest usable device, by measurement."""

_EXTRAS = {"cpu": "cpu", "cuda": "cuda", "dml": "directml", "webgpu": "webgpu"}
# TF32 rounds float32 products to 10 bits; a requested-size arena leaves the rest of the card to the other model.
_CUDA = {"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"}
_WEBGPU = {
    "validationMode": "disabled",
    "powerPreference": "high-performance",
    # tables of halves and of bytes require shader types that not all devices have
    "forceCpuNodeNames": "embedding.half\nembedding.rows\nembedding.levels\nembedding.steps\nembedding",
}
_OPTIONS = {"cuda": _CUDA, "webgpu": _WEBGPU}
_CAUSES = {
    "cuda": "install the CUDA and cuDNN libraries: pip install 'onnxruntime-gpu[cuda,cudnn]'",
    "webgpu": "install the graphics driver (on Linux also the Vulkan loader, libvulkan1), or use device cpu",
}


def session_options(threads: int = 0) -> Any:
    """The options of every session; `threads` 0 means the physical cores.

    There is no memory pattern, because pass widths vary. Pools stop spinning after a pass, because target and draft
    take turns. The precise mode keeps int8 sums exact on processors whose unsigned-by-signed kernels would saturate.
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


def _apart(folder: Path, threads: int) -> Any:
    """The options for a graph that is not read from its file, though its weights are: from `folder`."""
    options = session_options(threads)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return options


def _adapted(path: Path, ours: Kernels, *, half_cache: bool) -> Iterator[tuple[bytes, bool]]:
    """The graph as our kernels compute it fastest, best first, and whether that requires our attention."""
    halved = with_half_cache(path) if half_cache and ours.has_attention else None
    if halved is not None:
        yield with_gated_products(halved) or halved, True
    plain = read_small_graph(path) if ours.name else None
    if plain is not None and (fused := with_gated_products(plain)):
        yield fused, False


def check_threads(threads: int) -> None:
    """Raise SpecdecError for more threads than this process has cores: a pass would take minutes."""
    most = len(own_cores())
    if not 0 <= threads <= most:
        raise SpecdecError(
            f"{threads} threads are not possible",
            f"this process may use {most} core{'s' if most > 1 else ''}",
            f"give at most {most}, or 0 for all physical cores",
        )


def check_cache(cache: str) -> None:
    """Raise SpecdecError for a type of cache that there is not."""
    if cache not in CACHES:
        raise SpecdecError(f"unknown cache {cache!r}", fix=f"choose one of {', '.join(CACHES)}")


@dataclass(frozen=True, slots=True)
class Device:
    """One execution provider, with the options that it needs."""

    name: str = "cpu"

    @property
    def provider(self) -> str:
        """ONNX Runtime's name for this device."""
        return PROVIDERS[self.name]

    @property
    def fingerprint(self) -> str:
        """What measurements on this device depend on, apart from model, machine and ONNX Runtime."""
        if self.name == "cpu":
            return f"{self.name} {kernels().fingerprint}"
        version = plugin_version(self.provider) if self._is_plugin else ""
        return f"{self.name} {version} {sorted(self._options.items())}"

    @property
    def _options(self) -> dict[str, str]:
        return _OPTIONS.get(self.name, {})

    @property
    def _is_plugin(self) -> bool:
        return self.provider in PACKAGES and not obstacle(self.provider)

    def open(self, path: Path, threads: int = 0, *, half_cache: bool = True) -> tuple[Any, Kernels]:
        """A session for the graph at `path`, and what multiplies its 4- and 8-bit weights: on the CPU, our own kernels.

        Keys and values are kept in halves where our attention runs, unless `half_cache` is False. Raises SpecdecError
        when the provider does not start, or the kernels that the environment demands are missing.
        """
        ours = kernels() if self.name == "cpu" else Kernels(absent=f"{self.name} has its own")
        for content, needs_attention in _adapted(path, ours, half_cache=half_cache):
            # with the graph as it is the model may open, or its error be understood
            with suppress(Exception):
                session, used = ours.open(
                    partial(self.session, content), partial(_apart, path.parent, threads)
                )
                if used.name and (used.has_attention or not needs_attention):
                    return session, used
        return ours.open(partial(self.session, str(path)), partial(session_options, threads))

    def session(self, path: str | bytes, options: ort.SessionOptions) -> Any:
        """Open a graph, given as file or content, with the CPU provider for operators that this device lacks.

        Raises SpecdecError when the provider does not start.
        """
        try:
            session = self._session(path, options)
        except Exception as error:
            if "EP_FAIL" in str(error):
                raise self._not_started(str(error).strip().splitlines()[0].rpartition(". ")[2]) from error
            raise
        if self.provider not in session.get_providers():
            raise self._not_started(f"onnxruntime {ort.__version__} could not load {self.provider}")
        return session

    def _session(self, path: str | bytes, options: ort.SessionOptions) -> Any:
        if self._is_plugin:
            options.add_provider_for_devices(plugin_devices(self.provider)[:1], self._options)
            return ort.InferenceSession(path, options)
        if self.name == "cuda" and hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        providers: list[Any] = [(self.provider, self._options)]
        if self.name != "cpu":
            providers.append(PROVIDERS["cpu"])
        return ort.InferenceSession(path, options, providers=providers)

    def _not_started(self, why: str) -> SpecdecError:
        return SpecdecError(f"device {self.name!r} could not be started", why, _CAUSES.get(self.name, ""))

    @property
    def memory(self) -> str:
        """The memory that NumPy arrays are copied to and from: this device's own where ONNX Runtime can reach it."""
        return self.name if self.name in ("cuda", "dml") else "cpu"

    def tensor(self, session: Any, shape: Sequence[int], dtype: type[np.generic]) -> Any:
        """An OrtValue of zeros in the memory where `session` computes."""
        if self.name == "webgpu":
            # it is created as zeros
            return session.create_ortvalue_from_shape_and_type(shape, dtype, self.name)
        return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), self.memory, 0)


def lacks(name: str) -> str:
    """Why the device called `name` cannot be used here; empty when it can."""
    provider = PROVIDERS[name]
    if provider in ort.get_available_providers():
        return ""
    if provider in PACKAGES:
        return obstacle(provider)
    return f"this onnxruntime {ort.__version__} has no {provider}"


def remedy(name: str) -> str:
    """How to install the provider of the device called `name`."""
    return f"pip install 'specdec-onnx[{_EXTRAS[name]}]' in an environment without another onnxruntime"


def usable_devices() -> list[str]:
    """Names of the devices whose providers are installed, the CPU among them."""
    return [name for name in PROVIDERS if not lacks(name)]


def check_name(name: str) -> None:
    """Raise SpecdecError for a name that is neither a device nor `auto`."""
    if name not in PROVIDERS and name != AUTO:
        raise SpecdecError(f"unknown device {name!r}", fix=f"choose one of {', '.join((*PROVIDERS, AUTO))}")


def find_device(name: str) -> Device:
    """The device called `name`; SpecdecError when it is unknown or its provider is not installed."""
    check_name(name)
    if why := lacks(name):
        raise SpecdecError(f"device {name!r} is not available", why, remedy(name))
    return Device(name)
