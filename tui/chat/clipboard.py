"""What is copied from an answer, and the system clipboard through the platform's own tool.

The app itself sends OSC 52, the terminal's escape sequence for the clipboard.
"""

import os
import shutil
import subprocess
import sys

_TIMEOUT = 2


def copy(text: str) -> bool:
    """Pass `text` to the first tool that accepts it; return False if none does (over SSH, in a container)."""
    encoded = text.encode("utf-16") if sys.platform == "win32" else text.encode()
    for command in tools():
        try:
            subprocess.run(command, input=encoded, check=True, timeout=_TIMEOUT, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            continue
        return True
    return False


def tools() -> list[list[str]]:
    """List the commands here that put their stdin on the clipboard, best first."""
    if sys.platform == "darwin":
        commands = [["pbcopy"]]
    elif sys.platform == "win32":
        commands = [["clip"]]
    else:
        commands = [["wl-copy"]] if os.environ.get("WAYLAND_DISPLAY") else []
        if os.environ.get("DISPLAY"):
            commands += [["xclip", "-selection", "clipboard"], ["xsel", "-ib"]]
    return [command for command in commands if shutil.which(command[0])]


def code_blocks(markdown: str) -> list[str]:
    """Return the code of every fenced block in order, including an unfinished last one."""
    from specdec_onnx.tui.chat.widgets.markdown import parser

    return [token.content for token in parser().parse(markdown) if token.type == "fence"]
