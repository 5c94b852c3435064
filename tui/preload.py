"""What the first answer needs, brought in before anybody asks."""

LANGUAGES = (
    *("text", "python", "c", "cpp", "javascript", "typescript", "java", "go", "rust"),
    *("bash", "sql", "html", "css", "json", "yaml", "toml"),
)
"""Those whose lexers are made ready; any other is when its first block comes."""


def preload() -> None:
    """Import the widgets of an answer, prepare tables and lexers; slow, for a thread."""
    import textual.highlight
    import textual.scrollbar  # noqa: F401
    from rich.cells import cell_len

    import specdec_onnx.tui.widgets.answer  # noqa: F401
    from specdec_onnx.tui.markdown.elements import code

    cell_len("\N{BAR CHART}")  # reads the table of widths, at the first character that is not ASCII
    for language in LANGUAGES:
        code("x = 1", language, "ansi_dark")
