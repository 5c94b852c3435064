"""A graphics processor in software, where one is installed: WebGPU on Chromium's SwiftShader."""

import importlib.util
import os
from ctypes.util import find_library
from pathlib import Path

import pytest

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")


def missing() -> str:
    """What a WebGPU test lacks here; empty when it can run."""
    if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
        return "onnxruntime-ep-webgpu is not installed (pip install 'specdec-onnx[webgpu]')"
    if find_library("vulkan") is None:
        return "there is no Vulkan loader (apt-get install libvulkan1)"
    if not SWIFTSHADER.is_file():
        return "there is no SwiftShader (apt-get install chromium)"
    return ""


@pytest.fixture(scope="session")
def webgpu() -> str:
    """The device's name; the test is skipped, with the reason, where it cannot run."""
    if reason := missing():
        pytest.skip(reason)
    os.environ["VK_ICD_FILENAMES"] = str(SWIFTSHADER)
    os.environ["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
    return "webgpu"
