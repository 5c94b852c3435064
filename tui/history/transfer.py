"""Conversations as Markdown to read and as JSON to move; the JSON comes back in whole, branches included."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.records import Conversation, Turn
from specdec_onnx.tui.history.store import Store
from specdec_onnx.tui.pieces import Packed, pack

FORMAT = "specdec-conversation"
VERSION = 1


def to_markdown(conversation: Conversation, line: Sequence[Turn]) -> str:
    """The shown branch as one Markdown document."""
    parts = [f"# {conversation.title}\n"]
    if system := str(conversation.settings.get("system") or ""):
        parts.append(f"> {system}\n".replace("\n", "\n> ").removesuffix("\n> ") + "\n")
    for turn in line:
        heading = "You" if turn.role == "user" else "Assistant"
        stopped = " (stopped)" if turn.reason == "cancelled" else ""
        parts.append(f"## {heading}{stopped}\n\n{turn.text.strip()}\n")
    return "\n".join(parts)


def to_json(store: Store, conversation: Conversation) -> str:
    """Every branch, with statistics and token sources."""
    turns = [_plain(turn) for turn in store.all_turns(conversation.id)]
    body = {
        "format": FORMAT,
        "version": VERSION,
        "title": conversation.title,
        "model": conversation.model,
        "settings": dict(conversation.settings),
        "head": conversation.head,
        "turns": turns,
    }
    return json.dumps(body, ensure_ascii=False, indent=1)


def _plain(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "parent": turn.parent,
        "role": turn.role,
        "text": turn.text,
        "reason": turn.reason,
        "pieces": json.loads(pack(turn.pieces)),
        "statistics": dict(turn.statistics),
    }


def from_json(store: Store, text: str) -> Conversation:
    """Read an exported conversation as a new one. Raises SpecdecError and adds nothing when it is not one."""
    body = _checked(text)
    with store.transaction():
        made = store.create(str(body["title"]), str(body.get("model", "")), dict(body.get("settings") or {}))
        numbers: dict[Any, int | None] = {None: None}
        for entry in body["turns"]:
            numbers[entry["id"]] = _insert(store, made.id, numbers, entry)
        store.head(made.id, numbers[body.get("head")])
    found = store.conversation(made.id)
    assert found is not None
    return found


def _insert(
    store: Store, conversation: str, numbers: Mapping[Any, int | None], entry: Mapping[str, Any]
) -> int:
    query = "INSERT INTO turn(conversation, parent, role, text, created) VALUES (?, ?, ?, ?, 0) RETURNING id"
    parent = numbers[entry.get("parent")]
    number = int(store.rows(query, conversation, parent, entry["role"], str(entry["text"]))[0][0])
    pieces = Packed(json.dumps(entry.get("pieces") or []))
    store.update(number, str(entry["text"]), entry.get("reason"), pieces, entry.get("statistics") or {})
    return number


def _checked(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise _refused(f"it is not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _refused(f'it has no "format": "{FORMAT}"')
    if not isinstance(body.get("version"), int) or body["version"] > VERSION:
        raise _refused(f"its version is {body.get('version')}, this specdec reads up to {VERSION}")
    _check_turns(body)
    return body


def _check_turns(body: Mapping[str, Any]) -> None:
    seen: set[Any] = {None}
    turns = body.get("turns")
    if not isinstance(turns, list) or "title" not in body:
        raise _refused("it has no title or no list of turns")
    for entry in turns:
        if not _is_turn(entry) or entry.get("id") in seen or entry.get("parent") not in seen:
            raise _refused("a turn is incomplete, or comes before the turn it follows")
        seen.add(entry["id"])
    if body.get("head") not in seen:
        raise _refused("its head is not one of its turns")


def _is_turn(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.get("role") not in ("user", "assistant") or "text" not in entry:
        return False
    pieces = entry.get("pieces") or []
    rows = pieces if isinstance(pieces, list) else [None]
    return all(isinstance(row, list) and [type(part) for part in row] == [str, str] for row in rows)


def _refused(why: str) -> SpecdecError:
    return SpecdecError(
        "This file is not a conversation that specdec exported.", why, "Export it again as JSON."
    )
