"""A chat app over a scripted session and a history in a temporary folder."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

from specdec_onnx.models import system
from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.engine_client import EngineClient
from specdec_onnx.tui.chat.history.store import Recorder, Store
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.screens.chat import ChatScreen
from specdec_onnx.tui.chat.services import Preparer, Services
from specdec_onnx.tui.chat.session import Opener, Request, Session
from specdec_onnx.tui.chat.settings import Preferences


def no_work(name: str, folder: Path, progress: Callable[[str, int, int], None]) -> None:
    """Prepares nothing."""
    progress(name, 1, 1)


def chat_app(
    home: Path,
    session: Session | None = None,
    *,
    opener: Callable[..., Any] | None = None,
    prepare: Preparer = no_work,
    notice: str = "",
    open_latest: bool = False,
) -> ChatApp:
    """With a session, a pair folder of that name is "opened" at the start."""
    pairs = []
    if session is not None:
        folder = home / "models" / session.name
        folder.mkdir(parents=True, exist_ok=True)
        pairs = [folder]
    store = Store(home / "history.sqlite3")
    client = EngineClient(eventually(opener or (lambda pair, device, on_measure: session)))
    preferences = Preferences(theme="textual-dark")
    services = Services(client, store, Recorder(store), preferences, prepare, pairs, notice)
    return ChatApp(services, open_latest=open_latest)


def eventually(opener: Callable[..., Any]) -> Opener:
    """The same opener, which may give a session at once."""

    async def opened(pair: str, device: str, on_measure: Callable[[], None]) -> Session:
        result = opener(pair, device, on_measure)
        return await result if isawaitable(result) else result

    return opened


def screen_of(app: ChatApp) -> ChatScreen:
    """The chat screen, whatever lies above it."""
    return next(screen for screen in app.screen_stack if isinstance(screen, ChatScreen))


async def reply_of(session: Session, request: Request) -> Reply:
    """A whole answer of a session."""
    reply = Reply(1, request)
    reply.begin(session.cancel)
    async for round_ in session.reply(request, reply.read):
        reply.take(round_)
    reply.end(session.statistics())
    return reply


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until the condition holds; fails the test when it doesn't in time."""
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not come true in time")


async def idle(app: ChatApp) -> None:
    """Wait until no answer is under way and everything is drawn."""
    await until(lambda: not screen_of(app).answering.busy)
    await asyncio.sleep(0.05)


async def ask(app: ChatApp, text: str = "Question") -> ChatScreen:
    """Send a question once the pair is ready or failed; its answer may be under way or complete on return."""
    screen = screen_of(app)
    await until(lambda: app.services.engine.state.session or app.services.engine.state.error)
    before = len(screen.conversation.line)
    screen.prompt.fill(text)
    screen.prompt._submit()
    await until(lambda: len(screen.conversation.line) == before + 2)
    return screen


async def answered(app: ChatApp, *questions: str) -> ChatScreen:
    """Ask one after the other, each when the answer before it is complete."""
    for question in questions or ("Question",):
        await ask(app, question)
        await idle(app)
    return screen_of(app)


async def under_way(app: ChatApp, rounds: int = 2, text: str = "Question") -> ChatScreen:
    """Ask, and wait until so many rounds of the answer have been drawn."""
    screen = await ask(app, text)
    await until(lambda: screen.answering.reply and len(screen.answering.reply.rounds) >= rounds)
    return screen


def stored_text() -> Path:
    """A file of keys and values where the chat's engine keeps them."""
    folder = system.prefix_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (file := folder / "model-text.safetensors").write_bytes(b"keys and values")
    return file
