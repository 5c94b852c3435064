"""How Markdown looks in a theme: its variables resolved to colours, once per theme."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.style import Style as RichStyle
from textual.color import Color, ColorParseError
from textual.style import Style

if TYPE_CHECKING:
    from rich.syntax import SyntaxTheme
    from textual.app import App

TEXT = "$foreground"
MARKDOWN = {
    "h1": "bold underline $text-primary",
    "h2": "bold $text-primary",
    "h3": "bold",
    "h4": "bold italic",
    "h5": "italic",
    "h6": "italic",
    "em": "italic",
    "strong": "bold",
    "s": "strike",
    "code": "$text-warning 95% on $warning 10%",
    "code_block": "on $foreground 5%",
    "block_quote": "$text-muted",
    "item.bullet": "$text-primary",
    "item.number": "$text-primary",
    "hr": "$secondary",
    "link": "$text-primary underline",
    "link_url": "$text-muted",
    "table.border": "$foreground 30%",
    "table.header": "bold $text-primary",
}
PLAIN = {
    "code": "$text-warning",
    "code_block": "",
    "block_quote": "dim",
    "link_url": "dim",
    "table.border": "dim",
}
"""With the terminal's own 16 colours, which don't mix."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Rich's styles for text, Markdown elements and code."""

    text: RichStyle
    markdown: dict[str, RichStyle]
    syntax: "SyntaxTheme"


def look(app: "App[Any]") -> Look:
    """The look of the app's current theme."""
    return _look(frozenset(app.theme_variables.items()), app.native_ansi_color, app.current_theme.dark)


@lru_cache(maxsize=8)
def _look(variables: frozenset[tuple[str, str]], ansi: bool, dark: bool) -> Look:
    from rich.syntax import ANSISyntaxTheme

    named = dict(variables)
    markdown = {**MARKDOWN, **(PLAIN if ansi else {})}
    return Look(
        _resolved(TEXT, named),
        {f"markdown.{name}": _resolved(style, named) for name, style in markdown.items()},
        ANSISyntaxTheme({token: _resolved(style, named) for token, style in _syntax(ansi, dark).items()}),
    )


def _syntax(ansi: bool, dark: bool) -> dict[Any, str]:
    from textual import highlight

    if not ansi:
        return highlight.HighlightTheme.STYLES
    themes = (highlight.ANSILightHighlightTheme, highlight.ANSIDarkHighlightTheme)
    return themes[dark].STYLES


def _resolved(text: str, variables: dict[str, str]) -> RichStyle:
    """Colours that let the background through are mixed with it; without a background of its own, the style keeps
    whatever lies below, which changes with the focus."""
    try:
        style = Style.parse(text, variables)
    except ColorParseError:  # Textual 8.2's table for code misspells a colour
        return RichStyle.null()
    below = Style(Color.parse(variables["background"]), Color.parse(variables["foreground"]))
    mixed = (below + style).rich_style
    return RichStyle(
        color=mixed.color if style.foreground is not None else None,
        bgcolor=mixed.bgcolor if style.background is not None else None,
        **{name: getattr(style, name) for name in ("bold", "dim", "italic", "underline", "strike")},
    )
