"""Opening the history file: checked first, migrated, never overwritten."""

import sqlite3
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.migrations import APPLICATION_ID, STEPS, migrate, version

BUSY_SECONDS = 2.0
CHECKED_BYTES = 32 << 20


def connect(path: Path | None) -> sqlite3.Connection:
    """A ready connection; None keeps everything in memory. Raises SpecdecError and leaves the file as it is."""
    if path is None:
        return _prepared(_raw(":memory:"))
    _make_folder(path.parent)
    try:
        connection = _raw(str(path))
    except sqlite3.Error as error:
        raise _unusable(path, str(error)) from error
    try:
        _inspect(connection, path)
        return _prepared(connection)
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, str(error)) from error
    except SpecdecError:
        connection.close()
        raise


def _raw(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecdecError(
            f"The history folder {folder} can't be made.",
            str(error),
            "Set SPECDEC_HOME to a folder you can write to.",
        ) from error


def _inspect(connection: sqlite3.Connection, path: Path) -> None:
    found = version(connection)
    if found > len(STEPS):
        raise SpecdecError(
            f"The history {path} was written by a newer specdec.",
            f"It has schema version {found}; this one knows {len(STEPS)}.",
            "Update specdec-onnx, or set SPECDEC_HOME to another folder.",
        )
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise _unusable(path, "it is a database of another program")
    # A large history would keep the prompt waiting; SQLite reports what it meets there as it goes.
    small = path.stat().st_size <= CHECKED_BYTES
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if small else "ok"
    if verdict != "ok":
        raise _unusable(path, str(verdict))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    migrate(connection)
    return connection


def _unusable(path: Path, why: str) -> SpecdecError:
    return SpecdecError(
        f"The history {path} can't be used; it was left untouched.",
        why,
        "Move the file away to start a new history, or set SPECDEC_HOME to another folder.",
    )
