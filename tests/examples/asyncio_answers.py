"""Two questions at once in one event loop, which stays free while the engine works: python asyncio_answers.py PAIR"""

import asyncio
import sys

import specdec_onnx as sd


async def answer(engine: sd.Engine, question: str) -> str:
    """The whole answer; other coroutines run between its steps."""
    text = ""
    async for step in engine.stream(question, max_new_tokens=40):
        text += step.text
        print(f"{question!r}: {len(text)} characters")
    return text


async def main(pair: str) -> None:
    """Answer both, then show how long a time limit leaves an answer."""
    with sd.load(pair) as engine:
        for text in await asyncio.gather(answer(engine, "Name a river."), answer(engine, "Name a lake.")):
            print(text)
        try:
            await asyncio.wait_for(answer(engine, "Tell me everything about rivers."), timeout=0.2)
        except TimeoutError:
            print("the time is over:", engine.last.finish_reason or "cancelled")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
