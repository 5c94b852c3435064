"""The engine's process: what becomes of the chat when it ends, and of it when the chat does."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.chat_app import answered, ask, chat_app, idle, reply_of, screen_of, until
from support.scripted_session import ScriptedSession
from support.tiny import export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.engine_client import EngineClient, EngineProcess, open_process
from specdec_onnx.tui.chat.engine_worker import as_message
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.session import Request
from specdec_onnx.tui.chat.settings import DEFAULTS
from specdec_onnx.tui.child import AsyncChild, incoming

pytestmark = pytest.mark.usefixtures("private_cache")
SETTINGS = replace(DEFAULTS, max_new_tokens=24)
REQUEST = Request([{"role": "user", "content": "some text"}], SETTINGS, "draft")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("pairs") / "tiny", seed=5)


@pytest.fixture
async def session(pair: Path) -> AsyncIterator[EngineProcess]:
    opened = await open_process(str(pair), "cpu")
    yield opened
    await opened.close()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds."""
    until = time.monotonic() + seconds
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(process)


def unread(done: int, total: int) -> None:
    """Nobody watches the prompt being read."""


async def client_of(pair: Path) -> EngineClient:
    """A client whose pair is loaded."""
    client = EngineClient(open_process)
    client.open(str(pair))
    await until(lambda: client.state.session)
    return client


async def answer(client: EngineClient, request: Request = REQUEST) -> Reply:
    """What the client makes of a request."""
    reply = Reply(1, request)
    client.answer(reply)
    await until(lambda: reply.reason)
    return reply


async def test_an_engine_that_was_killed_is_started_anew(pair: Path) -> None:
    client = await client_of(pair)
    before = (await answer(client)).text
    session = client.state.session
    assert isinstance(session, EngineProcess)
    session.child.process.kill()
    await session.child.process.wait()
    again = await answer(client)
    assert again.error is None and again.text == before
    await client.stop()


async def test_an_engine_that_dies_mid_answer_says_how(pair: Path) -> None:
    client = await client_of(pair)
    session = client.state.session
    assert isinstance(session, EngineProcess)
    stream = session.reply(REQUEST, unread)
    await anext(stream)
    session.child.process.send_signal(signal.SIGSTOP)
    session.child.process.kill()
    with pytest.raises(SpecdecError, match="The engine has stopped") as caught:
        [_ async for _ in stream]
    assert "SIGKILL" in caught.value.why and "Ask again" in caught.value.fix
    assert (await answer(client)).reason == "length"
    await client.stop()


async def test_an_answer_that_nobody_listens_to_is_stopped(session: EngineProcess) -> None:
    stream = session.reply(REQUEST, unread)
    await anext(stream)
    await stream.aclose()
    assert session.statistics() == {}
    assert (await reply_of(session, REQUEST)).reason == "length"


async def test_a_request_that_is_cancelled_at_once_is_not_answered(session: EngineProcess) -> None:
    long = replace(REQUEST, settings=replace(SETTINGS, max_new_tokens=100_000))
    stream = session.reply(long, unread)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    session.cancel()
    assert [(await first).reason, *[round_.reason async for round_ in stream]][-1] == "cancelled"


async def test_closing_ends_the_process(session: EngineProcess) -> None:
    await session.close()
    assert session.child.process.returncode == 0


