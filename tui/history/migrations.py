"""The schema, one step per version; `PRAGMA user_version` counts the steps taken."""

import sqlite3
from collections.abc import Sequence

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
