"""Every test keeps its measurements to itself."""

import os
from collections.abc import Iterator

import pytest
from support.sources import Hub, point_to, serve


@pytest.fixture(scope="session", autouse=True)
def private_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs measured in a busy test run must not be taken for the machine's, nor stored texts deleted."""
    from specdec_onnx.models import system
    from specdec_onnx.runtime.machine import profile

    folder = tmp_path_factory.mktemp("measurements")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "cache_folder", lambda: folder)
        chosen = system.prefix_folder
        own = folder / "prefixes"
        patch.setattr(system, "prefix_folder", lambda: chosen() if "SPECDEC_CACHE" in os.environ else own)
        yield


@pytest.fixture(scope="module")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for engines that a test runs in a process of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECDEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub that huggingface_hub is pointed at; each file is read in small pieces."""
    from specdec_onnx.models import download as models_hub

    with serve(Hub()) as running:
        point_to(monkeypatch, running.url)
        monkeypatch.setattr(models_hub, "_CHUNK", 4096)
        yield running
