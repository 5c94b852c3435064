"""A call keeps to its tool's schema once it has begun, and the text before it is free."""

import json
from types import SimpleNamespace
from typing import Any

import jsonschema
import openai
import pytest
from support.served import Served
from support.tiny_tokenizer import tiny_tokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.sampling.constraint import Constraint, Guide
from specdec_onnx.tui.serve.tool_calls import call_grammar, free_grammar

CITY: Any = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}
FUNCTIONS: list[Any] = [
    {"name": "weather", "parameters": CITY},
    {"name": "weather_more", "parameters": {"type": "object"}},
    {"name": 'say "ä"\\', "parameters": None},
]
TOOLS: list[Any] = [{"type": "function", "function": each} for each in FUNCTIONS]
MARKS = ("[TOOL_CALLS]", "<|python_tag|>")
HERMES, MISTRAL = "<tool_call>call</tool_call>", "[TOOL_CALLS]call"
LLAMA = '{"name": function, "parameters": arguments}'
GOOD = '{"name": "weather", "arguments": {"city": "Rome"}}'


def refused(text: str, template: str = HERMES, grammar: str | None = None) -> str:
    """What of `text` is not allowed; "(end)" if all is, but the answer may not end there."""
    raw = RawTokenizer.from_str(tiny_tokenizer(384).to_str())
    raw.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    model: Any = SimpleNamespace(chat_template=template, tokenizer=Tokenizer(raw))
    constraint = Constraint.lark(grammar or free_grammar(model, FUNCTIONS))
    state, encoding = Guide(constraint, model.tokenizer, 386, [381, 383]), raw.encode(text)
    for token, (begin, _) in zip(encoding.ids, encoding.offsets, strict=True):
        if not state.allowed()[token]:
            return text[begin:]
        state.push(token)
    return "" if state.allowed()[383] else "(end)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just text, 5 < 6 <tool_",
        '{"name": "Ann", "age": 3}',
        '```python\nx = {"name": "weather", "arguments": 5}\n```',
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Sure.\n<tool_call>\n{GOOD}\n</tool_call>\n<tool_call>{GOOD}</tool_call> done",
        '{"name": "weather_more", "arguments": {"town": [1]}}',
        '<tool_call>\n{"name": "say \\"ä\\"\\\\", "arguments": {"x": 1}}\n</tool_call>',
        '{"name":"weather","parameters":{"city": "Oslo"}}',
    ],
)
def test_text_and_calls_that_fit_may_be_written(text: str) -> None:
    assert refused(text) == ""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (GOOD.replace("Rome", "Paris"), 'Paris"}}'),
        (f"Well. <tool_call>\n{GOOD.replace('Rome', 'Paris')}", 'Paris"}}'),
        ('<tool_call>\n{"name": "other"', 'other"'),
        ("<tool_call>oh", "oh"),
        ('{"name": "weather", "arguments": 5', "5"),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Rome"', "(end)"),
        (f"<tool_call>\n{GOOD}", "(end)"),
    ],
)
def test_a_call_that_has_begun_must_fit(text: str, wrong: str) -> None:
    assert refused(text) == wrong


def test_each_family_begins_calls_in_its_own_way() -> None:
    assert refused(f"[TOOL_CALLS][{GOOD}, {GOOD}]", MISTRAL) == ""
    assert refused("[TOOL_CALLS]oh", MISTRAL) == "oh"
    other = GOOD.replace("arguments", "parameters")
    assert refused(f"<|python_tag|>{other}; {other}", LLAMA) == ""
    assert refused(f"<|python_tag|>{GOOD}", LLAMA).startswith("arguments")
    assert refused("<tool_call>oh", LLAMA) == "", "a mark that this model does not know is text"


def test_references_in_a_schema_are_its_own_where_a_call_is_a_must() -> None:
    grammar = call_grammar(FUNCTIONS)
    assert refused(GOOD, grammar=grammar) == ""
    assert refused(GOOD.replace("Rome", "Paris"), grammar=grammar) == 'Paris"}}'
    assert refused("text", grammar=grammar) == "text"


@pytest.fixture
def begun(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The server's model is made to begin its answers with a call; the list has each answer's tokens and constraint."""
    wanted = served.engine.tokenizer.encode("ok <tool_call>\n")
    stream, seen = served.engine.stream, list[Any]()

    def pushed(prompt: list[int], **options: Any) -> Any:
        def processor(tokens: Any, logits: Any) -> Any:
            at = len(tokens) - len(prompt)
            if at < len(wanted):
                logits[wanted[at]] += 1000
            return logits

        seen.append(options | {"prompt": prompt, "processors": [processor]})
        return stream(prompt, processors=[processor], **options)

    monkeypatch.setattr(served.engine, "stream", pushed)
    return seen


@pytest.mark.parametrize("tools", [TOOLS[:1], TOOLS])
@pytest.mark.parametrize("more", [{"temperature": 0}, {"temperature": 1.5, "seed": 3}])
def test_a_call_that_a_model_chooses_to_make_fits_its_schema_in_every_mode(
    served: Served, begun: list[Any], monkeypatch: pytest.MonkeyPatch, tools: list[Any], more: dict[str, Any]
) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], tools=tools, max_tokens=150, **more
    )
    message = answer.choices[0].message
    assert message.content and message.content.startswith("ok ")
    if len(tools) == 1:
        assert message.tool_calls and answer.choices[0].finish_reason == "tool_calls"
    for call in message.tool_calls or ():
        if call.type == "function" and call.function.name == "weather":
            jsonschema.validate(json.loads(call.function.arguments), CITY)
    monkeypatch.undo()
    asked = begun[0]
    prompt, texts = asked.pop("prompt"), set()
    for mode in ("plain", "suffix", "draft", "auto"):
        texts.add("".join(step.text for step in served.engine.stream(prompt, mode=mode, **asked)))
        assert asked["constraint"] is not None
    assert len(texts) == 1


def test_a_schema_that_cannot_be_followed_binds_nobody_unless_it_is_strict(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
    function: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "not": {"required": ["x"]}}}

    def ask(function: Any) -> None:
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            tools=[{"type": "function", "function": function}, TOOLS[0]],
            max_tokens=2,
        )

    ask(function)
    with pytest.raises(openai.BadRequestError, match="schema"):
        ask(function | {"strict": True})