async def test_leaving_while_a_pair_loads_ends_its_process(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[AsyncChild] = []

    async def noted(module: str) -> AsyncChild:
        started.append(await start(module))
        return started[-1]

    start = AsyncChild.start
    monkeypatch.setattr(AsyncChild, "start", noted)
    client = EngineClient(open_process)
    client.open(str(pair))
    await until(lambda: started)
    await client.stop()
    assert client.state.loading and not started[0].running


async def test_choosing_another_pair_gives_up_the_one_that_loads(pair: Path) -> None:
    given_up = asyncio.Event()

    async def opener(name: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        if name == "slow":
            try:
                await asyncio.sleep(600)
            finally:
                given_up.set()
        return ScriptedSession([name])

    client = EngineClient(opener)
    client.open("slow")
    await asyncio.sleep(0.05)
    client.open("quick")
    await until(lambda: client.state.session)
    assert given_up.is_set() and client.state.pair == "quick"
    await client.stop()


def test_an_engine_does_not_outlive_the_chat(pair: Path) -> None:
    script = (
        "import asyncio\n"
        "from specdec_onnx.tui.chat.engine_client import open_process\n"
        "async def main():\n"
        f"    session = await open_process({str(pair)!r}, 'cpu')\n"
        "    print(session.child.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    chat = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert chat.stdout
    engine = int(chat.stdout.readline())
    assert alive(engine)
    chat.kill()
    chat.communicate()
    assert ends(engine)


def test_an_engine_that_still_loads_ends_with_the_chat() -> None:
    script = (
        "import time; from specdec_onnx.tui.chat import engine_worker as child;"
        "child.open_worker = lambda **plan: time.sleep(60); child.main()"
    )
    engine = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True)
    assert engine.stdin
    print("{}", file=engine.stdin, flush=True)
    with pytest.raises(subprocess.TimeoutExpired):
        engine.wait(1)
    engine.stdin.close()
    assert engine.wait(10) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not stopped there")
async def test_an_engine_that_hangs_keeps_nobody_waiting(pair: Path) -> None:
    client = await client_of(pair)
    session = client.state.session
    assert isinstance(session, EngineProcess)
    process = session.child.process
    process.send_signal(signal.SIGSTOP)
    reply = Reply(1, Request([{"role": "user", "content": "word " * 200_000}], SETTINGS))
    client.answer(reply)
    await until(lambda: reply._cancel)
    start = time.monotonic()
    reply.cancel()
    assert reply.stopping and time.monotonic() - start < 0.5
    await client.stop()
    assert time.monotonic() - start < 5 and process.returncode == -signal.SIGKILL


async def test_nothing_is_imported_from_the_current_folder(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    await (await open_process(str(pair.resolve()), "cpu")).close()


def test_requests_and_errors_arrive_as_they_were() -> None:
    request = Request(
        [{"role": "user", "content": "ä\ud800"}], replace(SETTINGS, stop=("a", "b")), "plain", "so", "c", True
    )
    assert Request.from_dict(json.loads(json.dumps(request.as_dict()))) == request
    assert as_message(SpecdecError("a", "b", "c")) == {"what": "a", "why": "b", "fix": "c"}
    assert as_message(KeyError("x")) == {"what": "KeyError", "why": "'x'", "fix": ""}


def test_a_message_that_a_crash_cut_off_is_dropped() -> None:
    assert list(incoming(['{"round": 1}\n', '{"rou'])) == [{"round": 1}]


async def test_the_chat_goes_on_after_its_engine_crashed(tmp_path: Path, pair: Path) -> None:
    app = chat_app(tmp_path, opener=open_process)
    app.services.extra_pairs = [pair]
    async with app.run_test():
        screen = screen_of(app)
        screen.conversation.settings = replace(SETTINGS, max_new_tokens=100_000)
        await ask(app, "some text")
        await until(lambda: screen.answering.reply and screen.answering.reply.rounds)
        app.services.engine.state.session.child.process.kill()
        await idle(app)
        stopped = screen.conversation.line[-1]
        assert stopped.reason == "error" and stopped.text
        assert stopped.statistics["error"] == "The engine has stopped."
        screen.conversation.settings = SETTINGS
        await screen.action_new()
        await answered(app, "again")
        assert screen.conversation.line[-1].reason == "length"


async def test_a_pair_is_let_go_of_before_the_next_is_loaded() -> None:
    opened: list[ScriptedSession] = []

    async def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        assert all(session.closed for session in opened)
        opened.append(ScriptedSession([pair]))
        return opened[-1]

    client = EngineClient(opener)
    for name in ("one", "two"):
        client.open(name)
        await until(lambda: not client.state.loading)
        assert client.state.error is None
    assert [session.closed for session in opened] == [True, False]
    await client.stop()
    assert [session.closed for session in opened] == [True, True]


async def test_a_waiting_answer_comes_from_the_pair_it_was_asked_of() -> None:
    sessions = {name: ScriptedSession([name], hold_after=0) for name in ("one", "two")}

    async def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        return sessions[pair]

    client, first, waiting = EngineClient(opener), Reply(1, REQUEST), Reply(2, REQUEST)
    client.open("one")
    client.answer(first)
    await until(lambda: first.reading)
    client.answer(waiting)
    await asyncio.sleep(0)
    client.open("two")
    sessions["one"].go_on.set()
    await until(lambda: client.state.session is sessions["two"])
    assert (first.text, waiting.text, waiting.error) == ("one", "one", None)
    await client.stop()
