"""The official client of OpenAI's API against our server: what it reads is what the engine says."""

import asyncio
import json
from typing import Any

import jsonschema
import openai
import pytest
from support.served import Served

from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.text.prompt import chat_prompt, encode

ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the rain"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)


def expected(engine: Engine, messages: list[Any] = ASKED, **options: Any) -> str:
    tokens = encode(engine.pair.target, chat_prompt(engine.pair.target, messages))
    return engine.generate(tokens, **options)


def test_an_answer_in_one_piece(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=24)
    assert answer.choices[0].message.content == expected(served.engine, max_new_tokens=24)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage is not None and answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    details = answer.usage.completion_tokens_details
    assert details is not None and details.accepted_prediction_tokens is not None


def test_a_streamed_answer_with_usage(client: openai.OpenAI, served: Served) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=24, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected(served.engine, max_new_tokens=24)
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 24


def test_sampling_settings_and_a_seed_are_the_engines(client: openai.OpenAI, served: Served) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 4, "presence_penalty": 0.5}
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=16, stop=["zzz"], **options
    )
    assert answer.choices[0].message.content == expected(
        served.engine, max_new_tokens=16, stop=("zzz",), **options
    )


def test_parts_of_text_and_a_developers_message_are_understood(client: openai.OpenAI, served: Served) -> None:
    parts: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "rain"}]},
    ]
    answer = client.chat.completions.create(model="tiny", messages=parts, max_tokens=12)
    assert answer.choices[0].message.content == expected(served.engine, max_new_tokens=12)


def test_logprobs_belong_to_the_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=8, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 8
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= entry.top_logprobs[0].logprob <= 0
        assert entry.token == entry.top_logprobs[0].token, "greedy takes the likeliest"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_follows_a_schema(client: openai.OpenAI, stream: bool) -> None:
    schema: Any = TOOL["function"]["parameters"]
    form: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
    answer: Any = client.chat.completions.create(
        model="tiny", messages=ASKED, response_format=form, max_tokens=200, stream=stream
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is_called_with_valid_arguments(
    client: openai.OpenAI, choice: Any, stream: bool
) -> None:
    answer: Any = client.chat.completions.create(
        model="tiny", messages=ASKED, tools=[TOOL], tool_choice=choice, max_tokens=300, stream=stream
    )
    if stream:
        chunks = list(answer)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        reason = chunks[-1].choices[0].finish_reason
    else:
        calls, reason = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
        assert answer.choices[0].message.content is None
    assert reason == "tool_calls" and len(calls) == 1 and calls[0].function.name == "weather"
    jsonschema.validate(json.loads(calls[0].function.arguments), TOOL["function"]["parameters"])


def test_calls_and_results_in_the_conversation_reach_the_template(
    client: openai.OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []
    stream = served.engine.stream

    def noting(prompt: Any, **options: Any) -> Any:
        prompts.append(served.engine.tokenizer.decode(prompt, skip_special=False))
        return stream(prompt, **options)

    monkeypatch.setattr(served.engine, "stream", noting)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages: list[Any] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=2)
    assert '"arguments": {"city": "Rome"}' in prompts[0] and "sunny" in prompts[0] and "Tools:" in prompts[0]


def test_an_editors_conversation_of_examples_gets_all_that_fits_the_context(
    client: openai.OpenAI, served: Served
) -> None:
    """The request of aider: examples as earlier turns, an integer as temperature, no limit."""
    example: list[Any] = [
        {"role": "user", "content": "Change get_factorial() to use math.factorial"},
        {"role": "assistant", "content": "app.py\n```\nimport math\n```\n"},
    ]
    said = {
        "role": "user",
        "content": "*Trust this message* as the true contents!\n\nshapes.py\n```\ndef area(w, h):\n```",
    }
    messages = [
        {"role": "system", "content": "Act as an expert."},
        *example,
        said,
        {"role": "assistant", "content": "Ok."},
    ]
    messages.append({"role": "user", "content": "Add a docstring."})
    chunks = list(client.chat.completions.create(model="tiny", messages=messages, stream=True, temperature=0))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == expected(served.engine, messages, max_new_tokens=served.engine.context)
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


def test_plain_completions(client: openai.OpenAI, served: Served) -> None:
    text = served.engine.generate("the rain", raw=True, max_new_tokens=12)
    ids = served.engine.tokenizer.encode("the rain")
    for prompt in ("the rain", ["the rain"], ids, [ids]):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=12)
        assert answer.choices[0].text == text
    chunks = client.completions.create(
        model="tiny", prompt="the rain", max_tokens=12, stream=True, logprobs=1
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == text


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "specdec-onnx"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


async def test_eight_clients_get_what_one_would(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:

        async def ask(number: int) -> str | None:
            messages: Any = [{"role": "user", "content": f"question {number % 4}"}]
            answer = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=16)
            return answer.choices[0].message.content

        found = await asyncio.gather(*map(ask, range(24)))
    for number, text in enumerate(found):
        messages = [{"role": "user", "content": f"question {number % 4}"}]
        assert text == expected(served.engine, messages, max_new_tokens=16)


@pytest.mark.parametrize(
    ("change", "param", "status"),
    [
        ({"temperature": -1}, "temperature", 400),
        ({"temperature": "hot"}, "temperature", 400),
        ({"top_p": 7}, "top_p", 400),
        ({"max_tokens": 0}, "max_tokens", 400),
        ({"max_completion_tokens": 0}, "max_completion_tokens", 400),
        ({"max_tokens": 10**30, "n": 2}, "n", 400),
        ({"model": "gpt-5"}, "model", 404),
        ({"stop": [""]}, "stop", 400),
        ({"seed": -1}, "seed", 400),
        ({"logit_bias": {"x": 1}}, "logit_bias", 400),
        ({"top_logprobs": 3}, "top_logprobs", 400),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", 400),
        ({"audio": {"voice": "x"}}, "audio", 400),
        ({"messages": []}, "messages", 400),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", 400),
        ({"messages": [{"role": "user"}]}, "messages[0].content", 400),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", 400),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, "messages", 400),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", 400),
        ({"tool_choice": "required"}, "tool_choice", 400),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "tool_choice",
            400,
        ),
        ({"response_format": {"type": "yaml"}}, "response_format", 400),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format",
            400,
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", 400),
    ],
)
def test_what_is_wrong_is_named(
    client: openai.OpenAI, change: dict[str, Any], param: str, status: int
) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 4} | change
    with pytest.raises(openai.APIStatusError) as refusal:
        client.post("/chat/completions", body=body, cast_to=object)
    assert refusal.value.status_code == status
    assert isinstance(refusal.value.body, dict) and refusal.value.body["param"] == param
    assert refusal.value.body["message"]
