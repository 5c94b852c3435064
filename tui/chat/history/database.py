"""Opening the history file: checked first, migrated, never overwritten."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError

APPLICATION_ID = 0x53504443  # "SPDC"

_FIRST = """
CREATE TABLE conversation (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    settings TEXT NOT NULL,
    head INTEGER REFERENCES turn(id) ON DELETE SET NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL
);
CREATE TABLE turn (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL REFERENCES conversation(id) ON DELETE CASCADE,
    parent INTEGER REFERENCES turn(id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    text TEXT NOT NULL,
    reason TEXT,
    pieces TEXT NOT NULL DEFAULT '[]',
    statistics TEXT NOT NULL DEFAULT '{}',
    created REAL NOT NULL
);
CREATE INDEX turn_conversation ON turn(conversation, parent);
CREATE INDEX turn_parent ON turn(parent);
CREATE INDEX conversation_updated ON conversation(updated);
CREATE VIRTUAL TABLE search USING fts5(
    text, content='turn', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
CREATE TRIGGER turn_added AFTER INSERT ON turn BEGIN
    INSERT INTO search(rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER turn_removed AFTER DELETE ON turn BEGIN
    INSERT INTO search(search, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TRIGGER turn_changed AFTER UPDATE OF text ON turn BEGIN
    INSERT INTO search(search, rowid, text) VALUES ('delete', old.id, old.text);
    INSERT INTO search(rowid, text) VALUES (new.id, new.text);
END;
"""

STEPS: tuple[str, ...] = (_FIRST,)


def version(connection: sqlite3.Connection) -> int:
    """How many migration steps this database has taken."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, steps: Sequence[str] = STEPS) -> None:
    """Take the missing steps, each in one transaction with its version number."""
    for number in range(version(connection), len(steps)):
        connection.executescript(
            f"BEGIN IMMEDIATE; {steps[number]} PRAGMA user_version = {number + 1};"
            f" PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
        )


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
