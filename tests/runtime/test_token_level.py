"""Log-probabilities, logits processors and custom proposers: the same tokens and numbers in every mode."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.tiny import export_padded_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.sampling.sampler import Categorical, Scores, logprob

MODES = ("plain", "suffix", "draft", "auto")
PROMPT = "aaaa bbbb aaaa bbbb aaaa"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(export_padded_pair(tmp_path_factory.mktemp("pairs") / "pair"))


@pytest.mark.parametrize(
    "ask", [{}, {"temperature": 1.1, "top_p": 0.9, "seed": 4}, {"logit_bias": {97: 5.0, 98: -100}}]
)
def test_logprobs_are_the_same_bits_in_every_mode(engine: Engine, ask: dict[str, Any]) -> None:
    answers = []
    for mode in MODES:
        steps = list(engine.stream(PROMPT, mode=mode, max_new_tokens=40, logprobs=5, **ask))
        assert [entry for step in steps for entry in step.logprobs] == engine.last.logprobs
        assert [entry.token for entry in engine.last.logprobs] == engine.last.tokens
        answers.append(engine.last.logprobs)
    assert answers[1:] == answers[:1] * 3


def test_logprobs_are_the_models_own_before_any_setting(engine: Engine) -> None:
    def first(**ask: Any) -> Any:
        engine.generate(PROMPT, max_new_tokens=1, logprobs=3, **ask)
        return engine.last.logprobs[0]

    usual = first()
    assert usual.token == usual.top[0][0] and usual.logprob == usual.top[0][1] < 0
    forced = first(logit_bias={usual.top[2][0]: 100.0}, repetition_penalty=1.5)
    assert forced.token == usual.top[2][0]
    assert forced.top == usual.top and forced.logprob == usual.top[2][1]


def test_logprobs_of_all_tokens_add_up_to_one(engine: Engine) -> None:
    engine.generate(PROMPT, max_new_tokens=2, logprobs=10_000)
    for entry in engine.last.logprobs:
        assert len(entry.top) == 384
        assert math.fsum(math.exp(value) for _, value in entry.top) == pytest.approx(1)
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)


def test_nobody_pays_for_logprobs_that_were_not_asked_for(engine: Engine) -> None:
    assert all(step.logprobs == () for step in engine.stream(PROMPT, max_new_tokens=5))
    engine.generate(PROMPT, max_new_tokens=5, logprobs=0)
    assert [entry.top for entry in engine.last.logprobs] == [()] * 5


def test_equally_likely_tokens_are_listed_by_id_and_no_more_than_asked_for() -> None:
    entry = logprob(np.array([1, 3, 3, 3, 0], np.float32), 0, 2)
    assert [token for token, _ in entry.top] == [1, 2]
    assert entry.logprob == pytest.approx(1 - math.log(3 * math.exp(3) + math.e + 1))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2"])
def test_a_number_of_logprobs_that_makes_no_sense_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(SpecdecError, match="logprobs"):
        engine.stream(PROMPT, logprobs=wrong)


def no_repeats(tokens: Sequence[int], logits: Scores) -> Scores:
    """Bans what follows the last token elsewhere in the text: depends on all tokens and their order."""
    for place, token in enumerate(tokens[:-1]):
        if token == tokens[-1]:
            logits[tokens[place + 1]] = -np.inf
    return logits


@pytest.mark.parametrize("ask", [{}, {"temperature": 1.0, "seed": 3}])
def test_a_processor_changes_the_answer_and_not_with_the_mode(engine: Engine, ask: dict[str, Any]) -> None:
    answers = []
    for mode in MODES:
        engine.generate(PROMPT, mode=mode, max_new_tokens=48, processors=[no_repeats], **ask)
        answers.append(engine.last.tokens)
    assert answers[1:] == answers[:1] * 3
    text = [*engine.last.prompt, *answers[0]]
    start = len(engine.last.prompt) - 1
    assert all(
        text[place : place + 2] not in [text[at : at + 2] for at in range(place)]
        for place in range(start, len(text) - 1)
    )


def test_processors_run_in_order_and_on_a_copy(engine: Engine) -> None:
    seen: list[Sequence[int]] = []

    def only(tokens: Sequence[int], logits: Scores) -> Scores:
        seen.append(tokens)
        logits[:] = -np.inf
        logits[[65, 66]] = 0, 1
        return logits

    def other(tokens: Sequence[int], logits: Scores) -> Scores:
        assert np.isneginf(logits).sum() == logits.size - 2
        tokens.clear()  # type: ignore[attr-defined]
        return np.where(np.isneginf(logits), logits, -logits)

    engine.generate([1, 2, 3], mode="plain", max_new_tokens=3, processors=[only])
    assert engine.last.tokens == [66] * 3
    assert seen == [[1, 2, 3], [1, 2, 3, 66], [1, 2, 3, 66, 66]]
    engine.generate([1, 2, 3], mode="plain", max_new_tokens=3, processors=[only, other])
    assert engine.last.tokens == [65] * 3


@pytest.mark.parametrize(
    ("processor", "error"),
    [
        (lambda tokens, logits: logits[:-1], "one for each token id"),
        (lambda tokens, logits: logits.astype(int), "must return floats"),
        (lambda tokens, logits: logits * np.nan, "no number"),
        (lambda tokens, logits: logits - np.inf, "a logits processor bans every one"),
        (lambda tokens, logits: None, "must return floats"),
        (7, "cannot be called"),
    ],
)
def test_a_processor_that_breaks_the_rules_gets_a_clear_error(
    engine: Engine, processor: Any, error: str
) -> None:
    with pytest.raises(SpecdecError, match=error):
        engine.generate(PROMPT, max_new_tokens=2, processors=[processor])
    assert engine.generate(PROMPT, max_new_tokens=2)


class Guess:
    """Proposes what it is told to, and counts what was written."""

    name = "guess"

    def __init__(self, answer: Sequence[int], wrong: int = 0) -> None:
        self.answer, self.wrong, self.heard = list(answer), wrong, list[int]()

    def propose(self, context: Sequence[int], limit: int, worth: object) -> list[int]:
        at = len(self.heard)
        drafted = self.answer[at : at + 4]
        if drafted and self.wrong and at % self.wrong == 0:
            drafted[-1] = (drafted[-1] + 1) % 300
        return drafted

    def observe(self, emitted: Sequence[int]) -> None:
        self.heard += emitted


@pytest.mark.parametrize("ask", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_custom_proposer_changes_the_speed_and_never_the_answer(
    engine: Engine, mode: str, ask: dict[str, Any]
) -> None:
    engine.generate(PROMPT, mode="plain", max_new_tokens=40, **ask)
    said = engine.last.tokens
    for guess in (Guess(said), Guess(said, wrong=2), Guess([1] * 40)):
        engine.generate(PROMPT, mode=mode, max_new_tokens=40, proposer=guess, **ask)
        assert engine.last.tokens == said == guess.heard[:40]
        assert set(engine.last.statistics.drafted_by_source) == {"guess"}
    engine.generate(PROMPT, mode=mode, max_new_tokens=40, proposer=Guess(said), **ask)
    assert engine.last.statistics.rounds < 12


def test_a_custom_proposer_is_not_asked_in_plain_mode(engine: Engine) -> None:
    guess = Guess([1] * 40)
    engine.generate(PROMPT, mode="plain", max_new_tokens=8, proposer=guess)
    assert not guess.heard and not engine.last.statistics.drafted


@pytest.mark.parametrize("proposed", [[384], [-1], ["a"], [1.5], [1 << 70]])
def test_a_custom_proposer_that_proposes_no_token_ids_gets_a_clear_error(
    engine: Engine, proposed: list[Any]
) -> None:
    class Wrong(Guess):
        def __init__(self, answer: Sequence[int], given: Any = proposed) -> None:
            super().__init__(answer)
            self.given = given

        def propose(self, context: Sequence[int], limit: int, worth: object) -> Any:
            return self.given

    with pytest.raises(SpecdecError, match="guess proposed"):
        engine.generate(PROMPT, max_new_tokens=8, proposer=Wrong([]))
    with pytest.raises(SpecdecError, match="faulty proposal"):
        engine.generate(PROMPT, max_new_tokens=8, proposer=Wrong([], given=Proposal([5], [1.0], [])))
    with pytest.raises(SpecdecError, match="faulty proposal"):
        impossible = Proposal([5], [1.0], ["x"], [Categorical.one_hot(6)])
        engine.generate(PROMPT, max_new_tokens=8, proposer=Wrong([], given=impossible))
    with pytest.raises(SpecdecError, match="guess proposed None"):
        engine.generate(PROMPT, max_new_tokens=8, proposer=Wrong([], given=None))
    with pytest.raises(SpecdecError, match="no method propose"):
        engine.generate(PROMPT, max_new_tokens=8, proposer=object())


def test_a_custom_proposer_may_propose_too_much_or_a_proposal(engine: Engine) -> None:
    class Long(Guess):
        def propose(self, context: Sequence[int], limit: int, worth: object) -> Any:
            return Proposal([7] * 2000, [0.5] * 2000, ["long"] * 2000)

    engine.generate(PROMPT, mode="plain", max_new_tokens=6)
    said = engine.last.tokens
    engine.generate(PROMPT, max_new_tokens=6, proposer=Long([]))
    assert engine.last.tokens == said


def test_a_trained_draft_is_not_needed_for_any_of_it_together(engine: Engine) -> None:
    ask: dict[str, Any] = {
        "max_new_tokens": 30,
        "logprobs": 1,
        "processors": [no_repeats],
        "logit_bias": {101: 2.0},
    }
    engine.generate(PROMPT, mode="plain", **ask)
    plain = engine.last.tokens, engine.last.logprobs
    engine.generate(PROMPT, proposer=Guess(plain[0], wrong=3), **ask)
    assert (engine.last.tokens, engine.last.logprobs) == plain
