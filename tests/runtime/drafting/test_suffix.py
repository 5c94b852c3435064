"""The suffix proposer against a search through everything that was ever said."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.drafting.suffix import CONFIDENCE, EXPECTED, WALK, Suffix

SEEN_ONCE = [row[2] for row in EXPECTED]


def always(chance: float, drafted: int) -> bool:
    return True


class Search:
    """What the proposer promises, by brute force: every token ever said, with the whole context before it."""

    def __init__(self) -> None:
        self.said: list[tuple[list[int], int]] = []

    def say(self, context: Sequence[int], token: int) -> None:
        self.said.append((list(context), token))

    def following(self, suffix: list[int]) -> list[int]:
        """The tokens that ever followed `suffix`, in the order they were said."""
        start = len(suffix)
        return [token for before, token in self.said if before[len(before) - start :] == suffix]

    def matched(self, context: list[int]) -> int:
        """The length of the longest end of `context` that anything ever followed."""
        lengths = range(len(context), 0, -1)
        return next((length for length in lengths if self.following(context[-length:])), 0)

    def propose(self, context: list[int], limit: int) -> list[int]:
        """Greedily the most frequent continuation of the longest match, among equals the most recent."""
        tokens: list[int] = []
        while len(tokens) < limit and (length := self.matched(context + tokens)):
            tokens.append(_favourite(self.following((context + tokens)[-length:])))
        return tokens


def _favourite(tokens: list[int]) -> int:
    last = {token: place for place, token in enumerate(tokens)}
    return max(last, key=lambda token: (tokens.count(token), last[token]))


Edit = tuple[int, list[int]]  # cut the context back by so many tokens, then say these
edits = st.lists(
    st.tuples(st.integers(0, 8), st.lists(st.integers(0, 2), min_size=1, max_size=8)), min_size=1, max_size=5
)


def apply(edit: Edit, context: list[int], suffix: Suffix, search: Search) -> list[int]:
    """The context after an edit that both were told about."""
    cut, tokens = edit
    context = context[: max(0, len(context) - cut)]
    suffix.begin(context)
    for token in tokens:
        search.say(context, token)
        context = [*context, token]
    return context


@settings(max_examples=200, deadline=None)
@given(edits)
def test_proposals_equal_a_brute_force_search(script: list[Edit]) -> None:
    suffix, search, context = Suffix(), Search(), list[int]()
    for edit in script:
        context = apply(edit, context, suffix, search)
        assert suffix.propose(context, 6, always).tokens == search.propose(context, 6)


@settings(max_examples=200, deadline=None)
@given(edits)
def test_counts_equal_a_brute_force_search(script: list[Edit]) -> None:
    suffix, search, context = Suffix(), Search(), list[int]()
    for edit in script:
        context = apply(edit, context, suffix, search)
        suffix.propose(context, 0, always)
    store, state = suffix._automaton, suffix._states[-1]
    for length in range(min(len(context), WALK), 0, -1):
        while store.length[store.link[state]] >= length:
            state = store.link[state]
        ends = [[*before, token][-length:] == context[-length:] for before, token in search.said]
        assert store.count[state] == sum(ends)
    assert len(store.follow) <= 2 * len(search.said) + 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=2, max_size=4))
def test_a_new_prompt_is_a_rollback_to_what_it_shares(prompts: list[list[int]]) -> None:
    told, left_alone, previous = Suffix(), Suffix(), list[int]()
    for prompt in prompts:
        same = [one == other for one, other in zip(prompt, previous, strict=False)]
        shared = same.index(False) if False in same else len(same)
        told.begin(prompt[:shared])
        left_alone.begin(prompt)
        assert left_alone.propose(prompt, 5, always) == told.propose(prompt, 5, always)
        previous = prompt


def test_a_short_text_is_looked_up_like_an_n_gram() -> None:
    suffix = Suffix()
    assert suffix.propose([1, 2, 3, 1, 2], 1, always).tokens == [3]
    assert suffix.propose([1, 2, 3, 1, 2, 9], 4, always).tokens == []
    assert suffix.propose([1, 2, 3, 1, 2, 9, 1, 2], 1, always).tokens == [9]  # once each: the later one
    assert suffix.propose([1, 2, 3, 1, 2, 9, 1, 2, 3, 7, 1, 2], 1, always).tokens == [3]  # more often


def test_a_repetition_goes_on() -> None:
    assert Suffix().propose([1, 2, 3] * 3, 7, always).tokens == [1, 2, 3, 1, 2, 3, 1]
    assert Suffix().propose([4] * 200, 3, always).tokens == [4, 4, 4]


def test_an_answer_that_was_cut_off_is_proposed_again() -> None:
    suffix, prompt, answer = Suffix(), [1, 2, 3, 4], [5, 6, 7, 8, 9]
    suffix.propose([*prompt, *answer], 0, always)
    suffix.begin(prompt)
    assert suffix.propose(prompt, 9, always).tokens[:5] == answer
    suffix.begin([1, 2, 30, 4])
    assert suffix.propose([1, 2, 30, 4, 5, 6], 3, always).tokens == [7, 8, 9]


def test_each_token_is_asked_for_and_the_first_that_is_not_worth_it_ends_the_draft() -> None:
    asked: list[tuple[float, int]] = []

    def worth(chance: float, drafted: int) -> bool:
        asked.append((chance, drafted))
        return drafted <= 2

    proposal = Suffix().propose([1, 2, 3, 4, 5, 1, 2, 3], 9, worth)
    three, four = SEEN_ONCE[1], SEEN_ONCE[2]
    assert proposal == Proposal([4, 5], [three, four], ["suffix", "suffix"], None)
    assert asked == [(three, 1), (three * four, 2), (three * four * four, 3)]


def test_confidence_follows_what_the_target_says() -> None:
    suffix, text = Suffix(), [1, 2, 3, 4, 5, 6]
    context = [*text, 0, *text]
    for _ in range(30):
        right = suffix.propose(context, 1, lambda *_: False)
        assert right.tokens == []
        suffix.observe([0])  # not worth it, and learned from all the same
        context = [*context, 0, *text]
    assert suffix.propose(context, 1, always).confidence[0] > 0.9
    for _ in range(80):
        suffix.propose(context, 1, always)
        suffix.observe([7])
    assert suffix.propose(context, 1, always).confidence[0] < 0.2


def test_tokens_behind_a_wrong_one_are_not_judged() -> None:
    suffix, context = Suffix(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    three, *longer = suffix.propose(context, 4, always).confidence
    suffix.observe([9, 5, 6, 7])  # a match of three tokens was wrong; longer ones were never put to the test
    again = suffix.propose(context, 4, always).confidence
    assert again[0] == pytest.approx(three * CONFIDENCE / (CONFIDENCE + 1))
    assert again[1:] == longer


def test_memory_is_bounded_and_the_recent_half_survives() -> None:
    suffix, context = Suffix(capacity=400), list(range(100_000, 103_000))
    suffix.propose(context, 0, always)
    assert len(suffix._automaton.follow) <= 2 * 400 + 1
    recent = context[-150:-100]
    assert suffix.propose([*context, *recent[:10]], 20, always).tokens == recent[10:30]
    old = context[:20]
    assert suffix.propose([*context, *recent[:10], *old[:10]], 5, always).tokens == []


def test_the_newest_cut_off_answers_survive_a_rebuild() -> None:
    suffix = Suffix(capacity=400)
    answers = [list(range(100 * turn, 100 * turn + 20)) for turn in range(1, 26)]
    for answer in answers:
        suffix.begin([0, *answer])
    assert suffix._stored < 400 and len(suffix._automaton.follow) <= 2 * 400 + 1
    for answer, follows in ((answers[0], []), (answers[-3], answers[-3][8:10])):
        suffix.begin([0, *answer[5:8]])
        assert suffix.propose([0, *answer[5:8]], 2, always).tokens == follows


def test_a_rollback_behind_what_the_store_holds_starts_a_new_text() -> None:
    suffix, context = Suffix(capacity=400), list(range(1, 560))
    suffix.propose(context, 0, always)
    suffix.begin(context[:3])
    context = [1, 2, 3, *range(550, 554)]
    assert suffix.propose(context, 3, always).tokens == [554, 555, 556]
    context = [*context, 7, 8, 9]
    suffix.propose(context, 0, always)
    suffix.begin(context[:5])
    assert suffix.propose(context[:5], 1, always).tokens == [552]
    assert suffix.propose([*context[:5], 552], 2, always).tokens == [553, 7]


def test_a_long_cut_off_answer_is_cut_to_the_room_there_is() -> None:
    suffix = Suffix(capacity=400)
    suffix.begin(list(range(300)))
    suffix.begin([0, *range(1000, 1101)])
    assert suffix._stored <= 200 + 2
    assert suffix.propose([0, *range(1000, 1101), *range(250, 253)], 2, always).tokens == [253, 254]


def test_it_stays_fast_on_a_long_text_and_on_a_text_that_only_repeats() -> None:
    for text in ([place * place % 997 for place in range(8000)], [5] * 8000):
        suffix, times = Suffix(), []
        suffix.propose(text, 0, always)
        for place in range(50):
            text.append(text[place])
            start = time.perf_counter()
            suffix.propose(text, 8, always)
            times.append(time.perf_counter() - start)
        assert sorted(times)[25] < 1e-3  # 20 to 50 microseconds; the bound only has to catch a scan
