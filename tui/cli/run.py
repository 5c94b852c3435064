"""`specdec run`: one prompt in, one answer out."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from threading import Lock, Timer
from types import FrameType
from typing import Self

from specdec_onnx.models.command import INTERRUPTED
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.progress import ProgressLine
from specdec_onnx.models.system import prefix_folder
from specdec_onnx.models.text import rate
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.model.prefixes import common_prefix
from specdec_onnx.runtime.sampling.constraint import Constraint
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.text.prompt import prompt_tokens
from specdec_onnx.tui.chat.reply import figures
from specdec_onnx.tui.cli.engine import constraint, load_engine, parameters
from specdec_onnx.tui.cli.streams import as_json, input_left, read_input, read_text, shown

STDIN = "-"
NO_PROMPT = "there is no prompt", "", 'specdec run PAIR "your prompt", or pipe text in'
SEPARATOR = "\n\n"
"""Between the text of --cache-prompt and the prompt."""

CUT = {
    "length": " · cut off by --max-new-tokens",
    "context": " · cut off by the context limit",
    "cancelled": " · stopped",
}
PATIENCE, PATIENCE_ELSEWHERE = 0.5, 3.0
"""Seconds until a terminal, and anything else, is told that the prompt is being read."""


def run(args: argparse.Namespace) -> int:
    """Answer the prompt; the text goes to stdout, one line of statistics to stderr."""
    if args.raw and args.system:
        raise SpecdecError("--raw and --system exclude each other", "a raw prompt goes to the model as it is")
    settings, form = parameters(args), constraint(args)
    preamble = read_text(args.cache_prompt) if args.cache_prompt else ""
    prompt = _prompt(args.prompt, raw=args.raw)
    warned = _warn_of_unread_input(args.prompt)
    engine = load_engine(args, **({"prefix_folder": prefix_folder()} if preamble else {}))
    question = f"{preamble}{'' if args.raw or not preamble else SEPARATOR}{prompt}"
    code = _answer(engine, question, settings, form, args)
    if preamble:
        alone = prompt_tokens(engine.pair.target, preamble, system=args.system, raw=args.raw)
        engine.store_text(common_prefix(alone, engine.last.prompt))
    if not warned:
        _warn_of_unread_input(args.prompt)  # it may have arrived late
    return code


def _prompt(words: Sequence[str], *, raw: bool) -> str:
    """The words, with the text on stdin in place of a -, or of no words; it keeps its last newlines only if raw."""
    if words.count(STDIN) > 1:
        raise SpecdecError("PROMPT has more than one -", "stdin can be read only once")
    if not words and sys.stdin.isatty():
        raise SpecdecError(*NO_PROMPT)
    parts = []
    for is_input, group in groupby(words or [STDIN], STDIN.__eq__):
        part = read_input(raw=raw) if is_input else " ".join(group)
        if is_input and words and not part.strip():
            print("stdin is empty", file=sys.stderr)
        parts.append(part.rstrip("\n") if is_input and not raw else part)
    prompt = "\n\n".join(filter(None, parts))
    if not prompt.strip():
        raise SpecdecError(*NO_PROMPT)
    return prompt


def _warn_of_unread_input(words: Sequence[str]) -> bool:
    """Warn if text waits on stdin that the prompt does not include, and tell whether it does."""
    unread = STDIN not in words and bool(words) and input_left()
    if unread:
        print(
            "the text on stdin is not read: add a - to PROMPT to read it, or </dev/null to ignore it",
            file=sys.stderr,
        )
    return unread


def _answer(
    engine: Engine, prompt: str, settings: Parameters, form: Constraint | None, args: argparse.Namespace
) -> int:
    with interrupt_cancels(engine.cancel), ReadingLine() as reading:
        steps = engine.stream(
            prompt,
            parameters=settings,
            system=args.system,
            raw=args.raw,
            mode=args.mode,
            constraint=form,
            on_progress=reading,
        )
        for step in steps:
            reading.close()
            if not args.json:
                print(shown(step.text, sys.stdout), end="", flush=True)
    last = engine.last
    if args.json:
        answer = {"text": last.text, "tokens": list(last.tokens), "finish_reason": last.finish_reason}
        print(as_json(answer | {"statistics": last.statistics.as_dict()}))
    else:
        print("" if last.text.endswith("\n") else "\n", end="", flush=True)
    statistics = figures(last.statistics.as_dict(), rate) or "no token yet"
    print(statistics + CUT.get(last.finish_reason or "", ""), file=sys.stderr)
    return INTERRUPTED if last.finish_reason == "cancelled" else 0


@contextmanager
def interrupt_cancels(cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel` on the first Ctrl-C inside the block; a second one raises KeyboardInterrupt."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ReadingLine:
    """Shows that the prompt is being read, if that takes long: changing in a terminal, elsewhere once.

    A context manager; call it with how many tokens were read, of how many.
    """

    def __init__(self) -> None:
        self._line, self._lock, self._live = ProgressLine(), Lock(), sys.stderr.isatty()
        self._text, self._shown = "reading the prompt", False
        self._timer = Timer(PATIENCE if self._live else PATIENCE_ELSEWHERE, self._begin)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._text = f"reading the prompt: {100 * done // max(total, 1)} % of {total} tokens"
            if self._shown and self._live:
                self._line.show(self._text)

    def close(self) -> None:
        """Clear the line, for good."""
        self._timer.cancel()
        with self._lock:
            self._text = ""
            self._line.close()

    def _begin(self) -> None:
        with self._lock:
            if self._text:
                self._shown = True
                self._line.show(self._text)
