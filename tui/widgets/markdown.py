"""Markdown whose code blocks stay cheap to redraw while they grow."""

from functools import lru_cache

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Label, Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

CHUNK = 12


class CodeBlock(MarkdownFence):
    """A finished block; without a language it is plain text, where guessing would try every lexer there is."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """The coloured code."""
        return MarkdownFence.highlight(code, language or "text", ansi, dark)


remembered = lru_cache(maxsize=512)(CodeBlock.highlight)


class GrowingCodeBlock(CodeBlock):
    """A block under way, one label for a few lines: only the last is drawn anew, so that a frame costs the same
    however long the block is. Colours can be off where a string spans labels, until the block is finished."""

    DEFAULT_CSS = "GrowingCodeBlock { padding: 1 0; & > Label { padding: 0 2; } }"

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Nothing at once: each label is coloured by itself."""
        return Content(code)

    def compose(self) -> ComposeResult:
        """The labels so far."""
        for piece in chunks(self.code):
            yield Label(self._coloured(piece), expand=True)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not isinstance(block, MarkdownFence):
            await super()._update_from_block(block)
            return
        before = chunks(self.code)
        self._copy_context(block)
        labels = list(self.query(Label))
        for place, piece in enumerate(chunks(self.code)):
            if place >= len(labels):
                await self.mount(Label(self._coloured(piece), expand=True))
            elif place >= len(before) or before[place] != piece:
                labels[place].update(self._coloured(piece))

    def _coloured(self, piece: str) -> Content:
        return remembered(piece, self.lexer, self.app.native_ansi_color, self.app.current_theme.dark)


def chunks(code: str) -> list[str]:
    """The code a few lines at a time, without the line ends between them; a blank piece keeps its lines."""
    lines = code.rstrip("\n").split("\n")
    return ["\n".join(lines[at : at + CHUNK]) or " " for at in range(0, len(lines), CHUNK)]


class AnswerMarkdown(Markdown):
    """`growing` while text is streamed into it."""

    growing = False

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """Own classes for code, Textual's for the rest."""
        if block_name in ("fence", "code_block"):
            return GrowingCodeBlock if self.growing else CodeBlock
        return super().get_block_class(block_name)
