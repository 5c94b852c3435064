"""An engine that says what it was told to say, with the statistics of the rounds it pretends to run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specdec_onnx.runtime.generate import Statistics, Step
from specdec_onnx.runtime.sampling.parameters import Parameters

if TYPE_CHECKING:
    import pytest

ANSWER = "one two three four five six seven eight"
TOKENS_PER_ROUND = {"plain": 1, "suffix": 2, "draft": 4, "auto": 4}
SECONDS_PER_ROUND = 0.125
FIRST_TOKEN_SECONDS = PREFILL_SECONDS = 0.25
DRAFT_SHARE, VERIFY_SHARE = 0.25, 0.5


@dataclass(frozen=True)
class Call:
    """What one answer was asked with."""

    prompt: str
    mode: str
    raw: bool
    parameters: Parameters
    system: str | None = None
    constraint: Any = None


@dataclass
class Result:
    """The finished answer, as `Engine.last` shows it."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    statistics: Statistics = field(default_factory=Statistics)


class ScriptedEngine:
    """Answers every prompt with `answers[mode]`, else with ANSWER; one token a word, a few tokens a step.

    `before_step` is called with the number of each step, so that a test can interrupt there; `read_prompt`
    with whom to tell how far the prompt was read; `text_of` and `seconds_of` say what a mode answers and what its
    rounds take.
    """

    def __init__(
        self,
        answers: Mapping[str, str] | None = None,
        *,
        modes: Sequence[str] = ("plain", "suffix", "draft", "auto"),
        before_step: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.answers, self.modes, self.before_step = dict(answers or {}), tuple(modes), before_step
        self.calls: list[Call] = []
        self.last = Result()
        self.cancelled = False
        self.pair = scripted_pair(draft="draft" in modes)
        self.target, self.identity = SimpleNamespace(), "bit-identical"
        self.forgotten: list[int] = []
        self.context, self.placements = 4096, {"target": "cpu"}
        self.read_prompt: Callable[[Callable[[int, int], None]], None] = lambda on_progress: None
        self.text_of: Callable[[str], str] = lambda mode: self.answers.get(mode, ANSWER)
        self.seconds_of: Callable[[str], float] = lambda mode: SECONDS_PER_ROUND

    def install(self, monkeypatch: "pytest.MonkeyPatch") -> None:
        """Be what every command loads; a pass over two tokens then takes 12.5 ms, and over one 10 ms."""
        from specdec_onnx.runtime.machine.costs import Curve

        monkeypatch.setattr("specdec_onnx.runtime.engine.load", lambda path, **options: self)
        curve = Curve((1, 2), (0.01, 0.0125))
        monkeypatch.setattr("specdec_onnx.runtime.machine.costs.measure_curve", lambda target, widths: curve)

    def stream(
        self,
        prompt: str,
        *,
        parameters: Parameters | None = None,
        raw: bool = False,
        mode: str | None = None,
        system: str | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        constraint: Any = None,
        **fields: Any,
    ) -> Iterator[Step]:
        """Yield the scripted answer, as far as `max_new_tokens` and `cancel` allow."""
        call = Call(
            prompt, mode or "auto", raw, replace(parameters or Parameters(), **fields), system, constraint
        )
        self.calls.append(call)
        self.last, self.cancelled = Result(), False
        self.last.statistics.first_token_seconds = FIRST_TOKEN_SECONDS
        self.last.statistics.prefill_seconds = PREFILL_SECONDS
        self.read_prompt(on_progress)
        words = self.text_of(call.mode).split()
        yield from self._steps(words[: call.parameters.max_new_tokens], call.mode, len(words))

    def generate(self, prompt: str, **ask: Any) -> str:
        """The whole answer."""
        return "".join(step.text for step in self.stream(prompt, **ask))

    def chat(self, system: str | None = None) -> "ScriptedChat":
        """A conversation that only remembers its system prompt."""
        return ScriptedChat(self, system)

    def cancel(self) -> None:
        """End the answer after the step that is being made."""
        self.cancelled = True

    def forget(self) -> None:
        """Empty the caches: remembered as the number of answers before it."""
        self.forgotten.append(len(self.calls))

    def _steps(self, words: Sequence[str], mode: str, wanted: int) -> Iterator[Step]:
        width, seconds = TOKENS_PER_ROUND[mode], self.seconds_of(mode)
        for number, start in enumerate(range(0, len(words), width)):
            self.before_step(number)
            chunk = words[start : start + width]
            done = start + width >= len(words)
            reason = ("eos" if len(words) == wanted else "length") if done else None
            step = _step(chunk, mode, "cancelled" if self.cancelled else reason, first=start == 0)
            self._observe(step, seconds)
            yield step
            if step.finish_reason:
                return

    def _observe(self, step: Step, seconds: float) -> None:
        self.last.text += step.text
        self.last.tokens += step.tokens
        self.last.finish_reason = step.finish_reason
        statistics = self.last.statistics
        drafted = len(step.tokens) - 1
        statistics.observe(["draft"] * drafted, drafted)
        statistics.new_tokens += len(step.tokens)
        statistics.decode_seconds += seconds
        statistics.draft_seconds += DRAFT_SHARE * seconds
        statistics.verify_seconds += VERIFY_SHARE * seconds


@dataclass
class ScriptedChat:
    """Sends every turn to its engine."""

    engine: ScriptedEngine
    system: str | None

    def send(self, text: str, **ask: Any) -> Iterator[Step]:
        """Answer one turn."""
        return self.engine.stream(text, system=self.system, **ask)


def scripted_pair(*, draft: bool = True) -> Any:
    """What `Engine.pair` shows of a pair that was exported from two GGUF files."""
    models = [
        SimpleNamespace(
            name=name, weight_bytes=size, facts={"format": form, "source": {"file": f"{name}.gguf"}}
        )
        for name, size, form in (("target", 1000, "w8a8"), ("draft", 100, "int4"))
    ]
    return SimpleNamespace(path=Path("pairs/scripted"), target=models[0], draft=models[1] if draft else None)


def _step(words: Sequence[str], mode: str, reason: str | None, *, first: bool) -> Step:
    text = ("" if first else " ") + " ".join(words)
    source = mode if mode in ("draft", "suffix") else "target"
    sources = (source,) * (len(words) - 1) + ("target",)
    return Step(text, tuple(sum(word.encode()) for word in words), sources, (), reason)
