"""The multi-line input: Enter sends, Up recalls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

from textual import events
from textual.content import Content
from textual.document._document import Document
from textual.document._document_navigator import DocumentNavigator
from textual.document._wrapped_document import WrappedDocument
from textual.message import Message
from textual.widgets import Input, TextArea

from specdec_onnx.models.text import on_one_line, printable


class LineInput(Input):
    """One line, which holds nothing that can't be shown."""

    def validate_value(self, value: str) -> str:
        """Whatever is typed, pasted or set."""
        return printable(value).replace("\n", " ")


class TextInput(TextArea):
    """Several lines, kept as they came."""

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document(text, language)
        self.document = _Document(text)
        self.wrapped_document = WrappedDocument(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self._rewrap_and_refresh_virtual_size()


class _Document(Document):
    """Its lines as they are drawn and measured; the text itself stays."""

    @property
    def lines(self) -> list[str]:
        return [printable(line) for line in self._lines]

    @overload
    def __getitem__(self, line_index: int) -> str: ...

    @overload
    def __getitem__(self, line_index: slice) -> list[str]: ...

    def __getitem__(self, line_index: int | slice) -> str | list[str]:
        found = self._lines[line_index]
        return printable(found) if isinstance(found, str) else [printable(line) for line in found]


NEWLINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter", "alt+ctrl+m", "ctrl+enter")

TEXT, LINE = 500_000, 50_000
"""The most characters of a text that is pasted, and of one line of it."""


class Prompt(TextInput):
    """Grows with its text; asks `recall` for the questions to walk through, newest last."""

    @dataclass
    class Submitted(Message):
        """Enter was pressed on a text that isn't blank."""

        text: str

    @dataclass
    class ScrollAsked(Message):
        """PageUp or PageDown was pressed: the conversation is to scroll, by `pages`."""

        pages: int

    def __init__(self, recall: Callable[[], list[str]], *, id: str | None = None) -> None:
        super().__init__(soft_wrap=True, show_line_numbers=False, tab_behavior="focus", id=id)
        self.highlight_cursor_line = False
        self._recall = recall
        self._place: int | None = None
        self._frame = ("", "")

    def frame(self, doing: str, enter: str) -> None:
        """Say around the text what goes on and what Enter does; the same words are not drawn again."""
        if self._frame != (doing, enter):
            self._frame = (doing, enter)
            self.border_title, self.border_subtitle = Content(on_one_line(doing)), Content(enter)

    async def _on_key(self, event: events.Key) -> None:
        handled = self._special(event.key)
        if handled:
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    def _special(self, key: str) -> bool:
        if key == "enter":
            self._submit()
        elif key in NEWLINE_KEYS:
            self.insert("\n")
        elif key in ("pageup", "pagedown"):
            self.post_message(self.ScrollAsked(-1 if key == "pageup" else 1))
        elif key in ("up", "down"):
            return self._walk(-1 if key == "up" else 1)
        else:
            self._place = None
            return False
        return True

    async def _on_paste(self, event: events.Paste) -> None:
        """Refuse what would make every further key wait for seconds, and what no model reads anyway."""
        longest = max(map(len, event.text.splitlines()), default=0)
        if len(event.text) <= TEXT and longest <= LINE:
            return
        event.prevent_default()
        event.stop()
        size = f"{len(event.text):,} characters, {longest:,} in one line"
        self.notify(f"It has {size}; {TEXT:,} and {LINE:,} fit in.", title="Too long to paste")

    def _submit(self) -> None:
        if any(c.isprintable() and not c.isspace() for c in self.text):
            self.post_message(self.Submitted(self.text.strip("\n")))

    def fill(self, text: str) -> None:
        """Replace the text and put the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def _walk(self, step: int) -> bool:
        """Walk through earlier questions, starting from an empty prompt only, so that no draft is lost."""
        earlier = self._recall()
        if self._place is None and (self.text or step > 0 or not earlier):
            return False
        place = (len(earlier) if self._place is None else self._place) + step
        if place >= len(earlier):
            self._place = None
            self.text = ""
        elif place >= 0:
            self._place = place
            self.fill(earlier[place])
        return True
