"""What Textual's terminal drivers lack: any bytes may arrive, a paste may hold any character, the window may close."""

import asyncio
import codecs
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.driver import Driver
from textual.drivers._writer_thread import WriterThread
from textual.message import Message


def adapt(driver: type[Driver]) -> type[Driver]:
    """Have this driver use the parts below in place of Textual's own."""
    ours = {"getincrementaldecoder": _decoder, "XTermParser": PasteParser, "WriterThread": Writer}
    for module in (driver.__module__, "textual.drivers.win32"):
        names = vars(sys.modules[module]) if module in sys.modules else {}
        names.update({name: part for name, part in ours.items() if name in names})
    return driver


def on_end_signals(leave: Callable[[int], object]) -> None:
    """Call `leave` in the event loop when somebody ends the program or closes its window."""
    if sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, leave, int(number))


def _decoder(encoding: str) -> partial[codecs.IncrementalDecoder]:
    """Textual's ends the app when a byte arrives that is not UTF-8, as in a pasted file."""
    return partial(codecs.getincrementaldecoder(encoding), errors="replace")


class PasteParser(XTermParser):
    """Collects a paste up to its end mark; Textual's takes an escape character inside for the next key."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasting = False
        self._pasted: list[str] = []
        self._before = ""
        """The latest characters, with which a mark may have begun."""

    def feed(self, data: str) -> Iterable[Message]:
        """Parse the next characters; none means that the input has ended."""
        if not data:
            yield from super().feed("")
        while data:
            mark = BRACKETED_PASTE_END if self._pasting else BRACKETED_PASTE_START
            part, data, found = self._up_to(mark, data)
            if self._pasting:
                self._pasted.append(part)
            else:
                yield from super().feed(part)
            if found and self._pasting:
                yield from self._paste()
            self._pasting ^= found

    def tick(self) -> Iterable[Message]:
        """An escape sequence that stays incomplete becomes keys, and no start mark any more."""
        for event in super().tick():
            self._before = ""
            yield event

    def _up_to(self, mark: str, data: str) -> tuple[str, str, bool]:
        """The characters up to the end of this mark, the rest, and whether the mark was there."""
        known, text = len(self._before), self._before + data
        if (at := text.find(mark)) < 0:
            self._before = text[1 - len(mark) :]
            return data, "", False
        self._before = ""
        end = at + len(mark) - known
        return data[:end], data[end:], True

    def _paste(self) -> Iterable[Message]:
        """To Textual's parser the paste is empty; what it makes of that is replaced."""
        text = "".join(self._pasted).removesuffix(BRACKETED_PASTE_END)
        self._pasted = []
        yield from (e for e in super().feed(BRACKETED_PASTE_END) if not isinstance(e, events.Paste))
        yield events.Paste(text.replace("\0", ""))


class Writer(WriterThread):
    """Drops what is written to a terminal that is gone; Textual's would block the app as soon as its queue is full."""

    def run(self) -> None:
        """Write until the app ends."""
        try:
            super().run()
        except OSError:
            while self._queue.get() is not None:
                pass
