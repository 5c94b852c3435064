"""The history list and full-text search over it."""

from specdec_onnx.tui.history.records import Summary
from specdec_onnx.tui.history.store import Store

_LIST = """
SELECT id, title, model, updated, (SELECT count(*) FROM turn WHERE conversation = conversation.id)
FROM conversation ORDER BY updated DESC, rowid DESC LIMIT ?
"""
_TEXT = """
SELECT c.id, c.title, c.model, c.updated, (SELECT count(*) FROM turn WHERE conversation = c.id),
       snippet(search, 0, '[', ']', '…', 8), turn.id
FROM search JOIN turn ON turn.id = search.rowid JOIN conversation AS c ON c.id = turn.conversation
WHERE search MATCH ? ORDER BY rank LIMIT ?
"""
_TITLE = """
SELECT id, title, model, updated, (SELECT count(*) FROM turn WHERE conversation = conversation.id)
FROM conversation WHERE title LIKE ? ESCAPE '!' ORDER BY updated DESC LIMIT ?
"""


def recent(store: Store, limit: int = 200) -> list[Summary]:
    """The latest conversations, newest first."""
    return [Summary(*row) for row in store.rows(_LIST, limit)]


def find(store: Store, words: str, limit: int = 100) -> list[Summary]:
    """Conversations whose title or text holds all words (the last may be unfinished); best first."""
    if not words.strip():
        return recent(store, limit)
    pattern = "%" + "".join("!" + c if c in "!%_" else c for c in words.strip()) + "%"
    hits = {row[0]: Summary(*row) for row in store.rows(_TITLE, pattern, limit)}
    for row in store.rows(_TEXT, match_expression(words), limit):
        hits[row[0]] = Summary(*row)
    return list(hits.values())[:limit]


def match_expression(words: str) -> str:
    """FTS5 syntax for 'all of these words', with every operator made harmless."""
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words.split())
