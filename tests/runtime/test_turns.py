"""Several threads on one engine: answers queue, none touches another, and nobody waits for ever."""

import asyncio
import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tiny import export_tiny, export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.chat import Chat
from specdec_onnx.runtime.drafting.suffix import Suffix
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.model.decoder import Cancelled
from specdec_onnx.runtime.turns import Stream, Turns

PROMPT = "the rain in the"
PROMPTS = (PROMPT, "aaaa bbbb aaaa bbbb", "x", "the rain in Spain")
SIZES: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Engine:
    return load(export_tiny_pair(folder / "pair", seed=5, target_sizes=SIZES))


@pytest.fixture(scope="module")
def single(folder: Path) -> Engine:
    return load(export_tiny(folder / "single", seed=5, **SIZES))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(6) as pool:
        yield pool


@pytest.fixture
def slow(pair: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The pair, with a target that takes its time."""
    forward = pair.target.forward

    def slowly(tokens: Sequence[int], *, keep: int = 0) -> NDArray[Any]:
        time.sleep(0.01)
        return forward(tokens, keep=keep)

    monkeypatch.setattr(pair.target, "forward", slowly)
    return pair


@pytest.fixture
def impatient(pair: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(pair._turns, "patience", 0.05)
    return pair


def ask(engine: Engine, number: int) -> str:
    """One of a dozen ways to ask."""
    mode = engine.modes[number % len(engine.modes)]
    sampled = {"temperature": 1.0, "seed": 1} if number % 3 == 2 else {}
    return engine.generate(PROMPTS[number % len(PROMPTS)], mode=mode, max_new_tokens=24, **sampled)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def in_line(engine: Engine, count: int = 1) -> Callable[[], bool]:
    return lambda: len(engine._turns._line) >= count


def reason(steps: Stream) -> str | None:
    for _ in steps:
        pass
    return steps.result.finish_reason


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_what_each_thread_is_told_is_what_it_is_told_alone(
    kind: str, request: pytest.FixtureRequest, threads: ThreadPoolExecutor
) -> None:
    engine: Engine = request.getfixturevalue(kind)
    alone = [ask(engine, number) for number in range(12)]
    crowd = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=2), min_size=2, max_size=4)

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(crowd=crowd)
    def check(crowd: list[list[int]]) -> None:
        told = threads.map(lambda asks: [ask(engine, number) for number in asks], crowd)
        assert list(told) == [[alone[number] for number in asks] for asks in crowd]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        check()
    finally:
        sys.setswitchinterval(before)
    assert [ask(engine, number) for number in range(12)] == alone


def test_chats_of_several_threads_keep_apart(pair: Engine, threads: ThreadPoolExecutor) -> None:
    def talk(name: str) -> list[str]:
        chat = pair.chat(system=name)
        for turn in range(4):
            list(chat.send(f"{name} {turn}", max_new_tokens=8))
        return [message["content"] for message in chat.messages]

    names = ("one", "two", "three", "four")
    alone = [talk(name) for name in names]
    assert list(threads.map(talk, names)) == alone


@pytest.mark.parametrize("way", ["close", "drop", "cancel it", "cancel", "read to the end", "fail"])
def test_another_thread_waits_until_a_half_read_answer_is_over(
    pair: Engine, threads: ThreadPoolExecutor, way: str
) -> None:
    told = pair.generate(PROMPT, max_new_tokens=8)
    steps: Stream | None = pair.stream("x", mode="plain", max_new_tokens=8)
    next(steps)
    waiting = threads.submit(pair.generate, PROMPT, max_new_tokens=8)
    until(in_line(pair))
    time.sleep(0.02)
    assert not waiting.done()
    match way:
        case "close":
            steps.close()
        case "cancel it":
            steps.cancel()
        case "cancel":
            pair.cancel()
        case "read to the end":
            next(step for step in steps if step.finish_reason)  # nobody reads on behind it
        case "fail":
            with pytest.raises(ZeroDivisionError):
                consume(steps)
    if way in ("drop", "fail"):
        steps = None
        gc.collect()
    assert waiting.result(30) == told
    if steps is not None and "cancel" in way:
        assert [step.finish_reason for step in steps] == ["cancelled"]


def consume(steps: Stream) -> None:
    for step in steps:
        raise ZeroDivisionError(step)


def test_those_who_wait_come_in_the_order_they_came(pair: Engine, threads: ThreadPoolExecutor) -> None:
    steps, begun = pair.stream("x", max_new_tokens=8, mode="plain"), list[int]()
    next(steps)

    class Noting(Suffix):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def begin(self, context: Sequence[int]) -> None:
            begun.append(self.number)

    def wait(number: int) -> None:
        pair.generate(PROMPT, max_new_tokens=1, suffix=Noting(number))

    waiting: list[Future[None]] = []
    for number in range(5):
        waiting.append(threads.submit(wait, number))
        until(in_line(pair, number + 1))
    steps.close()
    for each in waiting:
        each.result(30)
    assert begun == list(range(5))


def test_an_answer_that_nobody_reads_on_gives_way_and_continues_when_it_is_read(
    impatient: Engine, threads: ThreadPoolExecutor
) -> None:
    told = impatient.generate("x", max_new_tokens=8, mode="plain")
    steps = impatient.stream("x", max_new_tokens=8, mode="plain")
    next(steps)
    assert threads.submit(impatient.generate, PROMPT, max_new_tokens=4).result(30)
    assert reason(steps) == "length" and steps.result.text == told


def asked(engine: Engine, number: int, tokens: int = 12) -> Stream:
    """One of several answers, all with another text or another way to choose it."""
    mode = engine.modes[number % len(engine.modes)]
    sampled = {"temperature": 1.0, "seed": number} if number % 2 else {"repetition_penalty": 1.5}
    return engine.stream(PROMPTS[number % len(PROMPTS)], mode=mode, max_new_tokens=tokens, **sampled)


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_answers_that_are_read_in_any_mixture_are_what_they_are_alone(
    kind: str,
    request: pytest.FixtureRequest,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine: Engine = request.getfixturevalue(kind)
    monkeypatch.setattr(engine._turns, "patience", 0.0)
    alone = [asked(engine, number) for number in range(8)]
    assert [reason(steps) for steps in alone] == ["length"] * 8

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(order=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=40))
    def check(order: list[tuple[int, bool]]) -> None:
        mixed = [asked(engine, number) for number in range(8)]
        for number, elsewhere in order:
            if not mixed[number].result.finish_reason:
                threads.submit(next, mixed[number]).result(30) if elsewhere else next(mixed[number])
        for steps in mixed:
            reason(steps)
        assert [steps.result.tokens for steps in mixed] == [steps.result.tokens for steps in alone]

    check()


async def read_in_pool(steps: Stream, pool: ThreadPoolExecutor | None = None) -> str:
    """As web servers read: each step in whichever thread is free."""
    text = ""
    loop = asyncio.get_running_loop()
    while (step := await loop.run_in_executor(pool, next, steps, None)) is not None:
        text += step.text
        await asyncio.sleep(0.001)
    return text


def test_a_web_server_that_reads_each_step_in_another_thread_loses_no_answer(pair: Engine) -> None:
    alone = ["".join(step.text for step in asked(pair, number)) for number in range(8)]

    async def client(number: int, delay: float) -> str:
        await asyncio.sleep(delay)
        return await read_in_pool(asked(pair, number))

    async def serve(delays: list[float]) -> list[str]:
        return await asyncio.gather(*(client(number, delay) for number, delay in enumerate(delays)))

    rng, begun = random.Random(1), time.monotonic()
    for _ in range(10):
        assert asyncio.run(serve([rng.random() * 0.05 for _ in range(4)])) == alone[:4]
    assert time.monotonic() - begun < 8, "who may begin is told at once"


def test_more_answers_than_threads_that_read_them_all_come_to_their_ends(impatient: Engine) -> None:
    alone = ["".join(step.text for step in asked(impatient, number, 6)) for number in range(5)]

    async def serve(pool: ThreadPoolExecutor) -> list[str]:
        return await asyncio.gather(*(read_in_pool(asked(impatient, n, 6), pool) for n in range(5)))

    for size in (1, 2):
        with ThreadPoolExecutor(size) as pool:
            assert asyncio.run(serve(pool)) == alone


def test_coroutines_of_one_thread_may_read_answers_in_turns(pair: Engine) -> None:
    alone = ["".join(step.text for step in asked(pair, number)) for number in range(3)]

    async def client(number: int) -> str:
        text = ""
        for step in asked(pair, number):
            text += step.text
            await asyncio.sleep(0)
        return text

    async def serve() -> list[str]:
        return await asyncio.gather(*map(client, range(3)))

    begun = time.monotonic()
    assert asyncio.run(serve()) == alone
    assert time.monotonic() - begun < pair._turns.patience, "none waited for a reader who waited for it"


def test_an_earlier_answer_that_is_read_on_changes_nothing_in_the_conversation(pair: Engine) -> None:
    chat = pair.chat()
    earlier = chat.send("one", max_new_tokens=8, mode="plain")
    next(earlier)
    list(chat.send("two", max_new_tokens=4))
    before = [dict(message) for message in chat.messages]
    assert reason(earlier) == "length"
    assert chat.messages == before


def test_an_answer_that_was_put_off_can_be_cancelled(pair: Engine) -> None:
    steps = pair.stream("x", max_new_tokens=8, mode="plain")
    next(steps)
    pair.generate(PROMPT, max_new_tokens=2)
    steps.cancel()
    assert reason(steps) == "cancelled"
    assert pair.generate(PROMPT, max_new_tokens=2)


def test_a_long_pass_is_no_pause(slow: Engine, impatient: Engine, threads: ThreadPoolExecutor) -> None:
    started = threading.Event()

    def read() -> str | None:
        steps = impatient.stream(
            [5] * 40, mode="plain", max_new_tokens=12, on_progress=lambda *_: started.set()
        )
        return reason(steps)

    impatient.forget()
    first = threads.submit(read)
    assert started.wait(30)
    second = threads.submit(read)
    assert (first.result(30), second.result(30)) == ("length", "length")


def test_an_answer_that_threads_read_in_turns_is_not_put_off_by_them(
    impatient: Engine, threads: ThreadPoolExecutor
) -> None:
    """A server hands each step to whichever thread is free."""
    impatient._turns.patience = 30
    steps = impatient.stream("x", mode="plain", max_new_tokens=6)
    next(steps)
    threads.submit(next, steps).result(30)
    next(steps)
    other = threads.submit(impatient.generate, PROMPT, max_new_tokens=4)
    until(in_line(impatient))
    assert reason(steps) == "length"
    assert other.result(30)


def test_an_answer_inside_of_an_answer_is_refused(pair: Engine) -> None:
    pair.forget()
    told = pair.generate([5] * 20, max_new_tokens=4)
    pair.forget()
    with pytest.raises(SpecdecError, match="inside another"):
        pair.generate([5] * 20, max_new_tokens=4, on_progress=lambda *_: pair.generate("x"))
    assert pair.generate([5] * 20, max_new_tokens=4) == told


def test_the_caches_are_emptied_between_answers_only(pair: Engine, threads: ThreadPoolExecutor) -> None:
    told = pair.generate(PROMPT, mode="plain", max_new_tokens=8)
    steps = pair.stream(PROMPT, mode="plain", max_new_tokens=8)
    next(steps)
    emptied = threads.submit(pair.forget)
    until(in_line(pair))
    assert reason(steps) == "length" and steps.result.text == told
    emptied.result(30)
    assert pair.target.length == 0


Asking = Callable[[Engine], Stream]
DOORS: dict[str, Asking] = {
    "stream": lambda engine: engine.stream(PROMPT, max_new_tokens=24),
    "chat": lambda engine: engine.chat().send(PROMPT, max_new_tokens=24),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("whose", ["engine", "answer"])
@pytest.mark.parametrize("kind", ["single", "pair"])
def test_a_cancel_before_the_first_step_holds(
    kind: str, door: str, whose: str, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(kind)
    steps = DOORS[door](engine)
    (engine if whose == "engine" else steps).cancel()
    assert [(step.finish_reason, step.tokens) for step in steps] == [("cancelled", ())]
    assert engine.last is steps.result and engine.last.finish_reason == "cancelled"
    assert reason(DOORS[door](engine)) != "cancelled", "the next one was not meant"


def test_a_cancel_from_a_signal_while_the_turn_is_taken_holds() -> None:
    """A signal handler runs in the thread that holds the lock."""
    turns = Turns(lambda: turns.cancel(), lambda: None)
    turn = turns.ask()
    with pytest.raises(Cancelled):
        turns.begin(turn)
    turns.cancel = lambda turn=None: None  # type: ignore[method-assign]
    turns.begin(turns.ask())


def test_a_cancel_when_nothing_was_asked_ends_nothing(pair: Engine) -> None:
    pair.cancel()
    assert reason(pair.stream(PROMPT, max_new_tokens=4)) == "length"
    del pair.stream(PROMPT).result  # asked for and dropped
    pair.cancel()
    assert reason(pair.stream(PROMPT, max_new_tokens=4)) == "length"


def test_a_cancel_during_prefill_ends_the_answer_without_a_token(pair: Engine) -> None:
    """Also when all of the prompt is in the cache, and only the draft model has to read it."""
    prompt = [5] * 300
    pair.generate(prompt, mode="plain", max_new_tokens=2)
    steps = pair.stream(prompt, mode="draft")
    prepare, pair.speculation.prepare = pair.speculation.prepare, lambda *_: pair.cancel()  # type: ignore[method-assign]
    try:
        assert [(step.finish_reason, step.tokens) for step in steps] == [("cancelled", ())]
    finally:
        pair.speculation.prepare = prepare  # type: ignore[method-assign]


def test_a_cancel_means_what_was_asked_for_last(pair: Engine) -> None:
    """The window asks the next question while the last answer lies half-read."""
    earlier = pair.stream("never read", max_new_tokens=4)
    first = pair.stream("x", max_new_tokens=24)
    next(first)
    second = pair.stream(PROMPT, max_new_tokens=24)
    pair.cancel()
    assert reason(second) == "cancelled"
    assert reason(first) == "cancelled"
    assert reason(earlier) == "length"


def test_one_that_waits_can_be_cancelled_and_the_running_one_goes_on(
    pair: Engine, threads: ThreadPoolExecutor
) -> None:
    running, chat = pair.stream("x", mode="plain", max_new_tokens=8), pair.chat()
    next(running)
    waiting = [pair.stream(PROMPT), chat.send(PROMPT)]
    ended = [threads.submit(reason, each) for each in waiting]
    until(in_line(pair, 2))
    waiting[0].cancel()
    chat.cancel()
    assert [each.result(30) for each in ended] == ["cancelled"] * 2
    assert not any(each.result.tokens for each in waiting)
    assert reason(running) == "length"


def test_a_cancel_ends_the_running_answer_and_not_those_that_wait(
    slow: Engine, threads: ThreadPoolExecutor
) -> None:
    first, second = (slow.stream(PROMPT, mode="plain", max_new_tokens=30) for _ in range(2))
    running = threads.submit(reason, first)
    until(lambda: bool(first.result.tokens))
    waiting = threads.submit(reason, second)
    until(in_line(slow))
    slow.cancel()
    assert (running.result(30), waiting.result(30)) == ("cancelled", "length")


def test_a_cancelled_answer_ends_within_one_pass(slow: Engine, threads: ThreadPoolExecutor) -> None:
    steps = slow.stream(PROMPT, mode="plain", max_new_tokens=400)
    ended = threads.submit(reason, steps)
    until(lambda: len(steps.result.tokens) > 3)
    steps.cancel()
    written = len(steps.result.tokens)
    assert ended.result(30) == "cancelled"
    assert len(steps.result.tokens) <= written + 1


CHANGES: dict[str, Callable[[Chat], Stream]] = {
    "send": lambda chat: chat.send("two", max_new_tokens=8),
    "edit": lambda chat: chat.edit(0, "uno", max_new_tokens=8),
    "regenerate": lambda chat: chat.regenerate(max_new_tokens=8),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fate", ["never read", "cancelled before", "failed in prefill"])
def test_a_conversation_stays_as_it_was_until_the_first_step(
    pair: Engine, change: str, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = pair.chat()
    list(chat.send("one", max_new_tokens=8))
    before = [dict(message) for message in chat.messages]
    steps = CHANGES[change](chat)
    assert chat.messages == before
    if fate == "cancelled before":
        steps.cancel()
        assert reason(steps) == "cancelled"
    if fate == "failed in prefill":
        with monkeypatch.context() as patch:
            patch.setattr(pair.target, "forward", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                next(steps)
    assert chat.messages == before
    list(CHANGES[change](chat))
    assert chat.messages != before or change == "regenerate"
    assert [message["role"] for message in chat.messages[-2:]] == ["user", "assistant"]


def test_a_question_to_a_conversation_that_went_on_is_refused(pair: Engine) -> None:
    chat = pair.chat()
    first, second = (chat.send(text, max_new_tokens=4) for text in ("one", "two"))
    list(first)
    with pytest.raises(SpecdecError, match="moved on"):
        next(second)
    assert [message["content"] for message in chat.messages if message["role"] == "user"] == ["one"]
