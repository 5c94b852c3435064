"""Markdown as lines: streamed in pieces it ends as if read at once, and what is finished is not drawn again."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_app import answered, chat_app
from support.scripted_session import ScriptedSession
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.selection import Selection

from specdec_onnx.tui.chat.widgets.lines import Line
from specdec_onnx.tui.chat.widgets.markdown import (
    PIECE,
    AnswerText,
    Block,
    Document,
    Styles,
    render,
    theme_styles,
)

TEXT = """# Title

Some **bold** words, `code` and a [link](https://example.org) to
<https://bare.example>.

1. one
2. two
   - nested

```python
def f():
    return 1
```

| a | b |
|---|--:|
| x | 1 |

> quoted

Seen in [the source]. ![A picture](cat.png) <b>tags</b>

[the source]: https://source.example
"""
LINES = """Title

Some bold words, code and a link (https://example.org) to
https://bare.example.

 1. one
 2. two
     • nested


def f():
    return 1


 a  b
 ────
 x  1

▌ quoted

Seen in the source (https://source.example). A picture
(cat.png) <b>tags</b>"""
LONG_STRING = "```python\nx = '''\n" + "line of a string\n" * 30 + "'''\n```"
MARKS = [
    "# ",
    "- ",
    "1. ",
    "> ",
    "```",
    "~~~",
    "    ",
    "\n",
    "|a|\n|-|",
    "===",
    "word ",
    "**",
    "*",
    "`",
    "[l](u)",
]
MARKS += [
    "[r]",
    "[r]: x\n",
    "![i](s)",
    "<b>",
    "&amp;",
    "\\",
    "漢字",
    "\N{BAR CHART}",
    "\u200b",
    "<http://a.b>",
]


class Page(App[None]):
    """One answer and nothing else."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield AnswerText(self.text)

    @property
    def answer(self) -> AnswerText:
        return self.query_one(AnswerText)


async def test_every_element_is_drawn() -> None:
    app = Page(TEXT)
    async with app.run_test(size=(60, 40)):
        assert app.answer.plain == LINES
        assert app.answer.source == TEXT


@pytest.mark.parametrize("size", [1, 3, 7, 50])
async def test_streamed_it_ends_as_if_read_at_once(size: int) -> None:
    app = Page()
    async with app.run_test(size=(60, 40)) as pilot:
        for at in range(0, len(TEXT), size):
            app.answer.append(TEXT[at : at + size])
            if at % 5 == 0:
                await pilot.pause()
        await app.answer.finish(TEXT)
        await pilot.pause()
        assert app.answer.plain == LINES
        assert app.answer.size.height == len(LINES.split("\n"))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=25), st.integers(1, 6))
def test_no_text_is_lost_between_the_blocks(marks: list[str], size: int) -> None:
    text = "".join(marks)
    growing = Document()
    for at in range(0, len(text), size):
        growing.append(text[at : at + size])
    growing.append("\n\n" + "the end")
    assert growing.text == f"{text}\n\nthe end"
    assert "the end" in growing.blocks[-1].source
    whole = Document(growing.text, whole=True)
    assert "the end" in whole.blocks[-1].source


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=15), st.sampled_from([1, 2, 5, 40]))
def test_any_text_fits_any_width(marks: list[str], width: int) -> None:
    styles = theme_styles(Page())
    for block in Document("".join(marks), whole=True).blocks:
        for line in render(block, width, styles):
            assert line.margin.cell_length + line.body.cell_length == width


def test_finished_blocks_are_not_read_again() -> None:
    document = Document("One.\n\nTwo.\n\nThr")
    first = list(document.blocks)
    document.append("ee.\n\nFour.")
    assert [block.source for block in document.blocks] == ["One.", "Two.", "Three.", "Four."]
    assert document.blocks[0] is first[0] and document.blocks[1] is first[1]


def test_code_under_way_is_cut_so_that_only_its_end_is_drawn_again() -> None:
    code = "\n".join(f"line{number}" for number in range(3 * PIECE + 1))
    growing, whole = Document(), Document(f"```c\n{code}\n```", whole=True)
    growing.append(f"```c\n{code}\n```")
    assert [len(block.source.split("\n")) for block in growing.blocks] == [PIECE, PIECE, PIECE, 1]
    assert [(block.starts, block.ends) for block in growing.blocks] == [
        (True, False),
        (False, False),
        (False, False),
        (False, True),
    ]
    assert [block.source for block in whole.blocks] == [code]


