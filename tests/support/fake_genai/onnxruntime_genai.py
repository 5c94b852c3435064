"""Stands in for onnxruntime-genai where it is not installed: its calls, with answers from genai_config.json.

`answer` are the tokens of every answer, `speculative_answer` those of speculative modes; `refuse` and `die` fail.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

__version__ = "0.0-fake"
DRAFTS = 3


class Config:
    def __init__(self, folder: str) -> None:
        self.content = json.loads((Path(folder) / "genai_config.json").read_text())
        self.overlays: list[Any] = []

    def overlay(self, text: str) -> None:
        self.overlays.append(json.loads(text))


class Model:
    def __init__(self, config: Config) -> None:
        print("a library that writes to stdout")
        if "refuse" in config.content:
            raise RuntimeError(config.content["refuse"] + "\nwith details")
        self.content = config.content
        roles = config.overlays[0]["model"]
        self.threads = {role: roles[role]["session_options"]["intra_op_num_threads"] for role in roles}


class GeneratorParams:
    def __init__(self, model: Model) -> None:
        self.search: dict[str, Any] = {}
        self.speculative: dict[str, Any] = {}

    def set_search_options(self, **options: Any) -> None:
        self.search = options

    def set_speculative_options(self, **options: Any) -> None:
        self.speculative = options


class Generator:
    def __init__(self, model: Model, parameters: GeneratorParams) -> None:
        assert parameters.search["do_sample"] is False
        kind = "speculative_answer" if parameters.speculative else "answer"
        self.model, self.parameters = model, parameters
        self.answer = model.content.get(kind, model.content["answer"])
        self.tokens: list[int] = []
        self.written, self.answers = 0, 1

    def append_tokens(self, tokens: list[int]) -> None:
        self.tokens += tokens
        if "die" in self.model.content:
            print(self.model.content["die"], file=sys.stderr, flush=True)
            os._exit(9)

    def rewind_to(self, length: int) -> None:
        del self.tokens[length:]
        self.written, self.answers = 0, self.answers + 1

    def is_done(self) -> bool:
        full = len(self.tokens) >= self.parameters.search["max_length"]
        return full or self.written >= len(self.answer)

    def generate_next_token(self) -> None:
        self.tokens.append(self.answer[self.written])
        self.written += 1

    def get_sequence(self, index: int) -> list[int]:
        return self.tokens

    def get_speculative_stats(self) -> dict[str, int]:
        speculates = self.answers * bool(self.parameters.speculative)
        return {
            "target_forward_passes": 2 * speculates,
            "standard_fallback_steps": 0,
            "draft_tokens_proposed": DRAFTS * speculates,
            "draft_tokens_accepted": (DRAFTS - 1) * speculates,
        }
