"""OpenAI's own client against `specdec serve PAIR`: a streamed answer, a tool, and an answer that fits a schema.

pip install openai; python openai_client.py http://127.0.0.1:8080/v1
"""

import json
import sys

import openai

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def main(url: str) -> None:
    """Ask three questions."""
    client = openai.OpenAI(base_url=url, api_key="none needed")
    model = client.models.list().data[0].id
    ask = client.chat.completions.create

    question = [{"role": "user", "content": "Name three rivers."}]
    for chunk in ask(model=model, messages=question, stream=True, max_tokens=40):
        print(chunk.choices[0].delta.content or "", end="", flush=True)

    question = [{"role": "user", "content": "How is the weather in Rome, in C?"}]
    answer = ask(model=model, messages=question, tools=[WEATHER], tool_choice="required", max_tokens=200)
    call = answer.choices[0].message.tool_calls[0].function
    print("\ncalls", call.name, json.loads(call.arguments))

    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER["function"]["parameters"]}}
    answer = ask(model=model, messages=question, response_format=form, max_tokens=200)
    print("fits", json.loads(answer.choices[0].message.content), answer.usage.model_extra["speculation"])


if __name__ == "__main__":
    main(sys.argv[1])
