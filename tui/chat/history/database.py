"""Open the history file: check it, migrate it, never overwrite it."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError

APPLICATION_ID = 0x53504443  # "SPDC"
BUSY_SECONDS = 2.0
CHECKED_BYTES = 32 << 20
"""Largest file that is checked in full when it is opened."""

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


def connect(path: Path | None) -> sqlite3.Connection:
    """Open the history, or one in memory if `path` is None.

    Raises SpecdecError if the file can't be used, and leaves it untouched.
    """
    if path is None:
        return _prepared(_raw(":memory:"))
    _make_folder(path.parent)
    try:
        connection = _raw(str(path))
        try:
            _inspect(connection, path)
            return _prepared(connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise _unusable(path, str(error)) from error


def version(connection: sqlite3.Connection) -> int:
    """Return how many migration steps this database has taken."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, steps: Sequence[str] = STEPS) -> None:
    """Run the missing steps, each in one transaction with its version number."""
    for number in range(version(connection), len(steps)):
        connection.executescript(
            f"BEGIN IMMEDIATE; {steps[number]} PRAGMA user_version = {number + 1};"
            f" PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
        )


def _raw(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecdecError(
            f"The history folder {folder} can't be created.",
            str(error),
            "Set SPECDEC_HOME to a folder you can write to.",
        ) from error


def _inspect(connection: sqlite3.Connection, path: Path) -> None:
    stored = version(connection)
    if stored > len(STEPS):
        raise SpecdecError(
            f"The history {path} was written by a newer specdec.",
            f"Its schema version is {stored}; this version of specdec supports up to {len(STEPS)}.",
            "Update specdec-onnx, or set SPECDEC_HOME to another folder.",
        )
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise _unusable(path, "it is another program's database")
    # Checking a large history would delay the prompt; SQLite reports damage there when it reads it.
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
