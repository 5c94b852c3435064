"""The history list and full-text search over it."""

from specdec_onnx.tui.history.records import Summary
from specdec_onnx.tui.history.store import Store

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
