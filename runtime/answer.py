"""Text level of an answer: from rounds of tokens to steps of text, and the reason it ends."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.detokenizer import Detokenizer, StopStrings
from specdec_onnx.runtime.generator import Generator, Round, Step
from specdec_onnx.runtime.sampling import Parameters
from specdec_onnx.runtime.statistics import Statistics


@dataclass(slots=True)
class Result:
    """An answer so far, or finished: `finish_reason` is None while it runs."""

    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    statistics: Statistics = field(default_factory=Statistics)


class Answer:
    """Reads rounds, ends at EOS, a stop string or the last round, and keeps nothing that lies behind the end."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        eos: frozenset[int],
        parameters: Parameters,
        result: Result,
    ) -> None:
        self._generator, self._eos, self._result = generator, eos, result
        self._limit = parameters.max_new_tokens
        self._tokenizer, self._text = tokenizer, Detokenizer(tokenizer, result.prompt)
        self._stops = StopStrings(parameters.stop)

    def steps(self, rounds: Iterable[Round]) -> Iterator[Step]:
        """One step a round; the last one carries the finish reason."""
        for round_ in rounds:
            step = self._step(round_)
            self._record(step)
            yield step
            if step.finish_reason:
                return

    def cancelled(self) -> Step:
        """The step that ends an answer which was stopped from outside."""
        step = Step(self._rest(), (), (), (), "cancelled")
        self._record(step)
        return step

    def _step(self, round_: Round) -> Step:
        shown, reason, count = "", None, 0
        for token in round_.tokens:
            count += 1
            ends = token in self._eos
            shown += self._read(token, ends)
            reason = "stop" if self._stops.found else "eos" if ends else None
            if reason:
                self._generator.cut(len(self._generator.context) - len(round_.tokens) + count)
                break
        reason = reason or self._ran_out(count)
        if reason and reason != "stop":
            shown += self._rest()
        return self._made(round_, count, shown, reason)

    def _read(self, token: int, ends: bool) -> str:
        """What can be shown after `token`; one that gives no text may still complete a stop string."""
        if not ends and token not in self._tokenizer.special_ids:
            return self._stops.push(self._text.push(token))
        return self._stops.mark(self._tokenizer.spelling(token), self._text.rest())

    def _made(self, round_: Round, count: int, shown: str, reason: str | None) -> Step:
        """Count and describe the round's first `count` tokens; what lies behind the end was never drafted."""
        drafted, accepted = round_.proposal, round_.accepted
        if count < len(round_.tokens):
            drafted, accepted = drafted.cut(count), count
        self._result.statistics.observe(drafted.sources, accepted)
        sources = (*drafted.sources[:accepted], "target")[:count]
        rejected = tuple(drafted.tokens[accepted:])
        return Step(shown, tuple(round_.tokens[:count]), sources, rejected, reason)

    def _ran_out(self, count: int) -> str | None:
        if len(self._result.tokens) + count >= self._limit:
            return "length"
        return "context" if len(self._generator.context) >= self._generator.context_limit else None

    def _rest(self) -> str:
        text = self._stops.push(self._text.rest())
        return text if self._stops.found else text + self._stops.flush()

    def _record(self, step: Step) -> None:
        result = self._result
        result.tokens.extend(step.tokens)
        result.text += step.text
        result.finish_reason = step.finish_reason
        result.statistics.new_tokens += len(step.tokens)