@pytest.mark.parametrize(
    "beginning", ["A list:\n-", "A rule\n\n--", "A table\n\n|", "Code\n\n``", "Items\n\n1."]
)
def test_a_mark_waits_for_what_it_marks(beginning: str) -> None:
    before = beginning.split("\n")[0]
    growing = Document()
    growing.append(beginning)
    assert [block.source for block in growing.blocks] == [before]
    assert len(Document(beginning, whole=True).blocks) > 1 or "-" in beginning


async def test_the_end_of_an_answer_heals_the_colours_of_code() -> None:
    app = Page()
    async with app.run_test(size=(60, 50)) as pilot:
        app.answer.append(LONG_STRING)
        await pilot.pause()

        def colour(y: int) -> object:
            return next(
                part.style.color for part in app.answer.render_line(y) if "line" in part.text and part.style
            )

        assert colour(3) != colour(3 + PIECE)
        await app.answer.finish(LONG_STRING)
        await pilot.pause()
        assert colour(3) == colour(3 + PIECE)


async def test_each_theme_has_a_look() -> None:
    app = Page(TEXT)
    async with app.run_test(size=(60, 40)) as pilot:
        seen = set()
        for theme in app.available_themes:
            app.theme = theme
            await pilot.pause()
            heading = next(part for part in app.answer.render_line(0) if "Title" in part.text).style
            assert heading is not None and heading.bold
            seen.add(heading.color)
        assert len(seen) > 5


async def test_selected_text_is_marked_and_copied_without_the_margin_of_code() -> None:
    app = Page("漢字 text\n\n```\nabc\n  def\n```")
    async with app.run_test(size=(30, 12)) as pilot:
        assert app.answer.plain == "漢字 text\n\n\nabc\n  def\n"
        app.screen.selections = {app.answer: Selection(Offset(1, 0), Offset(4, 4))}
        await pilot.pause()
        assert app.screen.get_selected_text() == "字 text\n\n\nabc\n  de"
        mark = app.screen.get_component_rich_style("screen--selection").bgcolor

        def marked(y: int) -> str:
            line = app.answer.render_line(y)
            return "".join(part.text for part in line if part.style and part.style.bgcolor == mark)

        assert [marked(y) for y in (0, 3, 4)] == ["字 text", "abc", "  de"]


async def test_wrapped_lines_are_copied_as_they_were() -> None:
    code = "x = 'some words that need more room'\n" + "y" * 40 + "\n\n\tif z:"
    app = Page(f"One paragraph that is wrapped here.\n\n```python\n{code}\n```\n\n- a\n- b")
    async with app.run_test(size=(24, 30)) as pilot:
        app.screen.selections = {app.answer: Selection(None, None)}
        await pilot.pause()
        copied = app.screen.get_selected_text()
        assert copied is not None
        assert copied.startswith(f"One paragraph that is wrapped here.\n\n\n{code.split(chr(9))[0]}")
        assert copied.endswith("if z:\n\n\n • a\n • b")
        assert app.answer.plain.count("y") == 40 and max(map(len, app.answer.plain.split("\n"))) <= 24


async def test_line_ends_of_a_poem_are_kept() -> None:
    app = Page("Morning sun breaks,\nBirds sing in the trees.")
    async with app.run_test(size=(60, 10)):
        assert app.answer.plain == "Morning sun breaks,\nBirds sing in the trees."


async def test_wide_cells_are_wrapped_not_cut() -> None:
    word = "a_very_long_identifier_without_blanks"
    app = Page(f"| one | two |\n|---|---|\n| {word} | {word} |")
    async with app.run_test(size=(30, 20)):
        assert "…" not in app.answer.plain
        assert sum(app.answer.plain.count(letter) for letter in "v") == 2


@pytest.mark.parametrize("width", [20, 36, 42, 50, 80])
def test_no_column_is_left_out(width: int) -> None:
    names = [f"n{number:02}" for number in range(14)]
    rows = [f"|{'|'.join(names)}|", "|-" * 14 + "|", f"|{'|'.join(name.upper() for name in names)}|"]
    (block,) = Document("\n".join(rows), whole=True).blocks
    drawn = "".join("".join(line.text for line in render(block, width, theme_styles(Page()))).split())
    assert all(drawn.count(digit) >= "".join(names).count(digit) for digit in "0123456789")


