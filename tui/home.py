"""Where the terminal's own files are kept, beside the exported pairs."""

from pathlib import Path

from specdec_onnx.models.places import home


def database_path() -> Path:
    """The SQLite file of all conversations."""
    return home() / "history.sqlite3"


def preferences_path() -> Path:
    """The small JSON file with theme and last model."""
    return home() / "preferences.json"
