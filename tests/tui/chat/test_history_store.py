"""Turns, branches and search in the SQLite history."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_onnx.tui.chat.conversation import messages
from specdec_onnx.tui.chat.history.store import MATCH_END, MATCH_START, Conversation, Store
from specdec_onnx.tui.chat.session import Piece


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "history.sqlite3")


def exchange(store: Store, conversation: Conversation, question: str, answer: str) -> tuple[int, int]:
    head = store.conversation(conversation.id)
    asked = store.add(conversation.id, head.head if head else None, "user", question)
    said = store.add(conversation.id, asked.id, "assistant")
    store.update(said.id, answer, "eos", [Piece(answer, "draft")], {"new_tokens": 1})
    return asked.id, said.id


def test_a_turn_comes_back_with_its_pieces_and_statistics(store: Store) -> None:
    conversation = store.create("Hello", "pair", {"system": "Be brief."})
    _, said = exchange(store, conversation, "Hi", "Hello there")
    reopened = Store(store.path)
    line = reopened.branch(said)
    assert [(turn.role, turn.text) for turn in line] == [("user", "Hi"), ("assistant", "Hello there")]
    assert line[1].pieces == (Piece("Hello there", "draft"),)
    assert line[1].statistics == {"new_tokens": 1}
    assert line[1].reason == "eos"
    again = reopened.conversation(conversation.id)
    assert again is not None and again.settings == {"system": "Be brief."} and again.head == said


def test_regenerating_makes_a_branch_and_switching_goes_back_to_its_newest_leaf(store: Store) -> None:
    conversation = store.create("Branches", "", {})
    asked, first = exchange(store, conversation, "One", "first answer")
    deeper = exchange(store, conversation, "Two", "deeper")[1]
    second = store.add(conversation.id, asked, "assistant", "second answer")
    assert store.siblings(second) == [first, second.id]
    assert not store.switch(second, 1)
    assert store.switch(second, -1)
    current = store.conversation(conversation.id)
    assert current is not None and current.head == deeper == store.newest_leaf(first)


def test_removing_a_turn_takes_its_answers_and_leaves_its_sibling(store: Store) -> None:
    conversation = store.create("Delete", "", {})
    asked, first = exchange(store, conversation, "Question", "kept words")
    second = store.add(conversation.id, asked, "assistant", "zebra")
    store.delete_turn(second)
    current = store.conversation(conversation.id)
    assert current is not None and current.head == first
    assert store.search("zebra") == [] and len(store.search("kept")) == 1
    question = store.turn(asked)
    assert question is not None
    store.delete_turn(question)
    current = store.conversation(conversation.id)
    assert current is not None and current.head is None and store.turns(conversation.id) == []


def test_search_finds_unfinished_words_accents_and_titles(store: Store) -> None:
    cooking = store.create("Cooking", "", {})
    exchange(store, cooking, "How long do I boil eggs?", "Seven minutes in a Café.")
    coding = store.create("Eggs in code", "", {})
    exchange(store, coding, "Reverse a list", "Use reversed().")
    assert [hit.title for hit in store.search("boil eg")] == ["Cooking"]
    assert [hit.title for hit in store.search("cafe")] == ["Cooking"]
    assert {hit.title for hit in store.search("eggs")} == {"Cooking", "Eggs in code"}
    assert f"{MATCH_START}Seven{MATCH_END}" in next(hit.snippet for hit in store.search("seven"))
    assert [hit.title for hit in store.recent()] == ["Eggs in code", "Cooking"]


def test_a_conversation_is_found_by_its_best_turn(store: Store) -> None:
    long = "and so on " * 200
    good = store.create("One", "", {})
    exchange(store, good, "river", f"{long} river {long}")
    exchange(store, good, f"{long} river", f"{long} river {long}")
    middling = store.create("Two", "", {})
    exchange(store, middling, "x", f"a river {long[:300]}")
    hits = store.search("river")
    assert [hit.title for hit in hits] == ["One", "Two"]
    assert hits[0].snippet == f"{MATCH_START}river{MATCH_END}"
    question = store.turn(hits[0].turn or 0)
    assert question is not None and question.text == "river"


def test_one_conversation_with_many_hits_hides_no_other(store: Store) -> None:
    chatty = store.create("Chatty", "", {})
    for _ in range(30):
        exchange(store, chatty, "river", "river")
    exchange(store, store.create("Other", "", {}), "x", "and a river in a longer text")
    assert {hit.title for hit in store.search("river", limit=5)} == {"Chatty", "Other"}


def test_a_title_does_not_come_before_a_better_text(store: Store) -> None:
    exchange(store, store.create("Rivers of Spain", "", {}), "Which are the longest?", "Tagus and Ebro")
    exchange(store, store.create("Talk", "", {}), "rivers", "Rivers, rivers, rivers.")
    for number in range(3):
        exchange(store, store.create(f"Rivers {number}", "", {}), "Hello", "Hi")
    found = [hit.title for hit in store.search("rivers")]
    assert set(found[:2]) == {"Talk", "Rivers 2"}, "the best text and the newest title, then the other titles"
    assert sorted(found[2:]) == ["Rivers 0", "Rivers 1", "Rivers of Spain"]
    assert [hit.title for hit in store.search("spain rivers")] == ["Rivers of Spain"], "in any order"


def test_what_is_found_by_title_and_text_comes_first(store: Store) -> None:
    exchange(store, store.create("About rivers", "", {}), "About rivers", "They flow.")
    exchange(store, store.create("Rivers", "", {}), "Hello", "Hi")
    exchange(store, store.create("Talk", "", {}), "x", "a word about rivers and about much else")
    assert next(hit.title for hit in store.search("rivers about")) == "About rivers"


@pytest.mark.parametrize("words", ["好き", "🎉", "itchhik", "hitchhiker 銀河"])
def test_parts_of_words_are_found_where_no_word_begins_so(store: Store, words: str) -> None:
    exchange(
        store, store.create("t", "", {}), "私は東京が好きです 🎉", "The Hitchhiker's Guide 銀河ヒッチハイク"
    )
    assert len(store.search(words)) == 1


@pytest.mark.parametrize(
    "typed",
    [
        *(
            "\0",
            "riv\0er",
            '"',
            '"" "',
            "river AND",
            "river OR",
            "NOT river",
            "river -story",
            "((river",
            "river*)",
        ),
        *(
            "NEAR/2(",
            "col : river",
            "^river",
            "{river}",
            "🎉" * 3000,
            "river " * 2000,
            "x" * 70_000,
            "\ud800",
        ),
        *(" ".join(f"w{number}" for number in range(3000)), "%" * 60_000, "'; DROP TABLE turn; --"),
    ],
    ids=range(21),
)
def test_no_search_is_an_error(store: Store, typed: str) -> None:
    exchange(store, store.create("t", "", {}), "tell me a river story", "text")
    assert len(store.search(typed)) <= 1


@given(st.text(max_size=60))
def test_no_typing_is_an_error(typed: str) -> None:
    store = Store(None)
    exchange(store, store.create(typed.encode(errors="replace").decode(), "", {}), "a river", "text")
    store.search(typed)
    store.close()


@pytest.mark.parametrize("words", ['"', "a OR", "NEAR(", "col:x", "*", "100%_!", "-x", "()"])
def test_search_takes_any_typing_as_words(store: Store, words: str) -> None:
    exchange(store, store.create("t", "", {}), "plain", "text")
    assert store.search(words) == []


def test_search_follows_a_growing_answer(store: Store) -> None:
    conversation = store.create("Stream", "", {})
    said = store.add(conversation.id, None, "assistant")
    store.update(said.id, "alpha", None, [], {})
    store.update(said.id, "alpha beta", None, [], {})
    assert store.search("beta") and store.search("alpha")
    store.delete(conversation.id)
    assert store.search("alpha") == [] and store.rows("SELECT count(*) FROM turn") == [(0,)]


def test_a_failed_transaction_changes_nothing(store: Store) -> None:
    conversation = store.create("Safe", "", {})
    with pytest.raises(RuntimeError), store.transaction():
        store.rename(conversation.id, "Broken")
        raise RuntimeError
    kept = store.conversation(conversation.id)
    assert kept is not None and kept.title == "Safe"


def test_messages_alternate_even_after_an_answer_without_text(store: Store) -> None:
    conversation = store.create("Empty", "", {})
    _, silent = exchange(store, conversation, "First", "")
    asked = store.add(conversation.id, silent, "user", "Second")
    assert messages("Be brief.", store.branch(asked.id)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "First\n\nSecond"},
    ]
