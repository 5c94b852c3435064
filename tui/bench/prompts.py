"""Benchmark prompts from the files people already have."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.text.prompt import chat_prompt, encode, prompt_tokens
from specdec_onnx.tui.cli.streams import read_input

STDIN = Path("-")
GZIP = b"\x1f\x8b"
HALF = r"surrogates, \ud800 to \udfff, come in pairs, and one is alone: the text was cut between them"
FORMATS = '{"category", "prompt"}, Spec-Bench {"category", "turns"} or HumanEval {"task_id", "prompt"}'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to measure: the user's turns, the model answers each.

    What was said `before`, as (role, text), is read with the first turn.
    """

    category: str
    turns: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()

    def length(self) -> int:
        """Characters of all texts."""
        return sum(map(len, self.turns)) + sum(len(text) for _, text in self.before)

    def tokens(self, model: ModelFolder, *, raw: bool = False) -> list[int]:
        """The token ids that `model` reads for the first turn."""
        if raw or model.chat_template is None:
            texts = [*(text for _, text in self.before), self.turns[0]]
            return prompt_tokens(model, "\n\n".join(texts), raw=raw)
        said = [*self.before, ("user", self.turns[0])]
        return encode(model, chat_prompt(model, [{"role": role, "content": text} for role, text in said]))


def read_prompts(path: Path, *, limit: int | None = None, all_turns: bool = False) -> list[Prompt]:
    """The prompts of a JSON-lines file, also gzipped; "-" is stdin. Raises SpecdecError, which names the wrong line.

    Of a conversation only the first turn is kept unless `all_turns`.
    """
    where = "stdin" if path == STDIN else str(path)
    prompts = [
        _prompt(value, f"{where}:{number}", all_turns) for number, value in _objects(_text(path), where)
    ]
    if not prompts:
        raise SpecdecError(f"{where} has no prompts", fix=f"one JSON object a line: {FORMATS}")
    return prompts[:limit]


def built_in_prompts(*, limit: int | None = None) -> list[Prompt]:
    """Our own prompts, like those that people give a local model; every category comes once before any repeats."""
    return read_prompts(Path(__file__).with_name("prompts.jsonl"), limit=limit)


def _objects(text: str, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise SpecdecError(
                f"{where}:{number} holds half of a character", HALF, "cut it between characters"
            ) from error
        except (ValueError, RecursionError) as error:
            raise SpecdecError(f"{where}:{number} is not JSON", str(error)) from error
        if not isinstance(value, dict):
            raise SpecdecError(f"{where}:{number} is not a JSON object", fix=f"one object a line: {FORMATS}")
        yield number, value


def _text(path: Path) -> str:
    if path == STDIN:
        return read_input()
    try:
        content = path.read_bytes()
        zipped = path.suffix == ".gz" or content.startswith(GZIP)
        return (gzip.decompress(content) if zipped else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise SpecdecError(f"cannot read prompts from {path}", str(error)) from error
    except UnicodeDecodeError as error:
        raise SpecdecError(
            f"cannot read prompts from {path}",
            f"it is not UTF-8: {error}",
            "convert it, with iconv for example",
        ) from error


def _prompt(value: Mapping[str, Any], where: str, all_turns: bool) -> Prompt:
    turns = value.get("turns", [value.get("prompt")])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise SpecdecError(f"{where} has no prompt", fix=f"known formats: {FORMATS}")
    category = "code" if "task_id" in value else "all"
    return Prompt(str(value.get("category", category)), tuple(turns if all_turns else turns[:1]))
