"""The public surface, and what an application may rely on: it changes only on purpose."""

import asyncio
import inspect
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import export_tiny_pair

import specdec_onnx as sd

SURFACE = {
    "Chat": {"answer", "cancel", "edit", "fork", "regenerate", "resume", "send"},
    "Constraint": {"grammar", "json_schema", "lark", "regex"},
    "Engine": {"cancel", "chat", "close", "forget", "generate", "store_text", "stream", "tokenizer"},
    "Parameters": {
        "frequency_penalty", "greedy", "logit_bias", "max_new_tokens", "min_p", "penalised", "presence_penalty",
        "repetition_penalty", "seed", "stop", "temperature", "top_k", "top_p",
    },
    "Result": {"finish_reason", "logprobs", "prompt", "statistics", "text", "tokens"},
    "SpecdecError": {"add_note", "args", "with_traceback"},
    "Statistics": {
        "acceptance_rate", "accepted", "accepted_by_position", "accepted_by_source", "as_dict", "cached_prompt_tokens",
        "decode_seconds", "decode_tokens_per_second", "draft_seconds", "drafted", "drafted_by_position",
        "drafted_by_source", "first_token_seconds", "host_seconds", "new_tokens", "observe", "prefill_seconds",
        "prompt_tokens", "rounds", "time_to_first_token_ms", "tokens_per_round", "total", "verify_seconds",
    },
    "Step": {"finish_reason", "logprobs", "rejected", "sources", "text", "tokens"},
    "Stream": {"close", "through"},
    "load": set(),
}  # fmt: skip
LOAD = "path draft device draft_device mode threads context cache prefix_memory prefix_folder on_measure"
STREAM = (
    "self prompt parameters system raw mode suffix on_progress logprobs constraint processors proposer fields"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("api") / "pair", seed=5)


@pytest.fixture(scope="module")
def engine(folder: Path) -> sd.Engine:
    return sd.load(folder)


def test_the_public_names_are_these() -> None:
    assert set(sd.__all__) == SURFACE.keys()
    for name, members in SURFACE.items():
        found = {each for each in dir(getattr(sd, name)) if not each.startswith("_")} if members else set()
        assert found == members, name
    assert " ".join(inspect.signature(sd.load).parameters) == LOAD
    assert " ".join(inspect.signature(sd.Engine.stream).parameters) == STREAM


@pytest.mark.parametrize("name", SURFACE)
def test_every_public_name_says_what_it_does(name: str) -> None:
    public = getattr(sd, name)
    assert inspect.getdoc(public)
    for member in SURFACE[name] - {"add_note", "args", "with_traceback"}:
        if callable(found := getattr(public, member, None)):
            assert inspect.getdoc(found), member


async def test_a_coroutine_reads_an_answer_while_the_loop_stays_free(engine: sd.Engine) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    text = "".join([step.text async for step in engine.stream("the rain", max_new_tokens=24)])
    ticking.cancel()
    assert text == engine.generate("the rain", max_new_tokens=24) and ticks > 5


async def test_a_cancelled_task_cancels_its_answer_and_no_other(engine: sd.Engine) -> None:
    begun = asyncio.Event()
    stream = engine.stream("the rain", max_new_tokens=400)

    async def read() -> None:
        async for _ in stream:
            begun.set()

    async def other() -> str:
        return "".join([step.text async for step in engine.stream("in Spain", max_new_tokens=24)])

    reading = asyncio.create_task(read())
    await begun.wait()
    waiting = asyncio.create_task(other())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    text = await asyncio.wait_for(waiting, 30)
    assert len(stream.result.tokens) < 400
    assert text == engine.generate("in Spain", max_new_tokens=24)


def test_two_threads_cannot_read_one_answer_at_once(engine: sd.Engine) -> None:
    inside, go_on = Event(), Event()

    def wait(done: int, total: int) -> None:
        inside.set()
        go_on.wait(10)

    stream = engine.stream("the rain in Spain", max_new_tokens=4, on_progress=wait)
    engine.forget()
    reader = Thread(target=list, args=(stream,))
    reader.start()
    assert inside.wait(10)
    with pytest.raises(sd.SpecdecError, match="read already"):
        next(stream)
    go_on.set()
    reader.join()
    assert stream.result.finish_reason == "length"


def test_two_threads_get_what_one_would(engine: sd.Engine) -> None:
    prompts = [f"question {number % 10}" for number in range(200)]
    expected = {prompt: engine.generate(prompt, max_new_tokens=8) for prompt in set(prompts)}
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda prompt: engine.generate(prompt, max_new_tokens=8), prompts))
    assert found == [expected[prompt] for prompt in prompts]


def test_a_closed_engine_says_so(folder: Path) -> None:
    with sd.load(folder) as engine:
        chat = engine.chat()
        list(chat.send("hello", max_new_tokens=4))
    engine.close()
    for act in (lambda: engine.generate("x"), lambda: chat.send("more"), engine.forget, engine.store_text):
        with pytest.raises(sd.SpecdecError, match="the engine is closed"):
            act()


def test_closing_ends_the_answers_under_way(folder: Path) -> None:
    engine, begun = sd.load(folder), Event()
    results: list[str | None] = []

    def read(stream: sd.Stream) -> None:
        for _ in stream:
            begun.set()
        results.append(stream.result.finish_reason)

    readers = [Thread(target=read, args=(engine.stream("the rain", max_new_tokens=450),)) for _ in range(3)]
    for reader in readers:
        reader.start()
    assert begun.wait(10)
    engine.close()
    for reader in readers:
        reader.join(20)
    assert results == ["cancelled"] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only Unix forks")
def test_a_forked_child_is_told_to_load_its_own(folder: Path) -> None:
    program = f"""
import os, sys, specdec_onnx as sd
engine = sd.load({str(folder)!r})
if (child := os.fork()) == 0:
    try:
        engine.generate("x")
    except sd.SpecdecError as error:
        os._exit(0 if "another process" in str(error) else 1)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0


def test_the_log_is_silent_until_an_application_listens(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert any(isinstance(each, logging.NullHandler) for each in logging.getLogger("specdec_onnx").handlers)
    with caplog.at_level(logging.DEBUG, "specdec_onnx"):
        sd.load(folder).generate("x", max_new_tokens=2)
    assert "target: cpu" in caplog.text and "answer: length" in caplog.text


VALUES = st.none() | st.booleans() | st.integers(-10, 10) | st.integers() | st.floats() | st.text(max_size=5)
NAMES = [
    *sorted(SURFACE["Parameters"] - {"greedy", "penalised"}),
    "mode",
    "raw",
    "system",
    "logprobs",
    "constraint",
]


@settings(max_examples=150, deadline=None)
@given(options=st.dictionaries(st.sampled_from(NAMES), VALUES | st.lists(VALUES, max_size=3), max_size=4))
def test_wrong_arguments_are_our_own_errors(engine: sd.Engine, options: dict[str, Any]) -> None:
    try:
        for _ in engine.stream("x", **({"max_new_tokens": 2} | options)):
            break
    except sd.SpecdecError as error:
        assert error.what
