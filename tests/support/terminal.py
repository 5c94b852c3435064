"""A program at a terminal of its own, and what it wrote there."""

import os
import pty
import subprocess
import sys
from collections.abc import Sequence

SCRIPTED = """
import sys
from support.scripted_engine import ScriptedEngine
from specdec_onnx.runtime import engine
from specdec_onnx.tui.cli import main as cli
from specdec_onnx.tui import prepare
scripted = ScriptedEngine()
engine.load = lambda path, **options: scripted
prepare.prepared_pair = lambda name: name
{setup}
sys.exit(cli.main(sys.argv[1:]))
"""
"""`specdec` over a scripted engine; `setup` may change it."""


def scripted(*words: str, setup: str = "") -> list[str]:
    """The command that runs `specdec` with these words over a scripted engine."""
    return [sys.executable, "-c", SCRIPTED.format(setup=setup), *words]


def environment(**changes: str) -> dict[str, str]:
    """This process's, from where the tests' own modules are found too."""
    here = [path for path in sys.path if path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(here), "TERM": "xterm"} | changes


def at_a_terminal(command: Sequence[str], typed: bytes = b"", stderr: int | None = None) -> tuple[int, bytes]:
    """Run `command` with a terminal for its streams; its exit code, and what the terminal was sent."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=stderr or theirs, env=environment(), close_fds=True
    )
    os.close(theirs)
    if typed:
        os.write(ours, typed)
    sent = bytearray()
    try:
        while data := os.read(ours, 4096):
            sent += data
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    return process.wait(60), bytes(sent)
