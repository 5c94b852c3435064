"""Where specdec keeps what belongs to one user; `SPECDEC_HOME` moves all of it."""

import os
from pathlib import Path


def home() -> Path:
    """The folder for history, preferences and prepared pairs (not created here)."""
    if chosen := os.environ.get("SPECDEC_HOME"):
        return Path(chosen).expanduser()
    from platformdirs import user_data_path

    return user_data_path("specdec-onnx", appauthor=False)


def pairs_folder() -> Path:
    """Where prepared pairs live, one folder each."""
    return home() / "pairs"


def database_path() -> Path:
    """The SQLite file of all conversations."""
    return home() / "history.sqlite3"


def preferences_path() -> Path:
    """The small JSON file with theme and last model."""
    return home() / "preferences.json"
