"""ONNX Runtime GenAI in a process of its own: JSON lines in, JSON lines out.

The first line says what to load, each further one what to answer; the end of the input ends the process.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from specdec_onnx.models.system import peak_memory
from specdec_onnx.tui.child import say, serve

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ngram": {"ngram_size": 3, "max_draft_tokens": 4},
    "ngram-adaptive": {
        "ngram_size": 4,
        "max_draft_tokens": 8,
        "ngram_chained_lookup": True,
        "min_adaptive_k": 2,
    },
    "draft": {"max_draft_tokens": 4},
    "draft-adaptive": {"max_draft_tokens": 4, "min_adaptive_k": 2},
}
"""Its ways to speculate, with the settings that its documentation begins with."""

SPINNING_STOP = "session.force_spinning_stop"


def needs_draft(mode: str) -> bool:
    """Whether a mode of SETTINGS needs the draft model."""
    return mode.startswith("draft")


def _serve(messages: Iterator[Mapping[str, Any]], channel: TextIO) -> None:
    import onnxruntime_genai as og

    request = next(messages)
    models = {False: _load(request["target"], ["decoder"], request["threads"])}
    if request["pair"]:
        models[True] = _load(request["pair"], ["decoder", "draft"], request["threads"])
    modes = {mode: settings for mode, settings in SETTINGS.items() if needs_draft(mode) in models}
    say(channel, {"version": og.__version__, "modes": modes})
    generators: dict[str, Any] = {}
    for prompt in messages:
        mode, tokens = prompt["mode"], prompt["tokens"]
        if not prompt["again"]:
            if not request["keep"]:
                generators.clear()  # frees the cache
            generators.pop(mode, None)
            generators[mode] = _generator(models[needs_draft(mode)], mode, prompt["max_length"])
        run = _answer(generators[mode], tokens, again=prompt["again"])
        say(channel, run | {"peak_memory_bytes": peak_memory()})


def _load(folder: str, roles: Sequence[str], threads: int) -> Any:
    """Open a model folder. One model may spin while it waits; two would fight for the cores."""
    import onnxruntime_genai as og

    session = {"intra_op_num_threads": threads} | ({SPINNING_STOP: "1"} if len(roles) > 1 else {})
    config = og.Config(folder)
    config.overlay(json.dumps({"model": {role: {"session_options": session} for role in roles}}))
    return og.Model(config)


def _generator(model: Any, mode: str, max_length: int) -> Any:
    import onnxruntime_genai as og

    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=max_length, do_sample=False)
    parameters.set_speculative_options(**SETTINGS[mode])
    return og.Generator(model, parameters)


def _answer(generator: Any, tokens: Sequence[int], *, again: bool) -> dict[str, Any]:
    """One greedy answer: its tokens, its times, and what speculation did; `again` goes back to the prompt's end."""
    before = _counts(generator) if again else {}
    start = time.perf_counter()
    if again:
        generator.rewind_to(len(tokens) - 1)
    generator.append_tokens(list(tokens[-1:] if again else tokens))
    prefilled = first = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
        first = time.perf_counter() if first == prefilled else first
    end = time.perf_counter()
    answer = [int(token) for token in generator.get_sequence(0)[len(tokens) :]]
    counts = {name: count - before.get(name, 0) for name, count in _counts(generator).items()}
    return {
        "tokens": answer,
        "prefill_seconds": prefilled - start,
        "first_token_seconds": first - start,
        "decode_seconds": end - prefilled,
        **counts,
        "rounds": counts["rounds"] or len(answer),
    }


def _counts(generator: Any) -> dict[str, int]:
    """What speculation has done since the generator was made; no rounds if it doesn't count them."""
    stats = generator.get_speculative_stats()
    passes = int(stats["target_forward_passes"]) + int(stats["standard_fallback_steps"])
    return {
        "rounds": passes,
        "drafted": int(stats["draft_tokens_proposed"]),
        "accepted": int(stats["draft_tokens_accepted"]),
    }


if __name__ == "__main__":
    serve(_serve)
