"""Inputs for text from anywhere: control characters are shown by signs, and a text of several lines keeps them."""

from typing import overload

from textual.document._document import Document
from textual.document._document_navigator import DocumentNavigator
from textual.document._wrapped_document import WrappedDocument
from textual.widgets import Input, TextArea

from specdec_onnx.tui.safe import printable


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
