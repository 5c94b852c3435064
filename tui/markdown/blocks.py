"""A Markdown text that grows at its end, as top-level blocks: what came before the last one is not read again."""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.safe import printable

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PIECE = 12
LISTS = ("bullet_list_open", "ordered_list_open")
UNDECIDED = re.compile(r"(?<![^\n])[ \t]*[-=*+_#>`~|:.)\d]+$")
"""The beginning of a last line that the next characters may make a list, a table, a fence, or just text."""
LINES = re.compile(r"(?<=\n)")
"""Between lines as Markdown counts them; Python knows more line ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level block. While it grows, code and lists are several: some of their lines or items each, so that a
    frame costs the same however long they are."""

    source: str
    """Markdown; of a code block, the code."""
    language: str | None = None
    """Of code; None for anything else."""
    starts: bool = True
    ends: bool = True
    references: str = ""
    """The link definitions of the whole text, as Markdown."""


class Document:
    """The blocks of a text. `whole` says that nothing more will come: each block is then in one piece."""

    def __init__(self, text: str = "", *, whole: bool = False) -> None:
        self.text = ""
        self.blocks: list[Block] = []
        self.whole = whole
        self._read = 0
        self._settled = 0
        self._in_list = False
        self._links: dict[str, Any] = {}
        self.append(text)

    def append(self, more: str) -> None:
        """Take in more text."""
        self.text += more
        tail, links = self.text[self._read :], deepcopy(self._links)
        tokens = parser().parse(tail if self.whole else UNDECIDED.sub("", tail), links)
        self._references = "\n".join(
            f"[{name}]: <{link['href']}>" for name, link in links.get("references", {}).items()
        )
        tops = [
            at for at, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0 and token.map
        ]
        lines = LINES.split(tail)
        del self.blocks[self._settled :]
        for at in tops[:-1]:
            self._add(tokens[at], lines)
        if len(tops) > 1:
            self._settle(_first(tokens[tops[-1]]), lines, links, in_list=False)
        if tops:
            self._add_last(tokens[tops[-1] :], lines, links)

    def _settle(self, line: int, lines: Sequence[str], links: dict[str, Any], *, in_list: bool) -> None:
        """What is before this line of the tail will not change any more."""
        self._settled, self._in_list = len(self.blocks), in_list
        self._read += len("".join(lines[:line]))
        self._links = links

    def _add(self, token: "Token", lines: Sequence[str]) -> None:
        if token.type in ("fence", "code_block"):
            self.blocks += self._code(token.content, (token.info.split() or ["text"])[0])
        else:
            self._add_source(lines[slice(*(token.map or ()))], starts=not self._in_list)
        self._in_list = False

    def _add_source(self, lines: Sequence[str], *, starts: bool) -> None:
        self.blocks.append(Block("".join(lines).rstrip("\n"), starts=starts, references=self._references))

    def _add_last(self, tokens: "Sequence[Token]", lines: Sequence[str], links: dict[str, Any]) -> None:
        items = [_first(token) for token in tokens if token.type == "list_item_open" and token.level == 1]
        full = 0 if self.whole or tokens[0].type not in LISTS else (len(items) - 1) // PIECE * PIECE
        in_list = self._in_list
        for at in range(0, full, PIECE):
            self._add_source(lines[items[at] : items[at + PIECE]], starts=not in_list)
            in_list = True
        if full:
            end = tokens[0].map[1] if tokens[0].map else len(lines)
            self._settle(items[full], lines, links, in_list=True)
            self._add_source(lines[items[full] : end], starts=False)
        else:
            self._add(tokens[0], lines)
            self._in_list = in_list

    def _code(self, code: str, language: str) -> Iterator[Block]:
        lines = code.rstrip("\n").split("\n")
        size = len(lines) if self.whole else PIECE
        for at in range(0, len(lines), size):
            piece = "\n".join(lines[at : at + size])
            yield Block(piece, language, starts=at == 0, ends=at + size >= len(lines))


def _first(token: "Token") -> int:
    return token.map[0] if token.map else 0


@cache
def parser() -> "MarkdownIt":
    """Without HTML, so that a tag is text: an answer about HTML needs that."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["strikethrough", "table"])


def parse(block: Block) -> "list[Token]":
    """The tokens of a block that isn't code. Line ends are kept. Links that only repeat their target are plain text,
    and so are pictures, which Rich draws outside of their paragraph."""
    tokens = parser().parse(f"{block.references}\n\n{block.source}")
    for token in tokens:
        token.children = token.children and list(_plainer(token.children))
    return tokens


def _plainer(children: "list[Token]") -> "Iterator[Token]":
    bare = False
    for token, after in zip_longest(children, children[1:]):
        if token.type == "link_open":
            bare = after is not None and after.content == token.attrs.get("href")
        if token.type == "softbreak":  # a model that ends a line means it
            token.type = "hardbreak"
        if token.type == "image":
            token.type, token.tag, token.children = "text", "", None
            token.content = f"{token.content} ({token.attrs['src']})"
        token.content = printable(
            token.content
        )  # `&#13;` and `<http://x/%1b>` have become control characters
        if not (bare and token.type in ("link_open", "link_close")):
            yield token
