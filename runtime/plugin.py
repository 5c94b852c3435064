"""Execution providers that are installed apart from ONNX Runtime and registered when they are first needed."""

import importlib
from functools import lru_cache
from typing import Any

import onnxruntime as ort

PACKAGES = {"WebGpuExecutionProvider": "onnxruntime_ep_webgpu"}
"""Python package that brings a provider's library."""


@lru_cache
def obstacle(provider: str) -> str:
    """Why the plugin of `provider` cannot be used; empty when it can. The first call registers its library."""
    if not hasattr(ort.InferenceSession, "create_ortvalue_from_shape_and_type"):
        return f"onnxruntime {ort.__version__} cannot keep a cache in a plugin's memory"
    try:
        package = importlib.import_module(PACKAGES[provider])
        ort.register_execution_provider_library(_short_name(provider), package.get_library_path())
    except ImportError:
        return f"the package {PACKAGES[provider].replace('_', '-')} is not installed"
    except Exception as error:  # noqa: BLE001 - whatever the loader says is the reason
        return f"onnxruntime {ort.__version__} refuses the plugin: {str(error).splitlines()[0]}"
    return "" if plugin_devices(provider) else "no graphics processor was found"


def plugin_devices(provider: str) -> list[Any]:
    """The hardware devices that a registered plugin can use, graphics processors first."""
    found = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    real = [device for device in found if device.device.metadata.get("is_virtual") != "1"]
    return sorted(real, key=lambda device: device.device.type != ort.OrtHardwareDeviceType.GPU)


@lru_cache
def plugin_version(provider: str) -> str:
    """The version of a registered plugin and the hardware it runs on: what measurements depend on."""
    device = plugin_devices(provider)[0]
    hardware = device.device
    return f"{device.ep_metadata.get('version')} {hardware.vendor} {hardware.device_id} {hardware.type}"


def _short_name(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()
