"""Export to Markdown and JSON, and the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.chat_app import chat_app, screen_of, until
from support.scripted_session import ScriptedSession

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.conversation import OpenConversation
from specdec_onnx.tui.chat.history.store import Conversation, Store
from specdec_onnx.tui.chat.history.transfer import from_json, to_json, to_markdown
from specdec_onnx.tui.chat.session import Piece
from specdec_onnx.tui.chat.settings import DEFAULTS


def sample(store: Store) -> Conversation:
    made = store.create("Two branches", "pair", {"system": "Be kind.\nBe brief.", "temperature": 0.5})
    asked = store.add(made.id, None, "user", "Hi *you*")
    first = store.add(made.id, asked.id, "assistant")
    store.update(first.id, "Hello ✓", "eos", [Piece("Hello", "draft"), Piece(" ✓", "target")], {"rounds": 1})
    second = store.add(made.id, asked.id, "assistant")
    store.update(second.id, "Hey", "cancelled", [Piece("Hey", "suffix"), Piece("!", "rejected")], {})
    found = store.conversation(made.id)
    assert found is not None
    return found


def test_json_comes_back_whole() -> None:
    store = Store(None)
    text = to_json(store, sample(store))
    other = Store(None)
    other.create("Already here", "", {})
    again = from_json(other, text)
    assert again.title == "Two branches" and again.settings["system"] == "Be kind.\nBe brief."
    old, new = json.loads(text), json.loads(to_json(other, again))
    shape = [(turn["role"], turn["text"], turn["reason"], turn["pieces"]) for turn in old["turns"]]
    assert [(turn["role"], turn["text"], turn["reason"], turn["pieces"]) for turn in new["turns"]] == shape
    assert [turn.text for turn in other.branch(again.head)] == ["Hi *you*", "Hey"]


def test_markdown_has_the_shown_branch_only() -> None:
    store = Store(None)
    made = sample(store)
    text = to_markdown(made, store.branch(made.head))
    assert text.startswith("# Two branches\n\n> Be kind.\n> Be brief.\n\n## You\n\nHi *you*\n")
    assert "## Assistant (stopped)\n\nHey\n" in text and "Hello" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        '{"format": "other"}',
        '{"format": "specdec-conversation", "version": 2, "title": "x", "turns": []}',
        '{"format": "specdec-conversation", "version": 1, "turns": []}',
        '{"format": "specdec-conversation", "version": 1, "title": "x", "turns": [{"role": "user"}]}',
        '{"format": "specdec-conversation", "version": 1, "title": "x", "head": 9, "turns": []}',
        '{"format": "specdec-conversation", "version": 1, "title": "x", "turns": [{"id": 1, "parent": 2}]}',
        (
            '{"format": "specdec-conversation", "version": 1, "title": "x", "head": 1, "turns": '
            '[{"id": 1, "role": "user", "text": "x", "pieces": [["a", 1]]}]}'
        ),
    ],
)
def test_a_foreign_file_is_refused_and_nothing_is_added(text: str) -> None:
    store = Store(None)
    with pytest.raises(SpecdecError):
        from_json(store, text)
    assert store.recent() == []


def damaged(where: str, value: Any) -> str:
    """An export in which one entry is something else; `turn.` in front means that of the answer."""
    turns: list[dict[str, Any]] = [
        {"id": 1, "parent": None, "role": "user", "text": "hi"},
        {"id": 2, "parent": 1, "role": "assistant", "text": "yo", "reason": "eos", "statistics": {}},
    ]
    body = {"format": "specdec-conversation", "version": 1, "title": "t", "turns": turns, "head": 2}
    (turns[1] if where.startswith("turn.") else body)[where.removeprefix("turn.")] = value
    return json.dumps(body)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *(("title", 3), ("title", "\ud83d"), ("settings", ["a"]), ("settings", "abc"), ("model", ["a"])),
        *(("head", [2]), ("head", "2"), ("head", True), ("version", True), ("turns", {})),
        *(("turn.id", [1]), ("turn.id", None), ("turn.parent", [1]), ("turn.parent", 2), ("turn.text", None)),
        *(("turn.text", "\ud83d"), ("turn.reason", {}), ("turn.reason", 3), ("turn.statistics", [1])),
        *(("turn.statistics", {"new_tokens": float("inf")}), ("turn.statistics", {"seconds": float("nan")})),
    ],
)
def test_an_export_with_a_damaged_entry_is_refused_and_nothing_is_added(where: str, value: Any) -> None:
    store = Store(None)
    with pytest.raises(SpecdecError):
        from_json(store, damaged(where, value))
    assert store.recent() == []


def test_a_file_nested_without_end_is_refused() -> None:
    with pytest.raises(SpecdecError):
        from_json(Store(None), "[" * 100_000)


@pytest.mark.parametrize(
    "statistics",
    [
        {"new_tokens": "x", "prompt_tokens": None},
        {"new_tokens": 3, "tokens_by_round": "abc"},
        {"new_tokens": 3, "tokens_by_round": [None, "x"]},
        {"new_tokens": 3, "decode_tokens_per_second": "fast", "drafted": 1, "acceptance_rate": {}},
        {"mode": 3, "pair": [], "error": {}},
    ],
)
async def test_figures_that_are_none_do_not_disturb_the_chat(
    tmp_path: Path, statistics: dict[str, Any]
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["x"]))
    async with app.run_test() as pilot:
        made = from_json(app.services.store, damaged("turn.statistics", statistics))
        await screen_of(app).conversations.open(made.id)
        await pilot.pause()
        await pilot.press("f3", "ctrl+o")
        await until(lambda: len(app.screen_stack) == 2)
        await pilot.press("escape")
        assert [turn.text for turn in screen_of(app).conversation.line] == ["hi", "yo"]


def test_a_device_and_settings_of_nowhere_keep_their_defaults() -> None:
    store = Store(None)
    odd = {"device": "npu", "stop": 3, "temperature": "hot", "system": ["a"]}
    made = from_json(store, damaged("settings", odd))
    opened = OpenConversation.load(store, made.id)
    assert opened is not None and opened.settings == DEFAULTS
