"""Reading and writing conversations; one statement or one transaction per method."""

import json
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.database import connect
from specdec_onnx.tui.history.records import Conversation, Role, Turn
from specdec_onnx.tui.pieces import Packed, Piece, pack

_TURN = "id, conversation, parent, role, text, reason, pieces, statistics, created"
_ANCESTORS = f"""
WITH RECURSIVE line(id) AS (
    SELECT ? UNION ALL SELECT turn.parent FROM turn JOIN line USING (id) WHERE turn.parent IS NOT NULL
) SELECT {_TURN} FROM turn WHERE id IN line ORDER BY id
"""


class Store:
    """The history; usable from any thread. `path` None means it lives in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock = RLock()
        self.connection = connect(path)

    def twin(self) -> "Store":
        """Another connection to the same file, so that its writes never make this one wait."""
        return self if self.path is None else Store(self.path)

    def close(self) -> None:
        """Finish with the file."""
        self.connection.close()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of one statement. SpecdecError when the file can't be read or written now."""
        with self._lock, _explained(self.path):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements inside happen, or none. SpecdecError when the file can't be written now."""
        with self._lock, _explained(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # a full disk has ended it already
                    self.connection.execute("ROLLBACK")
                raise

    def create(self, title: str, model: str, settings: Mapping[str, Any]) -> Conversation:
        """A new, empty conversation."""
        now, name = time.time(), uuid.uuid4().hex
        made = Conversation(name, title, model, dict(settings), None, now, now)
        values = (name, title, model, json.dumps(dict(settings)), now, now)
        self.rows("INSERT INTO conversation VALUES (?, ?, ?, ?, NULL, ?, ?)", *values)
        return made

    def conversation(self, name: str) -> Conversation | None:
        """One conversation by id, without its turns."""
        query = "SELECT id, title, model, settings, head, created, updated FROM conversation WHERE id = ?"
        for row in self.rows(query, name):
            return Conversation(row[0], row[1], row[2], json.loads(row[3]), *row[4:])
        return None

    def latest(self) -> Conversation | None:
        """The conversation touched last."""
        found = self.rows("SELECT id FROM conversation ORDER BY updated DESC LIMIT 1")
        return self.conversation(found[0][0]) if found else None

    def rename(self, name: str, title: str) -> None:
        """Give a conversation another title."""
        self.rows("UPDATE conversation SET title = ? WHERE id = ?", title, name)

    def configure(self, name: str, model: str, settings: Mapping[str, Any]) -> None:
        """Remember the model and the settings of a conversation."""
        values = (model, json.dumps(dict(settings)), name)
        self.rows("UPDATE conversation SET model = ?, settings = ? WHERE id = ?", *values)

    def delete(self, name: str) -> None:
        """Remove a conversation with all its branches."""
        self.rows("DELETE FROM conversation WHERE id = ?", name)

    def add(self, conversation: str, parent: int | None, role: Role, text: str = "") -> Turn:
        """Append a turn and make it the head. SpecdecError when what it follows was deleted by another chat."""
        now = time.time()
        with self.transaction():
            query = "INSERT INTO turn(conversation, parent, role, text, created) VALUES (?, ?, ?, ?, ?) RETURNING id"
            number = self.rows(query, conversation, parent, role, text, now)[0][0]
            self.head(conversation, number)
        return Turn(number, conversation, parent, role, text, created=now)

    def head(self, conversation: str, turn: int | None) -> None:
        """Show the branch that ends with this turn."""
        query = "UPDATE conversation SET head = ?, updated = ? WHERE id = ?"
        self.rows(query, turn, time.time(), conversation)

    def update(
        self, turn: int, text: str, reason: str | None, pieces: Iterable[Piece], statistics: Mapping[str, Any]
    ) -> None:
        """Save an answer as far as it has come; reason None means that it is still being written."""
        values = (text, reason, pack(pieces), json.dumps(dict(statistics)), turn)
        self.rows("UPDATE turn SET text = ?, reason = ?, pieces = ?, statistics = ? WHERE id = ?", *values)

    def turn(self, number: int) -> Turn | None:
        """One turn by id."""
        found = self.rows(f"SELECT {_TURN} FROM turn WHERE id = ?", number)
        return _turn(found[0]) if found else None

    def line(self, head: int | None) -> list[Turn]:
        """The branch from the first turn to `head`."""
        return [] if head is None else [_turn(row) for row in self.rows(_ANCESTORS, head)]

    def all_turns(self, conversation: str) -> list[Turn]:
        """Every turn of every branch, oldest first."""
        query = f"SELECT {_TURN} FROM turn WHERE conversation = ? ORDER BY id"
        return [_turn(row) for row in self.rows(query, conversation)]


@contextmanager
def _explained(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:  # a turn would follow one that is not there
        raise gone() from error
    except sqlite3.Error as error:
        raise SpecdecError(
            "The history can't be used now.",
            f"{path or 'memory'}: {error}",
            "Free some space or close what holds the file, then try again.",
        ) from error


def gone() -> SpecdecError:
    """What somebody is told whose conversation is not there any more."""
    return SpecdecError(
        "This part of the conversation is gone.",
        "It was deleted in another window.",
        "What is left is shown now; ask again.",
    )


def _turn(row: tuple[Any, ...]) -> Turn:
    number, conversation, parent, role, text, reason, pieces, statistics, created = row
    figures = json.loads(statistics)
    return Turn(number, conversation, parent, role, text, reason, Packed(pieces), figures, created)
