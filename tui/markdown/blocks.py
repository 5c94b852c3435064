"""A Markdown text that grows at its end, as top-level blocks: only the last one is read again."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PIECE = 12
UNDECIDED = re.compile(r"(?<![^\n])[ \t]*[-=*+_#>`~|:.)\d]+$")
"""The beginning of a last line that the next characters may make a list, a table, a fence, or just text."""


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level block. A code block under way is several: some of its lines each, so that a frame costs the same
    however long it is."""

    source: str
    """Markdown; of a code block, the code."""
    language: str | None = None
    """Of code; None for anything else."""
    starts: bool = True
    ends: bool = True
    references: str = ""
    """The link definitions of the whole text, as Markdown."""


class Document:
    """The blocks of a text. `whole` says that nothing more will come: code blocks are then in one piece."""

    def __init__(self, text: str = "", *, whole: bool = False) -> None:
        self.text = ""
        self.blocks: list[Block] = []
        self.whole = whole
        self._read = 0
        self._settled = 0
        self._links: dict[str, Any] = {}
        self.append(text)

    def append(self, more: str) -> None:
        """Take in more text."""
        self.text += more
        tail = self.text[self._read :]
        tokens = _parser().parse(tail if self.whole else UNDECIDED.sub("", tail), self._links)
        tops = [token for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
        del self.blocks[self._settled :]
        if tops:
            lines = tail.splitlines(keepends=True)
            self._extend(tops[:-1], lines)
            self._settled = len(self.blocks)
            self._extend(tops[-1:], lines)
            self._read += len("".join(lines[: first_line(tops[-1])]))

    def _extend(self, tokens: "Iterable[Token]", lines: list[str]) -> None:
        references = "\n".join(f"[{name}]: <{link['href']}>" for name, link in self._references().items())
        for token in tokens:
            if token.type in ("fence", "code_block"):
                self.blocks += self._code(token.content, token.info.split(" ")[0])
            else:
                first, end = token.map or (0, 0)
                self.blocks.append(Block("".join(lines[first:end]).rstrip("\n"), references=references))

    def _references(self) -> dict[str, Any]:
        links: dict[str, Any] = self._links.get("references", {})
        return links

    def _code(self, code: str, language: str) -> Iterator[Block]:
        lines = code.rstrip("\n").split("\n")
        size = len(lines) if self.whole else PIECE
        for at in range(0, len(lines), size):
            piece = "\n".join(lines[at : at + size])
            yield Block(piece, language or "text", starts=at == 0, ends=at + size >= len(lines))


def first_line(token: "Token") -> int:
    """Number of the line that a block starts with."""
    return token.map[0] if token.map else 0


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    # Without HTML a tag is text, which is what an answer about HTML needs.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def parse(block: Block) -> "list[Token]":
    """The tokens of a block that isn't code. Links that only repeat their target are plain text; so are pictures,
    which Rich draws outside of their paragraph."""
    tokens = _parser().parse(f"{block.source}\n\n{block.references}")
    for token in tokens:
        token.children = token.children and list(_plainer(token.children))
    return tokens


def _plainer(children: "list[Token]") -> "Iterator[Token]":
    bare = False
    for token, after in zip_longest(children, children[1:]):
        if token.type == "link_open":
            bare = after is not None and after.content == token.attrs.get("href")
        if token.type == "image":
            token.type, token.tag, token.children = "text", "", None
            token.content = f"{token.content} ({token.attrs['src']})"
        if not (bare and token.type in ("link_open", "link_close")):
            yield token
