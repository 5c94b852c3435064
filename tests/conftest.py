"""Every test keeps its measurements to itself."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def private_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs measured in a busy test run must not be taken for the machine's."""
    from specdec_onnx.runtime import profile

    folder = tmp_path_factory.mktemp("measurements")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "cache_folder", lambda: folder)
        yield