async def test_a_resize_while_the_end_is_drawn_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    app, held = Page(), threading.Event()
    async with app.run_test(size=(60, 40)) as pilot:
        app.answer.append(LONG_STRING)
        await pilot.pause()

        def slowly(block: Block, width: int, styles: Styles) -> list[Line]:
            if threading.current_thread() is not threading.main_thread():
                held.wait(10)
            return render(block, width, styles)

        monkeypatch.setattr("specdec_onnx.tui.chat.widgets.markdown.render", slowly)
        ending = asyncio.create_task(app.answer.finish(LONG_STRING))
        await pilot.resize_terminal(40, 40)
        await pilot.pause(0.2)
        held.set()
        await ending
        await pilot.pause()
        assert app.answer.size.width == 40
        assert {app.answer.render_line(y).cell_length for y in range(app.answer.size.height)} == {40}


@pytest.mark.parametrize("mark", ["-", "1."])
def test_a_growing_list_is_cut_so_that_only_its_end_is_read_again(mark: str) -> None:
    items = [f"{mark if mark == '-' else f'{number + 1}.'} item {number}\n    - more" for number in range(30)]
    growing = Document("Before:\n\n")
    for item in items:
        growing.append(item + "\n")
    assert [block.source.count("item") for block in growing.blocks] == [0, PIECE, PIECE, 30 - 2 * PIECE]
    assert [block.starts for block in growing.blocks] == [True, True, False, False]
    assert growing.text[growing._read :].startswith(items[2 * PIECE])
    growing.append("\nAfter.\n\n- other")
    assert [block.source for block in growing.blocks[-2:]] == ["After.", "- other"]
    assert all(block.starts for block in growing.blocks[-2:])
    assert "\n".join(block.source for block in growing.blocks[1:4]) == "\n".join(items)
    assert len(Document("\n".join(items), whole=True).blocks) == 1


def test_deep_lists_are_drawn_to_their_end() -> None:
    text = "\n".join(f"{'  ' * depth}- level{depth}" for depth in range(25))
    lines = [
        line.text
        for block in Document(text, whole=True).blocks
        for line in render(block, 120, theme_styles(Page()))
    ]
    assert len(lines) == 25 and lines[-1].endswith("level24")


async def test_a_growing_list_looks_like_a_whole_one() -> None:
    text = "\n".join(f"{number}. item {number}" for number in range(1, 10 + PIECE))
    app = Page()
    async with app.run_test(size=(60, 40)) as pilot:
        app.answer.append(text)
        await pilot.pause()
        growing = [line.split() for line in app.answer.plain.split("\n")]
        await app.answer.finish(text)
        assert growing == [line.split() for line in app.answer.plain.split("\n")]


def test_other_line_ends_than_those_of_markdown_lose_nothing() -> None:
    text = "a\u2028b\x0cc\x85d\n\nsecond\n\nthird"
    for whole in (False, True):
        sources = [block.source for block in Document(text, whole=whole).blocks]
        assert sources == ["a\u2028b\x0cc\x85d", "second", "third"]


def test_a_link_definition_that_came_in_parts_is_whole_in_the_end() -> None:
    growing = Document()
    for part in ("[x] first\n\n[x]: http", "://example.org/a", "bc\n\nthe end"):
        growing.append(part)
    assert growing.blocks[-1].references == "[X]: <http://example.org/abc>"


@pytest.mark.parametrize("info", ["python", " python", "python title=x", "\tpython"])
def test_the_language_of_code_is_its_first_word(info: str) -> None:
    assert Document(f"```{info}\nx\n```", whole=True).blocks[0].language == "python"


async def test_the_mouse_selects_text(tmp_path: Path) -> None:
    app = chat_app(tmp_path, ScriptedSession(["one two three"]))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await answered(app)
        answer = screen.query_one(AnswerText)
        await pilot.mouse_down(answer, offset=(4, 0))
        await pilot.hover(answer, offset=(6, 0))
        await pilot.mouse_up(answer, offset=(6, 0))
        assert screen.get_selected_text() == "two"


async def test_what_changed_is_all_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Page()
    async with app.run_test(size=(60, 40)) as pilot:
        app.answer.append("First.\n\nSecond")
        await pilot.pause()
        drawn: list[tuple[int, int]] = []
        line = AnswerText.render_line

        def noting(self: AnswerText, y: int) -> object:
            drawn.append((y, self.size.height))
            return line(self, y)

        monkeypatch.setattr(AnswerText, "render_line", noting)
        app.answer.append(" goes on")
        await pilot.pause()
        assert drawn == [(2, 3)]
