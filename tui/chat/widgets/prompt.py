"""Text inputs that show control characters as signs, and the prompt: Enter sends, Up recalls earlier questions."""

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
    """One line; what can't be displayed is replaced."""

    def validate_value(self, value: str) -> str:
        """Replace it in whatever is typed, pasted or set."""
        return printable(value).replace("\n", " ")


class TextInput(TextArea):
    """Several lines; what can't be displayed is kept, but shown as signs."""

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document(text, language)
        self.document = _Document(text)
        self.wrapped_document = WrappedDocument(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self._rewrap_and_refresh_virtual_size()


class _Document(Document):
    """Replaces what can't be displayed in the lines that are drawn and measured; the text stays as it is."""

    @property
    def lines(self) -> list[str]:
        return [printable(line) for line in self._lines]

    @overload
    def __getitem__(self, line_index: int) -> str: ...

    @overload
    def __getitem__(self, line_index: slice) -> list[str]: ...

    def __getitem__(self, line_index: int | slice) -> str | list[str]:
        lines = self._lines[line_index]
        return printable(lines) if isinstance(lines, str) else [printable(line) for line in lines]


NEWLINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter", "alt+ctrl+m", "ctrl+enter")

MAX_PASTED, MAX_PASTED_LINE = 500_000, 50_000
"""Characters that may be pasted, in all and in one line."""


class Prompt(TextInput):
    """Grows with its text; `recall` returns the earlier questions, newest last."""

    @dataclass
    class Submitted(Message):
        """Enter was pressed and the text isn't blank."""

        text: str

    @dataclass
    class ScrollAsked(Message):
        """PageUp or PageDown was pressed: scroll the conversation by `pages`."""

        pages: int

    def __init__(self, recall: Callable[[], list[str]], *, id: str | None = None) -> None:
        super().__init__(soft_wrap=True, show_line_numbers=False, tab_behavior="focus", id=id)
        self.highlight_cursor_line = False
        self._recall = recall
        self._recalled: int | None = None
        self._frame = ("", "")

    def frame(self, title: str, subtitle: str) -> None:
        """Write on the frame what is going on and what Enter does, unless it says so already."""
        if self._frame != (title, subtitle):
            self._frame = (title, subtitle)
            self.border_title, self.border_subtitle = Content(on_one_line(title)), Content(subtitle)

    async def _on_key(self, event: events.Key) -> None:
        if self._handles(event.key):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _handles(self, key: str) -> bool:
        if key == "enter":
            self._submit()
        elif key in NEWLINE_KEYS:
            self.insert("\n")
        elif key in ("pageup", "pagedown"):
            self.post_message(self.ScrollAsked(-1 if key == "pageup" else 1))
        elif key in ("up", "down"):
            return self._recall_step(-1 if key == "up" else 1)
        else:
            self._recalled = None
            return False
        return True

    async def _on_paste(self, event: events.Paste) -> None:
        """Reject a text that would delay every further key for seconds, and that no model reads anyway."""
        longest = max(map(len, event.text.splitlines()), default=0)
        if len(event.text) <= MAX_PASTED and longest <= MAX_PASTED_LINE:
            return
        event.prevent_default()
        event.stop()
        size = f"{len(event.text):,} characters, {longest:,} in one line"
        self.notify(
            f"It has {size}. The limits are {MAX_PASTED:,} and {MAX_PASTED_LINE:,}.",
            title="Too long to paste",
        )

    def _submit(self) -> None:
        if any(c.isprintable() and not c.isspace() for c in self.text):
            self.post_message(self.Submitted(self.text.strip("\n")))

    def fill(self, text: str) -> None:
        """Replace the text and move the cursor to its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def _recall_step(self, step: int) -> bool:
        """Step through earlier questions; only from an empty prompt, so that nothing typed is lost."""
        earlier = self._recall()
        if self._recalled is None and (self.text or step > 0 or not earlier):
            return False
        position = (len(earlier) if self._recalled is None else self._recalled) + step
        if position >= len(earlier):
            self._recalled = None
            self.text = ""
        elif position >= 0:
            self._recalled = position
            self.fill(earlier[position])
        return True
