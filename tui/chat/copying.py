"""The system clipboard through the platform's own tool; the terminal's OSC 52 is the app's part."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from specdec_onnx.tui.chat.widgets.markdown import parser

_TIMEOUT = 2


def tools() -> list[list[str]]:
    """Commands that take a text on stdin and put it on the clipboard here, best first."""
    if sys.platform == "darwin":
        found = [["pbcopy"]]
    elif sys.platform == "win32":
        found = [["clip"]]
    else:
        wayland = [["wl-copy"]] if os.environ.get("WAYLAND_DISPLAY") else []
        x11 = [["xclip", "-selection", "clipboard"], ["xsel", "-ib"]] if os.environ.get("DISPLAY") else []
        found = wayland + x11
    return [command for command in found if shutil.which(command[0])]


def copy(text: str) -> bool:
    """Hand `text` to the first tool that takes it; False when there is none (over SSH, in a container)."""
    encoded = text.encode("utf-16") if sys.platform == "win32" else text.encode()
    for command in tools():
        try:
            subprocess.run(command, input=encoded, check=True, timeout=_TIMEOUT, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            continue
        return True
    return False


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """The inside of one fence and the language after it."""

    code: str
    language: str


def code_blocks(markdown: str) -> list[CodeBlock]:
    """Every fenced block in order, an unfinished last one included."""
    tokens = parser().parse(markdown)
    return [CodeBlock(token.content, token.info.strip()) for token in tokens if token.type == "fence"]
