"""Where things that can be made again are kept on this machine."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Downloads and measurements (not created here); the environment variable SPECDEC_CACHE moves it."""
    if chosen := os.environ.get("SPECDEC_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("specdec-onnx", appauthor=False)
