"""The first minute: no model, a download, a damaged history, few colours, every action in the palette."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.color import ColorSystem
from support.chat_app import chat_app, eventually, idle, screen_of, under_way, until
from support.scripted_session import ScriptedSession
from support.snapshots import screen_text
from textual import events
from textual.widgets import Button, OptionList, ProgressBar, Static

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.history.store import Store
from specdec_onnx.tui.chat.keys import COMMANDS
from specdec_onnx.tui.chat.services import Services
from specdec_onnx.tui.chat.settings import Preferences
from specdec_onnx.tui.chat.widgets.bars import JobBar, Pace
from specdec_onnx.tui.chat.widgets.welcome import Welcome
from specdec_onnx.tui.cli import main as cli


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


Report = Callable[[str, int, int], None]


async def test_a_machine_without_a_model_is_offered_the_catalog(tmp_path: Path) -> None:
    go_on, session = threading.Event(), ScriptedSession(["hello"])

    def prepare(name: str, folder: Path, report: Report) -> None:
        report(f"downloading {name}", 40, 100)
        go_on.wait(60)
        folder.mkdir(parents=True)

    app = chat_app(tmp_path, opener=lambda pair, device, on_measure: session, prepare=prepare)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        offer = screen.query_one("#welcome-list", OptionList)
        await until(lambda: offer.display and offer.option_count == 2)
        screen.prompt.fill("typed meanwhile")
        await pilot.press("enter")
        assert screen.prompt.text == "typed meanwhile" and not screen.answering.busy
        offer.focus()
        await pilot.press("down", "enter")
        job = screen.query_one(JobBar)
        await until(lambda: "downloading smollm2-135m" in str(job.query_one("#job-text", Static).render()))
        assert job.query_one(ProgressBar).percentage == 0.4
        go_on.set()
        await until(lambda: app.services.engine.state.session is session)
        assert app.services.engine.state.pair == str(tmp_path / "home" / "pairs" / "smollm2-135m")
        assert not job.display
        screen.prompt.focus()
        await pilot.press("enter")
        await until(lambda: screen.conversation.line)
        await idle(app)
        assert screen.conversation.line[-1].text == "hello"


@pytest.mark.parametrize("ending", ["success", "failure", "cancel"])
@pytest.mark.parametrize("meanwhile", ["nothing", "tab", "away"])
async def test_the_prompt_has_the_focus_after_preparing(tmp_path: Path, ending: str, meanwhile: str) -> None:
    go_on, session = threading.Event(), ScriptedSession(["hello"])

    def prepare(name: str, folder: Path, report: Report) -> None:
        while not go_on.wait(0.01):
            report("downloading", 1, 2)
        if ending == "failure":
            raise SpecdecError("could not download it", "no network", "try again")
        folder.mkdir(parents=True)

    app = chat_app(tmp_path, opener=lambda pair, device, on_measure: session, prepare=prepare)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        offer, job = screen.query_one("#welcome-list", OptionList), screen.query_one(JobBar)
        await until(lambda: offer.display and offer.option_count == 2)
        await pilot.press("h", "i", "tab", "down", "enter")
        await until(lambda: job.running)
        if meanwhile != "nothing":
            offer.focus()
            await until(lambda: screen.focused is offer)
        if meanwhile == "away":
            app.post_message(events.AppBlur())
            await until(lambda: screen.focused is None)
        if ending == "cancel":
            cancel = job.query_one("#job-cancel", Button)
            cancel.focus()
            await pilot.press("enter")
        go_on.set()
        await until(lambda: not job.display)
        await until(lambda: ending != "success" or not offer.display)
        await pilot.pause()
        if meanwhile == "away":
            app.post_message(events.AppFocus())
        await until(lambda: screen.focused is screen.prompt)
        await pilot.press("!")
        assert screen.prompt.text == "hi!"
        if ending == "success":
            await pilot.press("enter")
            await until(lambda: screen.conversation.line)
            await idle(app)
            assert [turn.text for turn in screen.conversation.line] == ["hi!", "hello"]


async def test_hiding_what_has_the_focus_gives_it_to_the_prompt(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test() as pilot:
        screen = screen_of(app)
        job = screen.query_one(JobBar)
        job.display = True
        await pilot.pause()
        job.query_one("#job-cancel", Button).focus()
        await until(lambda: screen.focused is not screen.prompt)
        job.display = False
        await until(lambda: screen.focused is screen.prompt)


async def test_a_failed_download_says_why_and_a_cancelled_one_stops(tmp_path: Path) -> None:
    reports, stopped = threading.Event(), threading.Event()

    def prepare(name: str, folder: Path, report: Report) -> None:
        if name == "broken":
            raise SpecdecError("could not download it", "no network", "try again")
        try:
            while True:
                reports.wait(0.01)
                report("downloading", 1, 2)
        finally:
            stopped.set()

    app = chat_app(tmp_path, opener=lambda pair, device, on_measure: ScriptedSession([""]), prepare=prepare)
    async with app.run_test() as pilot:
        screen = screen_of(app)
        await pilot.pause()
        screen.get_pair("broken")
        await until(lambda: any(note.title == "could not download it" for note in app._notifications))
        screen.get_pair("slow")
        job = screen.query_one(JobBar)
        await until(lambda: job.running)
        assert not job.start("another", tmp_path)
        job.query_one("#job-cancel", Button).press()
        await until(stopped.is_set)
        await until(lambda: not job.display)


@pytest.mark.parametrize("keys", [("tab", "enter"), ("escape", "escape"), ("tab", "escape", "escape")])
async def test_a_download_is_cancelled_from_the_prompt_by_tab_or_by_escape_twice(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    stopped = threading.Event()

    def prepare(name: str, folder: Path, report: Report) -> None:
        try:
            while not stopped.wait(0.01):
                report("downloading model.gguf", 1, 2)
        finally:
            stopped.set()

    app = chat_app(tmp_path, ScriptedSession(["fine"]), prepare=prepare)
    async with app.run_test() as pilot:
        screen = screen_of(app)
        screen.get_pair("slow")
        assert screen.focused is screen.prompt
        *first, last = keys
        await pilot.press(*first)
        await pilot.pause(0.1)
        assert not stopped.is_set(), "one press of Esc may be meant for something else"
        await pilot.press(last)
        await until(stopped.is_set)
        await until(lambda: not screen.query_one(JobBar).display)


async def test_escape_stops_an_answer_before_it_asks_about_a_download(tmp_path: Path) -> None:
    stopped = threading.Event()

    def prepare(name: str, folder: Path, report: Report) -> None:
        while not stopped.wait(0.01):
            report("downloading model.gguf", 1, 2)

    app = chat_app(tmp_path, ScriptedSession(["word " * 40], hold_after=2), prepare=prepare)
    async with app.run_test() as pilot:
        screen = await under_way(app)
        screen.get_pair("slow")
        await pilot.press("escape", "escape")
        await idle(app)
        assert screen.query_one(JobBar).running
        stopped.set()


@pytest.mark.parametrize("size", [(100, 30), (80, 24), (60, 20), (40, 10)])
async def test_a_download_says_what_how_far_and_how_fast_and_keeps_its_cancel(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    done = threading.Event()

    def prepare(name: str, folder: Path, report: Report) -> None:
        for number in range(10_000):
            report("downloading a-model-of-some-size.gguf", 40_000_000 + number * 100_000, 1_100_000_000)
            if done.wait(0.01):
                return

    app = chat_app(tmp_path, ScriptedSession(["fine"]), prepare=prepare)
    async with app.run_test(size=size):
        screen = screen_of(app)
        screen.get_pair("some")
        await until(lambda: "MB/s" in screen_text(app))
        line = next(line for line in screen_text(app).splitlines() if "MB/s" in line)
        assert (
            re.search(r"^ +(downloading )?a-m.* +(\d+ MB of 1.1 GB|\d+ %) · \d+ MB/s", line)
            and "Cancel" in line
        )
        assert (" left" in line) == (size[0] >= 80)
        assert screen.query_one("#job-cancel").region.right <= size[0]
        done.set()


def test_the_speed_is_that_of_the_last_seconds() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.figures("getting x", 0, 0) == ""
    assert pace.figures("a", 0, 2_000_000_000) == "0 MB of 2.0 GB"
    for now in range(1, 21):
        figures = pace.figures("a", int(now) * 10_000_000, 2_000_000_000)
    assert figures == "200 MB of 2.0 GB · 10 MB/s · 3:00 left"
    now = 30
    assert pace.figures("a", 400_000_000, 2_000_000_000) == "400 MB of 2.0 GB · 20 MB/s · 1:20 left"
    assert pace.figures("b", 1_000_000, 2_000_000_000) == "1 MB of 2.0 GB", "another file has its own speed"
    now = 31
    assert " · 500 kB/s · " in pace.figures("b", 1_500_000, 2_000_000_000)
    assert pace.figures("preparing layers", 5, 24) == "5 of 24"
    assert pace.figures("a", 1_000_000_000, 2_000_000_000, short=True) == "50 %"


async def test_the_first_load_of_a_pair_says_that_it_measures_once(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def opener(pair: str, device: str, on_measure: Callable[[], None]) -> ScriptedSession:
        on_measure()
        await go_on.wait()
        return ScriptedSession(["fine"])

    app = chat_app(tmp_path, ScriptedSession([""]), opener=opener)
    async with app.run_test(size=(100, 30)):
        await until(lambda: "measuring scripted-pair on this machine (first time only)" in screen_text(app))
        await until(lambda: "First time on this machine" in screen_text(app))
        go_on.set()
        await until(lambda: "measur" not in screen_text(app))


async def test_the_notice_of_a_newer_history_ends_its_sentences_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "home" / "history.sqlite3")
    store.rows("PRAGMA user_version = 99")
    store.close()
    services = Services.start(
        eventually(lambda *how: ScriptedSession([""])), lambda name, folder, report: None
    )
    assert "newer specdec" in services.notice and ".." not in services.notice
    await services.stop()


async def test_a_damaged_history_is_announced_and_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    damaged = home / "history.sqlite3"
    damaged.write_text("not a database at all " * 100)
    services = Services.start(
        eventually(lambda *how: ScriptedSession([""])), lambda name, folder, report: None
    )
    assert services.store.path is None and "left untouched" in services.notice
    await services.stop()
    assert damaged.read_text().startswith("not a database")
    app = chat_app(tmp_path, ScriptedSession(["fine"]), notice=services.notice)
    async with app.run_test(size=(80, 24)):
        notice = screen_of(app).query_one("#notice", Static)
        assert notice.display and "This session is not saved" in str(notice.render())


async def test_every_action_is_in_the_palette(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test():
        names = [command.title for command in app.get_system_commands(screen_of(app))]
        assert {command.label for command in COMMANDS} <= set(names)
        assert len(names) == len(set(names))


async def test_every_action_exists(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test():
        screen = screen_of(app)
        for command in COMMANDS:
            assert hasattr(screen, "action_" + command.action.partition("(")[0]), command


def test_no_key_is_one_that_terminals_swallow() -> None:
    keys = {command.key for command in COMMANDS}
    assert not keys & {"ctrl+l", "ctrl+m", "ctrl+i", "ctrl+h", "ctrl+s", "ctrl+z"}
    assert len([key for key in keys if key]) == len([command for command in COMMANDS if command.key])


@pytest.mark.parametrize("few", [True, False])
async def test_sixteen_colours_get_the_terminals_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    app.services.preferences.theme = ""
    monkeypatch.setattr(app.console, "_color_system", None if few else ColorSystem.TRUECOLOR)
    async with app.run_test():
        assert app.theme == ("ansi-dark" if few else "textual-dark")


async def test_the_theme_is_remembered(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["fine"]))
    async with app.run_test():
        app.theme = "nord"
    assert Preferences.load(tmp_path / "home" / "preferences.json").theme == "nord"


def test_damaged_preferences_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    for text in ("", "[]", '{"theme": 3, "other": "x"}'):
        file.write_text(text)
        assert Preferences.load(file) == Preferences()


async def test_continue_opens_the_latest_conversation(tmp_path: Path) -> None:
    store = Store(tmp_path / "history.sqlite3")
    made = store.create("Earlier", "", {})
    store.add(made.id, None, "user", "hello again")
    store.close()
    app = chat_app(tmp_path, ScriptedSession(["fine"]), open_latest=True)
    async with app.run_test():
        await until(lambda: screen_of(app).conversation.title == "Earlier")
        await until(lambda: not screen_of(app).query_one(Welcome).display)


async def test_quitting_mid_answer_keeps_the_text_so_far(tmp_path: Path) -> None:
    session = ScriptedSession(["word " * 40], hold_after=2)
    app = chat_app(tmp_path, session)
    async with app.run_test():
        await under_way(app)
    rows = Store(tmp_path / "history.sqlite3").rows("SELECT text FROM turn WHERE role = 'assistant'")
    assert rows == [("word " * 8,)]


def test_nothing_heavy_is_imported_before_a_model_is_loaded(tmp_path: Path) -> None:
    script = (
        "import sys; import specdec_onnx.tui.chat.app, specdec_onnx.tui.chat.services, specdec_onnx.tui.chat.engine_client;"
        "heavy = {'numpy', 'onnxruntime', 'tokenizers', 'jinja2', 'onnx', 'gguf', 'huggingface_hub'} & set(sys.modules);"
        "print(', '.join(sorted(heavy)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env={**os.environ}
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_the_first_answer_imports_nothing_more(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from support.chat_app import answered, chat_app, until
from support.scripted_session import ScriptedSession
from support.snapshots import screen_text

async def main():
    app = chat_app(Path({str(tmp_path)!r}), ScriptedSession(["# One\\n\\n```python\\nprint(1)\\n```\\n\\n- two\\n"]))
    async with app.run_test():
        await until(lambda: app.services.engine.state.session)
        await app.workers.wait_for_complete()
        before = set(sys.modules)
        await answered(app)
        print(sorted(set(sys.modules) - before), "rich.markdown" in before)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[] True"), done.stderr


def test_without_a_terminal_the_way_out_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specdec_onnx.tui.cli.main", "chat"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and "no terminal" in done.stderr and "specdec run" in done.stderr


@pytest.mark.parametrize("port", ["99999999", "65536", "0", "-1"])
def test_a_port_that_does_not_exist_is_named(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", "pair", "--serve", "--port", port]) == 2
    said = capsys.readouterr()
    assert f"there is no port {port}\n" in said.err and "from 1 to 65535" in said.err and not said.out


def test_a_port_in_use_is_named_and_nothing_is_served(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("textual_serve")
    with socket.create_server(("localhost", 0)) as other:
        port = str(other.getsockname()[1])
        assert cli.main(["chat", "pair", "--serve", "--port", port]) == 2
    said = capfd.readouterr()
    assert f"can't be served at localhost, port {port}\n" in said.err and "in use" in said.err
    assert "--port" in said.err and "Traceback" not in said.err and not said.out


async def test_ctrl_q_mid_answer_ends_it_and_leaves(tmp_path: Path) -> None:
    session = ScriptedSession(["word " * 4000], pause=0.02)
    app = chat_app(tmp_path, session)
    async with app.run_test() as pilot:
        await under_way(app, 4)
        await pilot.press("ctrl+q")
        await until(lambda: not app.is_running)
    ((text, reason),) = Store(tmp_path / "history.sqlite3").rows(
        "SELECT text, reason FROM turn WHERE role = 'assistant'"
    )
    assert text.startswith("word word ") and reason == "cancelled"
