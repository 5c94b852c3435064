"""What one answer leaves behind for the next: caches that hold nothing but its text, and drafts as good as on the first day."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.steady import rest_or_draft, steady
from support.tiny import export_tiny_pair

from specdec_onnx.runtime.chat import Chat
from specdec_onnx.runtime.drafting.speculation import Calibration
from specdec_onnx.runtime.drafting.suffix import Suffix
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.generate import Step
from specdec_onnx.runtime.model.prefixes import common_prefix
from specdec_onnx.runtime.turns import Stream

MODES = ("plain", "suffix", "draft", "auto")
QUESTIONS = ("tea for two", "tea for one", "the rain", "aa bb aa bb aa", "x")
PROMPTS = (
    tuple(range(1, 9)),
    tuple(range(11, 17)),
    (*range(1, 6), 40, 41),
    (7, 8, 7, 8, 7, 8, 7),
    (300,),
)


@dataclass
class Rig:
    """An engine that has a past, and the means to make one without, over decoders of the same folder."""

    used: Engine
    spare: Engine

    def fresh(self) -> Engine:
        return steady(Engine(self.spare.pair, self.spare.models, self.spare.context))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A draft that is near its target: some drafts are kept, some fall."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = export_tiny_pair(
        tmp_path_factory.mktemp("pairs") / "pair", target_format="fp32", draft_format="int4", seed=5,
        target_sizes=sizes,
    )  # fmt: skip
    return Rig(steady(load(folder)), load(folder))


@dataclass(frozen=True)
class Asked:
    """One answer: how, and what becomes of it after `read` steps."""

    what: str
    which: int
    mode: str
    most: int
    fate: str
    read: int
    seed: int | None
    rests: bool

    @property
    def ask(self) -> dict[str, Any]:
        sampled = {} if self.seed is None else {"temperature": 0.9, "seed": self.seed}
        return {"mode": self.mode, "max_new_tokens": self.most, **sampled}


ASKED = st.builds(
    Asked,
    what=st.sampled_from(("prompt", "send", "edit", "regenerate", "new chat")),
    which=st.integers(0, len(PROMPTS) - 1),
    mode=st.sampled_from(MODES),
    most=st.integers(1, 10),
    fate=st.sampled_from(("read", "read", "close", "cancel", "drop", "leave", "cancel before")),
    read=st.integers(1, 4),
    seed=st.sampled_from((None, None, 1)),
    rests=st.booleans(),
)


@dataclass
class Past:
    """Everything that was asked of one engine so far."""

    engine: Engine
    chat: Chat
    left: list[Stream] = field(default_factory=list)

    def live(self, asked: Asked) -> None:
        """Ask, let the answer meet its fate, and look at the caches after each step."""
        rest_or_draft(self.engine, rests=asked.rests)
        stream = self._stream(asked)
        if asked.fate == "cancel before":
            self.engine.cancel()
        steps = self._checked(stream)
        whole = asked.fate in ("read", "cancel before")
        for _ in islice(steps, None if whole else asked.read):
            pass
        if asked.fate == "cancel":
            self.engine.cancel()
            list(steps)
        elif asked.fate == "close":
            stream.close()
        elif asked.fate == "leave":
            self.left.append(stream)

    def _stream(self, asked: Asked) -> Stream:
        chat, question = self.chat, QUESTIONS[asked.which]
        if asked.what == "prompt":
            return self.engine.stream(PROMPTS[asked.which], **asked.ask)
        if asked.what == "new chat":
            self.chat = chat = self.engine.chat(system=question if asked.which % 2 else None)
        users = [place for place, message in enumerate(chat.messages) if message["role"] == "user"]
        if not users or asked.what in ("send", "new chat"):
            return chat.send(question, **asked.ask)
        if asked.what == "edit":
            return chat.edit(users[asked.which % len(users)], question, **asked.ask)
        return chat.regenerate(**asked.ask)

    def _checked(self, stream: Stream) -> Iterator[Step]:
        for step in stream:
            if stream.result.tokens:
                check_caches(self.engine, stream)
            yield step


def check_caches(engine: Engine, stream: Stream) -> None:
    text = [*stream.result.prompt, *stream.result.tokens]
    for tape in engine._tapes:
        assert tape.tokens == text[: len(tape.tokens)]
        assert tape.decoder.length == len(tape.tokens)


def counts(stream: Stream) -> tuple[list[Step], int, int, list[int], list[int]]:
    """What speculation did: every step with who drafted what, and the sums."""
    steps, statistics = list(stream), stream.result.statistics
    sums = statistics.drafted_by_position, statistics.accepted_by_position
    return (steps, statistics.rounds, statistics.accepted, *sums)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(past=st.lists(ASKED, min_size=1, max_size=5), last=ASKED)
def test_caches_hold_the_text_and_nothing_else_and_drafts_are_as_good_as_fresh(
    rig: Rig, past: list[Asked], last: Asked
) -> None:
    engine = rig.used
    lived = Past(engine, engine.chat())
    for asked in past:
        lived.live(asked)

    def final(engine: Engine) -> Stream:
        rest_or_draft(engine, rests=False)
        if last.what == "prompt":
            return engine.stream(PROMPTS[last.which], **last.ask)
        return engine.chat().send(QUESTIONS[last.which], **last.ask)

    stream = final(engine)
    assert counts(stream) == counts(final(rig.fresh()))
    check_caches(engine, stream)


def test_the_draft_reads_an_unrelated_prompt_as_its_own(rig: Rig) -> None:
    engine = rig.used
    draft = engine.speculation.draft
    assert draft is not None
    engine.generate(list(range(1, 9)), max_new_tokens=6, mode="draft")
    engine.speculation.prepare("draft", list(range(11, 17)))
    assert draft.tape.tokens == list(range(11, 16))


def test_a_round_without_a_proposal_teaches_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last round of an answer there is no room to draft: what was proposed before is judged by then."""
    seen: list[int] = []
    planner: Any = rig.used.speculation.planner("draft")
    monkeypatch.setattr(planner, "observe_draft", lambda drafted, kept, **_: seen.append(drafted))
    stream = rig.used.stream(PROMPTS[0], mode="draft", max_new_tokens=1)
    assert len(list(stream)) == 1 and stream.result.statistics.drafted == 0
    assert seen == []
    stream = rig.used.stream(PROMPTS[0], mode="draft", max_new_tokens=9)
    list(stream)
    assert sum(seen) == stream.result.statistics.drafted


