"""`specdec chat --serve` in a real browser: what is typed there is answered here."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.smol import smol

from specdec_onnx.tui.chat.history.store import Store

__all__ = ["smol"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt install chromium)"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.1)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


@pytest.fixture
def served(tmp_path: Path, smol: Path) -> Iterator[tuple[str, Path]]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "specdec_onnx.tui.cli.main",
        "chat",
        str(smol),
        "--serve",
        "--port",
        str(port),
    ]
    environment = os.environ | {"SPECDEC_HOME": str(tmp_path), "SPECDEC_CACHE": str(tmp_path / "cache")}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port))
        yield f"http://localhost:{port}", tmp_path
    finally:
        server.terminate()
        server.wait(20)


def test_a_question_typed_in_the_browser_is_answered(served: tuple[str, Path]) -> None:
    address, home = served
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 700})
        page.goto(address)
        until(lambda: (home / "history.sqlite3").exists())
        page.wait_for_selector(".xterm-helper-textarea", state="attached", timeout=60_000)
        page.wait_for_timeout(1500)
        page.mouse.click(400, 620)
        page.wait_for_timeout(500)
        page.keyboard.type("Name one river")
        page.keyboard.press("Enter")
        store = Store(home / "history.sqlite3")
        until(lambda: store.rows("SELECT 1 FROM turn WHERE role = 'assistant' AND reason IS NOT NULL"))
        page.wait_for_timeout(500)
        page.screenshot(path=str(home / "browser.png"))
        browser.close()
    question, answer = (row[0] for row in store.rows("SELECT text FROM turn ORDER BY id"))
    assert question == "Name one river" and len(answer) > 5
    assert (home / "browser.png").stat().st_size > 10_000, "the page shows the chat, not an empty terminal"
