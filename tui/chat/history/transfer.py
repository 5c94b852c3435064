"""Conversations as files: Markdown to read, and JSON that can be imported again with all branches."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, TypeGuard

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.history.store import Conversation, Store, Turn
from specdec_onnx.tui.chat.session import pack, unpack

FORMAT = "specdec-conversation"
VERSION = 1
UNTITLED = "Imported conversation"
NUMBERS = (
    *("decode_tokens_per_second", "new_tokens", "drafted", "tokens_per_round", "acceptance_rate"),
    *("time_to_first_token_ms", "prompt_tokens", "accepted", "rounds", "seconds"),
)


def to_markdown(conversation: Conversation, branch: Sequence[Turn]) -> str:
    """Write the shown branch as a Markdown document."""
    parts = [f"# {conversation.title}\n"]
    if system := str(conversation.settings.get("system") or ""):
        parts.append(f"> {system}\n".replace("\n", "\n> ").removesuffix("\n> ") + "\n")
    for turn in branch:
        heading = "You" if turn.role == "user" else "Assistant"
        stopped = " (stopped)" if turn.reason == "cancelled" else ""
        parts.append(f"## {heading}{stopped}\n\n{turn.text.strip()}\n")
    return "\n".join(parts)


def to_json(store: Store, conversation: Conversation) -> str:
    """Write every branch, with the statistics and the source of each token."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "title": conversation.title,
        "model": conversation.model,
        "settings": dict(conversation.settings),
        "head": conversation.head,
        "turns": [_as_dict(turn) for turn in store.turns(conversation.id)],
    }
    return json.dumps(body, ensure_ascii=False, indent=1)


def _as_dict(turn: Turn) -> dict[str, Any]:
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
    """Add an exported conversation as a new one. Raises SpecdecError and adds nothing if the text is not one."""
    body = _checked(text)
    with store.transaction():
        title = body["title"].strip() or UNTITLED
        conversation = store.create(title, body.get("model") or "", body.get("settings") or {})
        ids: dict[Any, int | None] = {None: None}
        for entry in body["turns"]:
            parent = ids[entry.get("parent")]
            turn = store.add(conversation.id, parent, entry["role"], entry["text"])
            pieces = unpack(json.dumps(entry.get("pieces") or []))
            statistics = _figures(entry.get("statistics") or {})
            store.update(turn.id, turn.text, entry.get("reason"), pieces, statistics)
            ids[entry["id"]] = turn.id
        head = ids[body.get("head")]
        store.set_head(conversation.id, head)
    return replace(conversation, head=head)


def _figures(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out statistics of a type that the chat can't calculate with or show."""
    return {name: value for name, value in stored.items() if _is_figure(name, value)}


def _is_figure(name: str, value: object) -> bool:
    if name == "tokens_by_round":
        return isinstance(value, list) and all(type(each) is int for each in value)
    if name in ("mode", "pair", "error"):
        return isinstance(value, str)
    return type(value) in (int, float) or name not in NUMBERS


def _checked(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text, parse_constant=_reject_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _refused("it contains half a character (a lone surrogate)") from error
    except (ValueError, RecursionError) as error:
        raise _refused(f"it is not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _refused(f'it has no "format": "{FORMAT}"')
    if type(body.get("version")) is not int or body["version"] > VERSION:
        raise _refused(
            f"its version is {body.get('version')}, but this specdec reads versions up to {VERSION}"
        )
    _check_types(body)
    _check_turns(body["turns"], body.get("head"))
    return body


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check_types(body: Mapping[str, Any]) -> None:
    for name, type_ in (("title", str), ("turns", list), ("model", str | None), ("settings", dict | None)):
        if not isinstance(body.get(name), type_):
            raise _refused(f"its {name} is missing or has the wrong type")


def _check_turns(turns: Sequence[object], head: object) -> None:
    known: set[object] = {None}
    for entry in turns:
        if not _is_turn(entry) or entry["id"] in known or entry.get("parent") not in known:
            raise _refused("a turn is incomplete or comes before its parent")
        known.add(entry["id"])
    if type(head) not in (int, NoneType) or head not in known:
        raise _refused("its head is not one of its turns")


def _is_turn(entry: object) -> TypeGuard[dict[str, Any]]:
    types = (("id", int), ("parent", int | None), ("role", str), ("text", str), ("reason", str | None))
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), type_) for name, type_ in types):
        return False
    if entry["role"] not in ("user", "assistant") or not isinstance(entry.get("statistics"), dict | None):
        return False
    pieces = entry.get("pieces") or []
    rows = pieces if isinstance(pieces, list) else [None]
    return all(isinstance(row, list) and [type(part) for part in row] == [str, str] for row in rows)


def _refused(why: str) -> SpecdecError:
    return SpecdecError(
        "This file is not a conversation that specdec exported.", why, "Export it again as JSON."
    )