def test_a_suffix_store_judges_a_proposal_once() -> None:
    store = Suffix()
    context = [1, 2, 3, 1, 2, 3, 1, 2]
    store.begin(context)
    before = [store._reliability.chance(kind) for kind in range(24)]
    store.propose(context, 3, lambda chance, drafted: True)
    store.observe([3])
    once = [store._reliability.chance(kind) for kind in range(24)]
    store.observe([3])
    assert before != once == [store._reliability.chance(kind) for kind in range(24)]


@settings(deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=5))
def test_a_suffix_store_notices_a_branch_by_itself(texts: list[list[int]]) -> None:
    """Any context may follow any other: what is proposed continues this one."""
    store = Suffix()
    for text in texts:
        store.propose(text, 4, lambda chance, drafted: True)
        assert store._text == text


def test_what_sampling_taught_says_nothing_about_greedy_answers(rig: Rig) -> None:
    engine = rig.fresh()
    draft = engine.speculation.draft
    assert draft is not None
    engine.generate(PROMPTS[0], mode="draft", max_new_tokens=10, temperature=1.5, seed=2)
    sampled = draft._calibration
    engine.generate(PROMPTS[0], mode="draft", max_new_tokens=10)
    assert draft._calibration is not sampled
    greedy: Callable[[float], float] = draft._calibration
    engine.generate(PROMPTS[1], mode="draft", max_new_tokens=10)
    assert draft._calibration is greedy, "one kind of answer keeps what it learned"
    assert isinstance(greedy, Calibration)


@settings(deadline=None)
@given(
    texts=st.tuples(*[st.lists(st.integers(0, 1), max_size=200)] * 2),
    shared=st.lists(st.integers(), max_size=200),
)
def test_the_common_prefix_is_the_longest(texts: tuple[list[int], list[int]], shared: list[int]) -> None:
    first, second = [*shared, *texts[0]], (*shared, *texts[1])
    length = common_prefix(first, second)
    assert first[:length] == list(second[:length])
    assert length == min(len(first), len(second)) or first[length] != second[length]
