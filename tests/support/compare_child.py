"""Stands in for the process that measures a setup; the setup's name says what becomes of it."""

import os
import signal
import sys
import time
from typing import Any

from specdec_onnx.tui.child import incoming, open_channel, say

LOADED = {
    "load_seconds": 1.5,
    "identity": "bit-identical",
    "devices": {"target": "cpu"},
    "nodes": {"target": {"CPU": 3}},
}
FINISHED = {
    "peak_memory_bytes": 10**8,
    "forward_cost_ms": {"1": 10.0, "8": 14.0},
}
SPEEDS = {"cpu": (100.0, 20.0), "cpu:1": (150.0, 40.0), "cpu:3": (400.0, 10.0)}
"""Milliseconds of prefill for 64 tokens, and of a token in mode auto; plain takes twice as long."""


def run(setup: str, length: int, mode: str) -> dict[str, Any]:
    """One answer as a child tells it."""
    prefill, token = SPEEDS.get(setup, (100.0, 20.0))
    token *= 2 if mode == "plain" else 1
    prefill *= length / 64
    return {
        "length": length,
        "mode": mode,
        "prompt_tokens": length - 2,
        "tokens": [1, 2, 3, 4],
        "prefill_ms": prefill,
        "first_token_ms": prefill + token,
        "per_token_ms": token,
    }


def main() -> None:
    """Pretend to measure."""
    channel = open_channel()
    message = next(incoming(sys.stdin))
    plan, name = message["plan"], message["setup"]["name"]
    if name == "cpu:9":
        sys.exit("no room left")
    say(channel, {"event": "loaded", **LOADED})
    for length in plan["lengths"]:
        for mode in plan["modes"]:
            say(channel, {"event": "run", **run(name, length, mode)})
            if name == "cpu:7":
                os.kill(os.getpid(), signal.SIGSEGV)
            if name == "cpu:8":
                time.sleep(60)
    say(channel, {"event": "finished", **FINISHED})


if __name__ == "__main__":
    main()
