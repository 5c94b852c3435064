"""Thirty schemas on a real pair, through the official client: `SPECDEC_PAIR=FOLDER pytest -m large -s` on this file."""

import json
import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from support.schemas import QUESTIONS
from support.served import Served, serving

from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.sampling.constraint import Constraint
from specdec_onnx.runtime.text.prompt import chat_prompt, encode

pytestmark = pytest.mark.large


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    if "SPECDEC_PAIR" not in os.environ:
        pytest.skip("SPECDEC_PAIR names no pair")
    with load(os.environ["SPECDEC_PAIR"]) as engine:
        yield from serving(engine)


@pytest.fixture
def client(real: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{real.url}/v1", api_key="any", max_retries=0)


def ask(client: openai.OpenAI, question: str, schema: Any = None) -> Any:
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": f"{question} Answer in JSON."}],
        temperature=0,
        max_tokens=300 if schema else 80,
        response_format=form if schema else {"type": "text"},
    )


def test_there_are_thirty() -> None:
    assert len(QUESTIONS) == 30


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_valid_and_what_plain_decoding_writes(
    real: Served, client: openai.OpenAI, question: str
) -> None:
    schema, target = QUESTIONS[question], real.engine.pair.target
    answer = ask(client, question, schema).choices[0]
    assert answer.finish_reason == "stop"
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(schema, format_checker=checker).validate(json.loads(answer.message.content))
    tokens = encode(target, chat_prompt(target, [{"role": "user", "content": f"{question} Answer in JSON."}]))
    constraint = Constraint.json_schema(schema)
    plain = real.engine.generate(tokens, constraint=constraint, mode="plain", max_new_tokens=300)
    assert answer.message.content == plain


def test_answers_under_a_schema_are_no_slower(client: openai.OpenAI) -> None:
    """Only on an idle machine do the times mean anything."""
    tokens, seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}
    for question, schema in QUESTIONS.items():
        for constrained in (True, False):
            usage = ask(client, question, schema if constrained else None).usage
            tokens[constrained] += usage.completion_tokens
            seconds[constrained] += usage.completion_tokens / usage.speculation["tokens_per_second"]
    speeds = {key: tokens[key] / seconds[key] for key in tokens}
    print(f"with a schema {speeds[True]:.1f} tokens/s ({tokens[True]} tokens), without {speeds[False]:.1f}")
    assert speeds[True] >= speeds[False]
