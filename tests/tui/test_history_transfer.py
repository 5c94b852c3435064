"""Export to Markdown and JSON, and the way back."""

import json

import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.history.records import Conversation
from specdec_onnx.tui.history.search import recent
from specdec_onnx.tui.history.store import Store
from specdec_onnx.tui.history.transfer import from_json, to_json, to_markdown
from specdec_onnx.tui.pieces import Piece


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
    assert [turn.text for turn in other.line(again.head)] == ["Hi *you*", "Hey"]


def test_markdown_has_the_shown_branch_only() -> None:
    store = Store(None)
    made = sample(store)
    text = to_markdown(made, store.line(made.head))
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
    assert recent(store) == []
