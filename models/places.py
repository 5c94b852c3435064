"""Where this user's pairs, downloads and measurements are kept, and what name finds a pair there."""

import os
import shutil
from collections.abc import Iterator
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError

_DISK = (ENOSPC, EDQUOT, EFBIG, EROFS)


def cache_folder() -> Path:
    """Downloads and measurements, which can be made again (not created here); SPECDEC_CACHE moves it."""
    if chosen := os.environ.get("SPECDEC_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("specdec-onnx", appauthor=False)


def disk_error(error: BaseException) -> OSError | None:
    """The error of a disk that takes no more, if that is what `error` comes from; libraries wrap it in their own."""
    return next((each for each in _causes(error) if isinstance(each, OSError) and each.errno in _DISK), None)


def cannot_keep(what: str, folder: Path, error: OSError) -> SpecdecError:
    """The error for `what`, which was to be kept in a folder of the cache: which disk it is, and what to do."""
    fix = "free some space there, or set SPECDEC_CACHE to a folder on another disk; what was fetched is kept"
    if error.errno not in (ENOSPC, EDQUOT):
        return SpecdecError(f"cannot keep {what} in {folder}", str(error), fix)
    disk = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.ismount(place))
    why = (
        f"{error.strerror or 'no space is left'}: {shutil.disk_usage(disk).free / 1e9:.1f} GB are free on it"
    )
    return SpecdecError(f"the disk at {disk} is full: no room for {what} in {folder}", why, fix)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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
