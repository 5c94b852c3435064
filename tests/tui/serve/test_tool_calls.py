"""Calls of tools are found in an answer, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_onnx.tui.serve.tool_calls import ToolCall, ToolCalls

F, G = ToolCall("f", '{"a": 1}'), ToolCall("g", "{}")
CALL, OTHER = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
CASES: dict[str, tuple[str, list[str | ToolCall]]] = {
    "text": ("just text", ["just text"]),
    "hermes": (f"<tool_call>\n{CALL}\n</tool_call>", [F]),
    "text before, two calls": (
        f"Sure.<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call>",
        ["Sure.", F, "\n", G],
    ),
    "never closed": (f"<tool_call>{CALL}", [F]),
    "mistral": (f"[TOOL_CALLS][{CALL}, {OTHER}]", [F, G]),
    "llama": ('{"name": "f", "parameters": {"a": 1}}', [F]),
    "llama, two": (f"<|python_tag|>{CALL}; {OTHER}", [F, G]),
    "code block": (f"```json\n{CALL}\n```", [F]),
    "code block with something else": ('```json\n{"x": 1}\n```', ['```json\n{"x": 1}\n```']),
    "code": ("```python\nprint()\n```", ["```python\nprint()\n```"]),
    "arguments as text": ('{"name": "f", "arguments": "{\\"a\\": 1}"}', [F]),
    "another name": (
        '<tool_call>{"name": "h", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "h", "arguments": {}}</tool_call>'],
    ),
    "no JSON": ("<tool_call>{oh</tool_call> well", ["<tool_call>{oh</tool_call> well"]),
    "JSON that is no call": (' \n{"other": 1}', [' \n{"other": 1}']),
    "JSON after text": (f"see {CALL}", [f"see {CALL}"]),
    "a name without arguments": ('{"name": "x"} and more', ['{"name": "x"} and more']),
    "half a mark": ("a < b <tool", ["a < b <tool"]),
    "deep": ("<tool_call>" + "[" * 100_000, ["<tool_call>" + "[" * 100_000]),
    "blank": ("  ", ["  "]),
}


def split(text: str, cuts: list[int]) -> list[str | ToolCall]:
    calls, found, at = ToolCalls(["f", "g"]), list[str | ToolCall](), 0
    for cut in [*sorted(cuts), len(text)]:
        found += calls.push(text[at:cut])
        at = cut
    found += calls.rest()
    joined: list[str | ToolCall] = []
    for piece in found:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


@pytest.mark.parametrize("name", CASES)
def test_an_answer_in_one_piece(name: str) -> None:
    text, expected = CASES[name]
    assert split(text, []) == expected


@given(name=st.sampled_from([name for name in CASES if name != "deep"]), data=st.data())
def test_an_answer_in_any_pieces(name: str, data: st.DataObject) -> None:
    text, expected = CASES[name]
    assert split(text, data.draw(st.lists(st.integers(0, len(text)), max_size=9))) == expected


def test_text_is_shown_as_it_comes() -> None:
    calls = ToolCalls(["f"])
    assert [list(calls.push(piece)) for piece in ("Hel", "lo <", "b> <tool_", "x")] == [
        ["Hel"],
        ["lo "],
        ["<b> "],
        ["<tool_x"],
    ]
