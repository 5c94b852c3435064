"""Reading and writing conversations; one statement or one transaction per method."""

import json
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Literal

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.history.database import connect
from specdec_onnx.tui.chat.session import Packed, Piece, pack

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `parent` is the turn it follows, so siblings are branches."""

    id: int
    conversation: str
    parent: int | None
    role: Role
    text: str
    reason: str | None = None
    pieces: Sequence[Piece] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A tree of turns; `head` is the last turn of the branch that is shown."""

    id: str
    title: str
    model: str
    settings: Mapping[str, Any]
    head: int | None
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A line of the history list; `snippet` marks a match as `search` says."""

    id: str
    title: str
    model: str
    updated: float
    turns: int
    snippet: str = ""
    turn: int | None = None


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


def siblings(store: Store, turn: Turn) -> list[int]:
    """Ids of the turns that follow the same turn, oldest first; this one is among them unless it was deleted."""
    query = "SELECT id FROM turn WHERE conversation = ? AND parent IS ? AND role = ? ORDER BY id"
    return [row[0] for row in store.rows(query, turn.conversation, turn.parent, turn.role)]


def tip(store: Store, turn: int) -> int:
    """The newest leaf below a turn."""
    while found := store.rows("SELECT max(id) FROM turn WHERE parent = ?", turn)[0][0]:
        turn = found
    return turn


def switch(store: Store, turn: Turn, offset: int) -> bool:
    """Show the sibling `offset` places away, down to its newest leaf; False when there is none."""
    choices = siblings(store, turn)
    if turn.id not in choices:
        raise gone()
    place = choices.index(turn.id) + offset
    if not 0 <= place < len(choices):
        return False
    store.head(turn.conversation, tip(store, choices[place]))
    return True


def remove(store: Store, turn: Turn) -> None:
    """Delete a turn and all that followed it; the newest sibling, or else the parent, becomes the head."""
    with store.transaction():
        if not store.rows("DELETE FROM turn WHERE id = ? RETURNING id", turn.id):
            raise gone()
        left = siblings(store, turn)
        store.head(turn.conversation, tip(store, left[-1]) if left else turn.parent)


START, END = "\x02", "\x03"
"""Around a match in a snippet: nothing that people write."""
WORDS, LETTERS = 32, 64
"""The most that are looked for, and of each: enough to tell a pasted page by its beginning."""
TOP = 1
"""How much more the first places of a list count than those after them; the smaller, the more."""

_SUMMARY = "c.id, c.title, c.model, c.updated, (SELECT count(*) FROM turn WHERE conversation = c.id)"
_LIST = f"SELECT {_SUMMARY} FROM conversation AS c ORDER BY updated DESC, rowid DESC LIMIT ?"
_TEXT = f"""
WITH best(number, score) AS (
    SELECT turn.id, min(search.rank) FROM search JOIN turn ON turn.id = search.rowid
    WHERE search MATCH ?1 GROUP BY turn.conversation ORDER BY min(search.rank) LIMIT ?2
)
SELECT {_SUMMARY}, snippet(search, 0, '{START}', '{END}', '…', 8), turn.id
FROM best JOIN search ON search.rowid = best.number JOIN turn ON turn.id = best.number
JOIN conversation AS c ON c.id = turn.conversation
WHERE search MATCH ?1 ORDER BY best.score, c.updated DESC
"""
_TITLE = f"SELECT {_SUMMARY} FROM conversation AS c WHERE {{all}} ORDER BY updated DESC LIMIT ?"
_PARTS = f"""
SELECT {_SUMMARY} FROM conversation AS c
WHERE EXISTS (SELECT 1 FROM turn WHERE conversation = c.id AND {{all}}) ORDER BY updated DESC LIMIT ?
"""


def recent(store: Store, limit: int = 200) -> list[Summary]:
    """The latest conversations, newest first."""
    return [Summary(*row) for row in store.rows(_LIST, limit)]


def find(store: Store, typed: str, limit: int = 100) -> list[Summary]:
    """Conversations whose title or one of whose turns holds all words (they may be unfinished), best first.

    A conversation counts by its best turn. One that is found by its title and by its text comes before those that
    are as high in one of the two lists only. Where no word begins so, parts of words are looked for.
    """
    words = words_of(typed)
    if not words:
        return recent(store, limit)
    titles = _holding(store, _TITLE, "title", words, limit)
    texts = [Summary(*row) for row in store.rows(_TEXT, match_expression(words), limit)]
    if not (titles or texts):
        return _holding(store, _PARTS, "text", words, limit)
    return merged(titles, texts)[:limit]


def words_of(typed: str) -> list[str]:
    """The words of a search, each once and without control characters."""
    clean = "".join(c if c.isprintable() else " " for c in typed)
    return list(dict.fromkeys(word[:LETTERS] for word in clean.split()))[:WORDS]


def merged(titles: list[Summary], texts: list[Summary]) -> list[Summary]:
    """Both lists as one: a place counts by how far up it is, and places in both add up."""
    found = {each.id: each for each in [*titles, *texts]}  # those of the text know where they match
    score = dict.fromkeys(found, 0.0)
    for places in (titles, texts):
        for place, each in enumerate(places):
            score[each.id] += 1 / (TOP + place)
    return sorted(found.values(), key=lambda each: (-score[each.id], -each.updated))


def match_expression(words: list[str]) -> str:
    """FTS5 syntax for 'all of these words', with every operator made harmless."""
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words)


def _holding(store: Store, query: str, column: str, words: list[str], limit: int) -> list[Summary]:
    patterns = ["%" + "".join("!" + c if c in "!%_" else c for c in word) + "%" for word in words]
    condition = " AND ".join([f"{column} LIKE ? ESCAPE '!'"] * len(patterns))
    return [Summary(*row) for row in store.rows(query.format(all=condition), *patterns, limit)]


class Recorder:
    """Keeps at most one save under way; the newest state of the answer always wins."""

    def __init__(self, store: Store) -> None:
        self._twin = store.twin()
        self._own = self._twin is not store
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._running: Future[None] | None = None

    def offer(
        self, turn: int, text: str, reason: str | None, pieces: Sequence[Piece], statistics: Mapping[str, Any]
    ) -> bool:
        """Save unless a save is still running; a finished answer (reason given) is always saved."""
        if reason is None and self._running is not None and not self._running.done():
            return False
        state = (turn, text, reason, tuple(pieces), dict(statistics))
        self._running = self._pool.submit(self._twin.update, *state)
        return True

    def failure(self) -> BaseException | None:
        """What went wrong with the last finished save."""
        done = self._running is not None and self._running.done()
        return self._running.exception() if self._running is not None and done else None

    def wait(self) -> None:
        """Return when everything offered is on disk."""
        if self._running is not None:
            self._running.exception()

    def close(self) -> None:
        """Finish the last save and close the own connection."""
        self._pool.shutdown(wait=True)
        if self._own:
            self._twin.close()
