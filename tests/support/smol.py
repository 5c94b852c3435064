"""SmolLM2-135M, exported once for all tests of a run that want a real model."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; the download (98 MB) is kept between runs."""
    from support.tiny import export_model

    from specdec_onnx.models.catalog import lookup
    from specdec_onnx.models.download import fetch

    return export_model(fetch(lookup("smollm2-135m").target), tmp_path_factory.mktemp("models") / "smol")
