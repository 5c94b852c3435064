"""Where this user's pairs, downloads and measurements are kept, and what name finds a pair there."""

import os
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError


def cache_folder() -> Path:
    """Downloads and measurements, which can be made again (not created here); SPECDEC_CACHE moves it."""
    if chosen := os.environ.get("SPECDEC_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("specdec-onnx", appauthor=False)


def home() -> Path:
    """The folder for history, preferences and exported pairs (not created here); SPECDEC_HOME moves it."""
    if chosen := os.environ.get("SPECDEC_HOME"):
        return Path(chosen).expanduser()
    from platformdirs import user_data_path

    return user_data_path("specdec-onnx", appauthor=False)


def pairs_folder() -> Path:
    """Where exported pairs live, one folder each."""
    return home() / "pairs"


def folder_of(name: str) -> Path:
    """Where the pair of that catalog name is, or will be, exported."""
    return pairs_folder() / name


def exported() -> list[str]:
    """Names of the pairs that were exported to the home folder."""
    folder = pairs_folder()
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def locate(pair: str | Path) -> Path:
    """The folder meant by PAIR, a path or the name of an exported pair; SpecdecError when there is neither."""
    name = str(pair)
    if name and (found := _path(name)) is not None:
        return found
    if name in exported():
        return folder_of(name)
    raise SpecdecError(f"no pair at {name!r}", _why(name), _fix(name))


def _path(name: str) -> Path | None:
    """`name` as a path, a leading ~ being the user's home; None when nothing is there."""
    for path in (Path(name), Path(os.path.expanduser(name))):  # noqa: PTH111 - the method raises for a user who isn't there
        try:
            if path.exists():
                return path
        except (OSError, ValueError):  # too long for a path, or with a NUL in it
            continue
    return None


def _why(name: str) -> str:
    names = ", ".join(exported())
    have = f"the pairs exported here are: {names}" if names else "no pair has been exported here yet"
    return f"it is neither a folder nor the name of an exported pair; {have}"


def _fix(name: str) -> str:
    from specdec_onnx.models.catalog import catalog

    if name in catalog():
        return f"specdec-export {name} -o {folder_of(name)}"
    return f"give a folder made by specdec-export, or one of the catalog's names: {', '.join(catalog())}"
