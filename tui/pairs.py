"""How a name on the command line finds a pair."""

from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.home import pairs_folder


def folder_of(name: str) -> Path:
    """Where the pair of that catalog name is, or will be, exported."""
    return pairs_folder() / name


def exported() -> list[str]:
    """Names of the pairs that were exported to the home folder."""
    folder = pairs_folder()
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def locate(pair: str) -> Path:
    """The folder meant by PAIR, a path or the name of an exported pair; SpecdecError when there is neither."""
    if pair and Path(pair).exists():
        return Path(pair)
    if pair in exported():
        return folder_of(pair)
    raise SpecdecError(f"no pair at {pair!r}", _why(pair), _fix(pair))


def _why(pair: str) -> str:
    names = ", ".join(exported())
    have = f"the pairs exported here are: {names}" if names else "no pair has been exported here yet"
    return f"it is neither a folder nor the name of an exported pair; {have}"


def _fix(pair: str) -> str:
    from specdec_onnx.models.catalog import catalog

    if pair in catalog():
        return f"specdec-export {pair} -o {folder_of(pair)}"
    return f"give a folder made by specdec-export, or one of the catalog's names: {', '.join(catalog())}"
