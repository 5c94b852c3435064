"""The history: conversations as trees of turns in SQLite, and the search over all of them."""

import json
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, Literal

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.history.database import connect
from specdec_onnx.tui.chat.session import Piece, pack, unpack

Role = Literal["user", "assistant"]
MATCH_START, MATCH_END = "\x02", "\x03"
"""Surround each match in a snippet; nobody types them."""


@dataclass(frozen=True)
class Turn:
    """One message; `parent` is the turn it follows, so turns with the same parent are branches.

    `reason` says why an answer ended; None means that it is being written, or was when the program ended.
    """

    id: int
    conversation: str
    parent: int | None
    role: Role
    text: str
    reason: str | None = None
    packed: str = "[]"
    """The tokens as JSON; a conversation is opened more often than its tokens are viewed."""
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The tokens, the rejected ones too."""
        return unpack(self.packed)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A tree of turns; `head` is the last turn of the branch that is shown."""

    id: str
    title: str
    model: str
    settings: Mapping[str, Any]
    head: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the history list; after a search, `snippet` is the text around the best match, in turn `turn`."""

    id: str
    title: str
    model: str
    updated: float
    turns: int
    snippet: str = ""
    turn: int | None = None


_Rows = list[tuple[Any, ...]]
_WHOLE_CONVERSATION = "SELECT * FROM conversation WHERE id = ?"
_WHOLE_TURNS = "SELECT * FROM turn WHERE conversation = ? ORDER BY id"
_CONVERSATION = "id, title, model, settings, head"
_TURN = "id, conversation, parent, role, text, reason, pieces, statistics"
_ANCESTORS = f"""
WITH RECURSIVE branch(id) AS (
    SELECT ? UNION ALL SELECT turn.parent FROM turn JOIN branch USING (id) WHERE turn.parent IS NOT NULL
) SELECT {_TURN} FROM turn WHERE id IN branch ORDER BY id
"""
_SPEEDS = """
SELECT conversation.model, turn.statistics FROM turn JOIN conversation ON conversation.id = turn.conversation
WHERE turn.role = 'assistant' AND turn.reason IS NOT NULL ORDER BY turn.id DESC LIMIT 1000
"""
_SUMMARY = "c.id, c.title, c.model, c.updated, (SELECT count(*) FROM turn WHERE conversation = c.id)"
_RECENT = f"SELECT {_SUMMARY} FROM conversation AS c ORDER BY updated DESC, rowid DESC LIMIT ?"
_IN_TEXTS = f"""
WITH best(number, score) AS (
    SELECT turn.id, min(search.rank) FROM search JOIN turn ON turn.id = search.rowid
    WHERE search MATCH ?1 GROUP BY turn.conversation ORDER BY min(search.rank) LIMIT ?2
)
SELECT {_SUMMARY}, snippet(search, 0, '{MATCH_START}', '{MATCH_END}', '…', 8), turn.id
FROM best JOIN search ON search.rowid = best.number JOIN turn ON turn.id = best.number
JOIN conversation AS c ON c.id = turn.conversation
WHERE search MATCH ?1 ORDER BY best.score, c.updated DESC
"""
_IN_TITLES = f"SELECT {_SUMMARY} FROM conversation AS c WHERE {{all}} ORDER BY updated DESC LIMIT ?"
_INSIDE_WORDS = f"""
SELECT {_SUMMARY} FROM conversation AS c
WHERE EXISTS (SELECT 1 FROM turn WHERE conversation = c.id AND {{all}}) ORDER BY updated DESC LIMIT ?
"""
_MOST_WORDS, _MOST_LETTERS = 32, 64
"""How many words a search takes, and how many letters of each: enough to recognize a pasted page by its beginning."""


class Store:
    """The history file; usable from any thread. With `path` None it lives in memory only.

    Every method raises SpecdecError when the file can't be read or written at the moment.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock = RLock()
        self.connection = connect(path)
        self._file = _identity(path)

    def twin(self) -> "Store":
        """Open another connection to the same file, whose writes never block this one; in memory, this store itself."""
        return self if self.path is None else Store(self.path)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def lost(self) -> bool:
        """Whether somebody deleted or replaced the file; what is written into it then is gone with this program."""
        return self.path is not None and _identity(self.path) != self._file

    def recreate(self, conversation: str) -> None:
        """Begin a new file with this conversation only; in memory if that fails, which raises SpecdecError."""
        with self._lock:
            kept, turns = self.rows(_WHOLE_CONVERSATION, conversation), self.rows(_WHOLE_TURNS, conversation)
            newest = self.rows("SELECT seq FROM sqlite_sequence WHERE name = 'turn'")
            self.connection.close()
            try:
                self.connection, self._file = connect(self.path), _identity(self.path)
                self._insert(kept, turns, newest)
            except SpecdecError:
                self.path, self.connection = None, connect(None)
                self._insert(kept, turns, newest)
                raise

    def _insert(self, conversations: _Rows, turns: _Rows, newest: _Rows) -> None:
        """Insert rows with their numbers, and give none to a new turn that another window may have used."""
        with self.transaction():
            for id, title, model, settings, head, *rest in conversations:
                self._insert_row("conversation", (id, title, model, settings, None, *rest))
                for turn in turns:
                    self._insert_row("turn", turn)
                self.rows("UPDATE conversation SET head = ? WHERE id = ?", head, id)
            for (number,) in newest:
                self.rows("DELETE FROM sqlite_sequence WHERE name = 'turn' AND seq < ?", number)
                self.rows(
                    "INSERT INTO sqlite_sequence SELECT 'turn', ? WHERE NOT EXISTS "
                    "(SELECT 1 FROM sqlite_sequence WHERE name = 'turn')",
                    number,
                )

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement and return all its rows."""
        with self._lock, _clear_errors(self.path):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run all statements inside, or none of them. Transactions may be nested; the outermost one commits."""
        with self._lock, _clear_errors(self.path):
            if self.connection.in_transaction:
                yield
                return
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # a full disk has already ended it
                    self.connection.execute("ROLLBACK")
                raise

    def _insert_row(self, table: str, values: tuple[Any, ...]) -> None:
        self.rows(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", *values)

    def create(self, title: str, model: str, settings: Mapping[str, Any]) -> Conversation:
        """Add a conversation without turns."""
        conversation = Conversation(uuid.uuid4().hex, title, model, dict(settings))
        now = time.time()
        values = (conversation.id, title, model, json.dumps(dict(settings)), now, now)
        self.rows("INSERT INTO conversation VALUES (?, ?, ?, ?, NULL, ?, ?)", *values)
        return conversation

    def conversation(self, id: str) -> Conversation | None:
        """Read one conversation, without its turns."""
        rows = self.rows(f"SELECT {_CONVERSATION} FROM conversation WHERE id = ?", id)
        return _conversation(rows[0]) if rows else None

    def latest(self) -> Conversation | None:
        """Read the conversation that was changed last."""
        rows = self.rows(f"SELECT {_CONVERSATION} FROM conversation ORDER BY updated DESC LIMIT 1")
        return _conversation(rows[0]) if rows else None

    def rename(self, conversation: str, title: str) -> None:
        """Give a conversation another title."""
        self.rows("UPDATE conversation SET title = ? WHERE id = ?", title, conversation)

    def configure(self, conversation: str, model: str, settings: Mapping[str, Any]) -> None:
        """Save the model and the settings of a conversation."""
        values = (model, json.dumps(dict(settings)), conversation)
        self.rows("UPDATE conversation SET model = ?, settings = ? WHERE id = ?", *values)

    def delete(self, conversation: str) -> None:
        """Delete a conversation with all its branches."""
        self.rows("DELETE FROM conversation WHERE id = ?", conversation)

    def set_head(self, conversation: str, turn: int | None) -> None:
        """Show the branch that ends with this turn."""
        query = "UPDATE conversation SET head = ?, updated = ? WHERE id = ?"
        self.rows(query, turn, time.time(), conversation)

    def add(self, conversation: str, parent: int | None, role: Role, text: str = "") -> Turn:
        """Append a turn and make it the head. Raises SpecdecError if its parent was deleted by another chat."""
        query = (
            "INSERT INTO turn(conversation, parent, role, text, created) VALUES (?, ?, ?, ?, ?) RETURNING id"
        )
        with self.transaction():
            id = self.rows(query, conversation, parent, role, text, time.time())[0][0]
            self.set_head(conversation, id)
        return Turn(id, conversation, parent, role, text)

    def update(
        self, turn: int, text: str, reason: str | None, pieces: Iterable[Piece], statistics: Mapping[str, Any]
    ) -> None:
        """Save an answer as far as it is written; reason None means that more will follow."""
        values = (text, reason, pack(pieces), json.dumps(dict(statistics)), turn)
        self.rows("UPDATE turn SET text = ?, reason = ?, pieces = ?, statistics = ? WHERE id = ?", *values)

    def turn(self, id: int) -> Turn | None:
        """Read one turn."""
        rows = self.rows(f"SELECT {_TURN} FROM turn WHERE id = ?", id)
        return _turn(rows[0]) if rows else None

    def turns(self, conversation: str) -> list[Turn]:
        """Read the turns of all branches, oldest first."""
        query = f"SELECT {_TURN} FROM turn WHERE conversation = ? ORDER BY id"
        return [_turn(row) for row in self.rows(query, conversation)]

    def branch(self, head: int | None) -> list[Turn]:
        """Read the turns from the first one to `head`."""
        return [] if head is None else [_turn(row) for row in self.rows(_ANCESTORS, head)]

    def siblings(self, turn: Turn) -> list[int]:
        """Return the ids of all turns with this turn's parent, oldest first, including its own unless it was deleted."""
        query = "SELECT id FROM turn WHERE conversation = ? AND parent IS ? AND role = ? ORDER BY id"
        return [row[0] for row in self.rows(query, turn.conversation, turn.parent, turn.role)]

    def newest_leaf(self, turn: int) -> int:
        """Follow the newest branch from this turn to its end."""
        while child := self.rows("SELECT max(id) FROM turn WHERE parent = ?", turn)[0][0]:
            turn = child
        return turn

    def switch(self, turn: Turn, offset: int) -> bool:
        """Show the sibling `offset` positions away, down to its newest leaf; return False if there is none."""
        siblings = self.siblings(turn)
        if turn.id not in siblings:
            raise deleted_elsewhere()
        position = siblings.index(turn.id) + offset
        if not 0 <= position < len(siblings):
            return False
        self.set_head(turn.conversation, self.newest_leaf(siblings[position]))
        return True

    def delete_turn(self, turn: Turn) -> None:
        """Delete a turn and all that follow it; the newest sibling, or else the parent, becomes the head."""
        with self.transaction():
            if not self.rows("DELETE FROM turn WHERE id = ? RETURNING id", turn.id):
                raise deleted_elsewhere()
            siblings = self.siblings(turn)
            head = self.newest_leaf(siblings[-1]) if siblings else turn.parent
            self.set_head(turn.conversation, head)

    def recent(self, limit: int = 200) -> list[Summary]:
        """List the latest conversations, newest first."""
        return [Summary(*row) for row in self.rows(_RECENT, limit)]

    def search(self, typed: str, limit: int = 100) -> list[Summary]:
        """List the conversations whose title, or one of whose turns, contains all words, best first.

        The last letters of a word may be missing. A conversation ranks by its best turn; one that matches in title
        and text ranks above those that are as high in only one of the two lists. If no word starts with what was
        typed, the words are searched for inside others.
        """
        words = _words(typed)
        if not words:
            return self.recent(limit)
        titles = self._containing(_IN_TITLES, "title", words, limit)
        texts = [Summary(*row) for row in self.rows(_IN_TEXTS, _match_expression(words), limit)]
        if not (titles or texts):
            return self._containing(_INSIDE_WORDS, "text", words, limit)
        return _merge(titles, texts)[:limit]

    def _containing(self, query: str, column: str, words: list[str], limit: int) -> list[Summary]:
        patterns = ["%" + "".join("!" + c if c in "!%_" else c for c in word) + "%" for word in words]
        condition = " AND ".join([f"{column} LIKE ? ESCAPE '!'"] * len(patterns))
        return [Summary(*row) for row in self.rows(query.format(all=condition), *patterns, limit)]

    def measured_speeds(self, answers: int = 20) -> dict[str, float]:
        """Return, by pair, the median decode speed of its latest speculative answers, in tokens per second."""
        speeds: dict[str, list[float]] = {}
        for model, stored in self.rows(_SPEEDS):
            statistics = json.loads(stored)
            speed = statistics.get("decode_tokens_per_second") or 0.0
            latest = speeds.setdefault(statistics.get("pair") or model, [])
            if speed and statistics.get("mode") != "plain" and len(latest) < answers:
                latest.append(speed)
        return {pair: sorted(latest)[len(latest) // 2] for pair, latest in speeds.items() if latest}


def deleted_elsewhere() -> SpecdecError:
    """The error for a turn or conversation that another window has deleted."""
    return SpecdecError(
        "This part of the conversation was deleted.",
        "It was deleted in another window.",
        "The screen now shows what is left. Ask again.",
    )


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Which file is there now; None if there is none."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found is not None else None


@contextmanager
def _clear_errors(path: Path | None) -> Iterator[None]:
    """Turn the errors of SQLite into errors for the reader."""
    try:
        yield
    except sqlite3.IntegrityError as error:  # the parent of a new turn is missing
        raise deleted_elsewhere() from error
    except sqlite3.Error as error:
        raise SpecdecError(
            "The history can't be accessed right now.",
            f"{path or 'memory'}: {error}",
            "Free some disk space or close the program that locks the file, then try again.",
        ) from error


def _conversation(row: tuple[Any, ...]) -> Conversation:
    id, title, model, settings, head = row
    return Conversation(id, title, model, json.loads(settings), head)


def _turn(row: tuple[Any, ...]) -> Turn:
    id, conversation, parent, role, text, reason, pieces, statistics = row
    return Turn(id, conversation, parent, role, text, reason, pieces, json.loads(statistics))


def _words(typed: str) -> list[str]:
    """The words of a search, each once and without control characters."""
    clean = "".join(c if c.isprintable() else " " for c in typed)
    return list(dict.fromkeys(word[:_MOST_LETTERS] for word in clean.split()))[:_MOST_WORDS]


def _match_expression(words: list[str]) -> str:
    """Ask FTS5 for all of these words, with every operator quoted."""
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words)


def _merge(titles: list[Summary], texts: list[Summary]) -> list[Summary]:
    """Rank both lists as one by the sum of 1 / position in each."""
    summaries = {each.id: each for each in [*titles, *texts]}  # those of the texts have a snippet
    score = dict.fromkeys(summaries, 0.0)
    for ranked in (titles, texts):
        for position, each in enumerate(ranked, start=1):
            score[each.id] += 1 / position
    return sorted(summaries.values(), key=lambda each: (-score[each.id], -each.updated))


class Recorder:
    """Saves a growing answer in a thread of its own, with at most one save running; the newest state wins."""

    def __init__(self, store: Store) -> None:
        self._open(store)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._latest: Future[None] | None = None

    def offer(
        self, turn: int, text: str, reason: str | None, pieces: Sequence[Piece], statistics: Mapping[str, Any]
    ) -> None:
        """Save the answer, unless a save is still running; a finished answer (with a reason) is always saved."""
        if reason is None and self._latest is not None and not self._latest.done():
            return
        state = (turn, text, reason, tuple(pieces), dict(statistics))
        self._latest = self._pool.submit(self._twin.update, *state)

    def failure(self) -> BaseException | None:
        """Return the error of the latest save if it has failed."""
        return self._latest.exception() if self._latest is not None and self._latest.done() else None

    def wait(self) -> None:
        """Block until everything offered is on disk."""
        if self._latest is not None:
            self._latest.exception()

    @contextmanager
    def aside(self, store: Store) -> Iterator[None]:
        """Let the store change its file: finish the last save before, and open the file again afterwards."""
        self.wait()
        self._close()
        try:
            yield
        finally:
            self._open(store)

    def close(self) -> None:
        """Finish the last save."""
        self._pool.shutdown(wait=True)
        self._close()

    def _open(self, store: Store) -> None:
        self._twin = store.twin()
        self._owns_twin = self._twin is not store

    def _close(self) -> None:
        if self._owns_twin:
            self._twin.close()
