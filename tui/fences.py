"""Code blocks of a Markdown answer."""

from dataclasses import dataclass

from specdec_onnx.tui.markdown.blocks import parser


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """The inside of one fence and the language after it."""

    code: str
    language: str


def code_blocks(markdown: str) -> list[CodeBlock]:
    """Every fenced block in order, an unfinished last one included."""
    tokens = parser().parse(markdown)
    return [CodeBlock(token.content, token.info.strip()) for token in tokens if token.type == "fence"]
