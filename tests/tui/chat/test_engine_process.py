"""The engine's process: what becomes of the chat when it ends, and of it when the chat does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.chat_app import answered, ask, chat_app, idle, screen_of, until
from support.scripted_session import ScriptedSession
from support.tiny import export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.engine_client import EngineProcess, Host, open_process
from specdec_onnx.tui.chat.engine_worker import as_message
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.session import Request
from specdec_onnx.tui.chat.settings import DEFAULTS

pytestmark = pytest.mark.usefixtures("private_cache")
SETTINGS = replace(DEFAULTS, max_new_tokens=24)
REQUEST = Request([{"role": "user", "content": "some text"}], SETTINGS, "draft")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("pairs") / "tiny", seed=5)


@pytest.fixture
def session(pair: Path) -> Iterator[EngineProcess]:
    opened = open_process(str(pair), "cpu")
    yield opened
    opened.close()


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


def answer(session: EngineProcess) -> Reply:
    reply = Reply(1, REQUEST)
    reply.run(session)
    reply.drain()
    return reply


def test_an_engine_that_was_killed_is_started_anew(session: EngineProcess) -> None:
    before = answer(session).text
    session._child.process.kill()
    session._child.process.wait()
    again = answer(session)
    assert again.error is None and again.text == before


def test_an_engine_that_dies_mid_answer_says_how(session: EngineProcess) -> None:
    stream = session.reply(REQUEST, lambda done, total: None)
    next(stream)
    session._child.process.send_signal(signal.SIGSTOP)
    session._child.process.kill()
    with pytest.raises(SpecdecError, match="The engine has ended") as caught:
        list(stream)
    assert "SIGKILL" in caught.value.why and "Ask again" in caught.value.fix
    assert answer(session).reason == "length"


def test_an_answer_that_nobody_listens_to_is_stopped(session: EngineProcess) -> None:
    stream = session.reply(REQUEST, lambda done, total: None)
    next(stream)
    stream.close()
    assert session.statistics() == {}
    assert answer(session).reason == "length"


def test_closing_ends_the_process(session: EngineProcess) -> None:
    process = session._child.process
    session.close()
    assert process.returncode == 0


def test_an_engine_does_not_outlive_the_chat(pair: Path) -> None:
    script = (
        "from specdec_onnx.tui.chat.engine_client import open_process; import time;"
        f"session = open_process({str(pair)!r}, 'cpu'); print(session._child.process.pid, flush=True); time.sleep(60)"
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
        "child.open_session = lambda **plan: time.sleep(60); child.main()"
    )
    engine = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True)
    assert engine.stdin
    print("{}", file=engine.stdin, flush=True)
    with pytest.raises(subprocess.TimeoutExpired):
        engine.wait(1)
    engine.stdin.close()
    assert engine.wait(10) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not stopped there")
def test_an_engine_that_hangs_keeps_nobody_waiting(pair: Path) -> None:
    session = open_process(str(pair), "cpu")
    process = session._child.process
    process.send_signal(signal.SIGSTOP)
    long = Request([{"role": "user", "content": "word " * 200_000}], SETTINGS)
    host, reply = Host(lambda pair, device, on_measure: session), Reply(1, long)
    host.open("it")
    host.answer(reply)
    while not reply._started:
        time.sleep(0.01)
    start = time.monotonic()
    reply.cancel()
    assert reply.stopping and time.monotonic() - start < 0.5
    host.stop()
    assert time.monotonic() - start < 5 and process.returncode == -signal.SIGKILL


def test_nothing_is_imported_from_the_current_folder(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    open_process(str(pair.resolve()), "cpu").close()


def test_requests_and_errors_arrive_as_they_were() -> None:
    request = Request(
        [{"role": "user", "content": "ä\ud800"}], replace(SETTINGS, stop=("a", "b")), "plain", "so", True
    )
    assert Request.from_dict(json.loads(json.dumps(request.as_dict()))) == request
    assert as_message(SpecdecError("a", "b", "c")) == {"what": "a", "why": "b", "fix": "c"}
    assert as_message(KeyError("x")) == {"what": "KeyError", "why": "'x'", "fix": ""}


async def test_the_chat_goes_on_after_its_engine_crashed(tmp_path: Path, pair: Path) -> None:
    app = chat_app(tmp_path, opener=open_process)
    app.services.extra_pairs = [pair]
    async with app.run_test():
        screen = screen_of(app)
        screen.conversation.settings = replace(SETTINGS, max_new_tokens=100_000)
        await ask(app, "some text")
        await until(lambda: screen.answering.reply and screen.answering.reply.rounds)
        app.services.engine.state.session._child.process.kill()
        await idle(app)
        stopped = screen.conversation.line[-1]
        assert stopped.reason == "error" and stopped.text
        assert stopped.statistics["error"] == "The engine has ended."
        screen.conversation.settings = SETTINGS
        await screen.action_new()
        await answered(app, "again")
        assert screen.conversation.line[-1].reason == "length"


def test_a_pair_is_let_go_of_before_the_next_is_loaded() -> None:
    opened: list[ScriptedSession] = []

    def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        assert all(session.closed for session in opened)
        opened.append(ScriptedSession([pair]))
        return opened[-1]

    host = Host(opener)
    for name in ("one", "two"):
        host.open(name)
        while host.state.loading:
            time.sleep(0.01)
        assert host.state.error is None
    assert [session.closed for session in opened] == [True, False]
    host.stop()
    assert [session.closed for session in opened] == [True, True]
