"""Measures one setup in a process of its own, so that a crash or a missing provider ends nothing else.

The plan comes in as one JSON line; each finding goes out as one, so that what was found before a crash is kept.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.system import peak_memory
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.text.prompt import prompt_tokens
from specdec_onnx.tui.bench.prompts import built_in_prompts
from specdec_onnx.tui.bench.runs import forward_cost_ms
from specdec_onnx.tui.child import say, serve
from specdec_onnx.tui.compare.setups import Plan, Setup

WARM_UP_TOKENS = 4
TASK = "\n\nWhat is the text above about? Answer in a few sentences."


def measure(messages: Iterator[Mapping[str, Any]], channel: TextIO) -> None:
    """Load the pair, answer each prompt in each mode, then time forward passes."""
    message = next(messages)
    plan, setup = Plan(**message["plan"]), Setup(**message["setup"])
    start = time.perf_counter()
    engine = load(
        plan.pair,
        draft=plan.draft,
        device=setup.device,
        draft_device=setup.draft_device,
        threads=setup.threads,
        context=plan.context,
    )
    modes = [mode for mode in plan.modes if mode in engine.modes]
    say(channel, {"event": "loaded", "load_seconds": time.perf_counter() - start, **_describe(engine)})
    for mode in modes:
        engine.generate(prompt_of(engine.pair.target, 0), mode=mode, max_new_tokens=WARM_UP_TOKENS)
    for length in plan.lengths:
        tokens = prompt_of(engine.pair.target, length)
        for mode in modes:
            run = _answer(engine, tokens, mode, plan.max_new_tokens)
            say(channel, {"event": "run", "length": length, "mode": mode, **run})
    costs = forward_cost_ms(engine)
    say(channel, {"event": "finished", "forward_cost_ms": costs, "peak_memory_bytes": peak_memory()})


def _describe(engine: Engine) -> dict[str, Any]:
    draft = engine.speculation.draft
    decoders = {"target": engine.target} | ({"draft": draft.tape.decoder} if draft else {})
    return {
        "identity": str(engine.identity),
        "devices": {role: placement.device for role, placement in engine.placements.items()},
        "nodes": {role: decoder.placement() for role, decoder in decoders.items()},
    }


def _answer(engine: Engine, tokens: Sequence[int], mode: str, max_new_tokens: int) -> dict[str, Any]:
    engine.forget()
    engine.generate(tokens, mode=mode, max_new_tokens=max_new_tokens)
    answer, statistics = engine.last.tokens, engine.last.statistics
    return {
        "prompt_tokens": len(tokens),
        "tokens": answer,
        "first_token_ms": statistics.time_to_first_token_ms,
        "prefill_ms": 1e3 * statistics.prefill_seconds,
        "per_token_ms": 1e3 * statistics.decode_seconds / len(answer),
    }


def prompt_of(model: ModelFolder, length: int) -> list[int]:
    """Token ids of a question about some text: as long as fits in `length`, or the bare question if that is longer."""
    text = "\n\n".join(turn for prompt in built_in_prompts() for turn in prompt.turns)
    text *= 1 + 8 * length // len(text)  # a token is hardly ever longer than eight characters

    def asked(characters: int) -> list[int]:
        return prompt_tokens(model, text[:characters] + TASK)

    too_long = bisect_right(range(len(text) + 1), length, key=lambda characters: len(asked(characters)))
    return asked(max(0, too_long - 1))


if __name__ == "__main__":
    serve(measure)
