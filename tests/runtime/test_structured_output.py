"""Answers that follow a grammar: valid, the same with and without speculation, and drafted for free where forced."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.chi_square import p_value
from support.schemas import SCHEMAS, WORD, closed, listed
from support.smol import smol
from support.tiny import export_padded_pair, export_tiny, export_tiny_pair

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.sampling.constraint import Constraint

__all__ = ["smol"]

SPECULATIVE = ("suffix", "draft", "auto")
PROMPT = "the rain in the"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(export_padded_pair(tmp_path_factory.mktemp("pairs") / "pair"))


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Its passes count as equally dear at any width, so that drafting pays however busy the machine is."""
    folder = export_tiny_pair(tmp_path_factory.mktemp("pairs") / "near", target_format="w8a8", seed=5)
    with pytest.MonkeyPatch.context() as patch:
        flat = Curve((1, 2, 8), (0.01, 0.01, 0.01))
        patch.setattr("specdec_onnx.runtime.machine.profile.measure_curve", lambda decoder, widths: flat)
        yield load(folder)


def valid(text: str, schema: Any) -> bool:
    checker = Draft202012Validator.FORMAT_CHECKER
    return Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text))


def test_there_are_thirty_schemas() -> None:
    assert len(SCHEMAS) == 30
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_fits_its_schema_and_is_the_same_in_every_mode(engine: Engine, name: str) -> None:
    constraint = Constraint.json_schema(SCHEMAS[name])
    for ask in ({}, {"temperature": 1.2, "seed": 1}, {"temperature": 0.9, "seed": 2, "top_k": 9}):
        texts = set()
        for mode in ("plain", *SPECULATIVE):
            text = engine.generate(PROMPT, constraint=constraint, mode=mode, max_new_tokens=400, **ask)
            assert engine.last.finish_reason == "eos"
            texts.add((text, tuple(engine.last.tokens)))
        assert len(texts) == 1
        assert valid(text, SCHEMAS[name]), text


@pytest.mark.parametrize("mode", ["plain", *SPECULATIVE])
def test_an_unseeded_answer_fits_its_schema(engine: Engine, mode: str) -> None:
    for name in ("nested objects", "anyOf of types", "search tool", "enum of everything"):
        constraint = Constraint.json_schema(SCHEMAS[name])
        for _ in range(3):
            text = engine.generate(
                PROMPT, constraint=constraint, mode=mode, max_new_tokens=400, temperature=1
            )
            assert engine.last.finish_reason == "eos" and valid(text, SCHEMAS[name]), text


@pytest.mark.parametrize("mode", SPECULATIVE)
def test_forced_text_costs_no_round(near: Engine, mode: str) -> None:
    schema = closed(temperature=closed(minimum={"const": 3}, maximum={"const": 4}))
    text = near.generate(PROMPT, constraint=Constraint.json_schema(schema), mode=mode, max_new_tokens=400)
    assert text == '{"temperature": {"minimum": 3, "maximum": 4}}'
    statistics = near.last.statistics
    assert statistics.accepted_by_source["grammar"] > 0
    assert statistics.rounds < statistics.new_tokens


@pytest.mark.parametrize("ask", [{}, {"temperature": 1.0, "seed": 2}, {"temperature": 1.0}])
def test_a_draft_equal_to_its_target_is_kept_under_a_grammar_too(tmp_path: Path, ask: dict[str, Any]) -> None:
    engine = load(export_tiny_pair(tmp_path / "same", target_format="fp32", draft_format="fp32", seed=5))
    constraint = Constraint.regex("[a-z ]{9,40}")
    engine.generate(PROMPT, constraint=constraint, mode="draft", logit_bias={101: 1.5}, **ask)
    drafted, accepted = engine.last.statistics.drafted_by_source, engine.last.statistics.accepted_by_source
    assert drafted["draft"] == accepted["draft"] > 0


def test_a_lark_grammar_and_a_regular_expression_are_followed(engine: Engine) -> None:
    lark = Constraint.lark('start: "(" inner ")"\ninner: /[ab]{1,3}/ | start')
    for seed in range(4):
        text = engine.generate(PROMPT, constraint=lark, max_new_tokens=60, temperature=1, seed=seed)
        core = text.strip("()") if engine.last.finish_reason == "eos" else "a"
        assert text.startswith("(") and core and set(core) <= {"a", "b"}
    assert engine.generate(PROMPT, constraint=Constraint.regex("(yes|no){2}")) in {
        a + b for a in ("yes", "no") for b in ("yes", "no")
    }


WORDS = ["".join(letters) for letters in itertools.product("et", "ao", "nr")]


def expected(engine: Engine, prompt: list[int], text: str, share: float) -> Iterator[tuple[str, float]]:
    """Each of WORDS that begins with `text`, and its probability under the target's renormalised distribution."""
    if text in WORDS:
        yield text, share
        return
    list(engine.stream(prompt, mode="plain", max_new_tokens=1, logprobs=engine.pair.target.tokenizer.size))
    weights = {}
    for token, value in engine.last.logprobs[0].top:
        following = text + engine.tokenizer.decode([token])
        if following != text and any(word.startswith(following) for word in WORDS):
            weights[token] = following, math.exp(value)
    total = sum(weight for _, weight in weights.values())
    for token, (following, weight) in weights.items():
        yield from expected(engine, [*prompt, token], following, share * weight / total)


@pytest.mark.parametrize("mode", ["plain", *SPECULATIVE])
@pytest.mark.parametrize("seeded", [True, False])
def test_sampled_answers_follow_the_renormalised_distribution(near: Engine, mode: str, seeded: bool) -> None:
    prompt, wanted = near.tokenizer.encode(PROMPT), Counter[str]()
    for word, share in expected(near, prompt, "", 1.0):
        wanted[word] += share  # type: ignore[assignment]
    assert abs(sum(wanted.values()) - 1) < 1e-6
    constraint, seen = Constraint.regex("[et][ao][nr]"), Counter[str]()
    for seed in range(300):
        ask = {"seed": seed} if seeded else {}
        seen[near.generate(prompt, constraint=constraint, mode=mode, temperature=1.0, **ask)] += 1
    assert p_value(seen, wanted) > 1e-4


def test_a_length_limit_may_end_an_answer_before_its_grammar_does(engine: Engine) -> None:
    constraint = Constraint.json_schema(SCHEMAS["weather tool"])
    engine.generate(PROMPT, constraint=constraint, max_new_tokens=5)
    assert engine.last.finish_reason == "length" and len(engine.last.tokens) == 5


def test_biases_that_ban_all_that_the_grammar_allows_are_named(engine: Engine) -> None:
    banned = dict.fromkeys(range(engine.tokenizer.size), -math.inf)
    for mode in ("plain", "auto"):
        with pytest.raises(SpecdecError, match="logit_bias and the grammar together ban every one"):
            engine.generate(
                PROMPT, constraint=Constraint.regex("ab"), logit_bias={**banned, 300: 0}, mode=mode
            )
    assert engine.generate(PROMPT, max_new_tokens=3)


def test_a_grammar_that_grows_too_complex_ends_with_one_clear_error(engine: Engine) -> None:
    constraint = Constraint.lark('start: a* \na: b | b b | b b b\nb: "a" | a a')
    with pytest.raises(SpecdecError, match="grammar"):
        engine.generate(
            PROMPT, constraint=constraint, max_new_tokens=300, mode="plain", logit_bias={383: -100, 381: -100}
        )
    assert engine.generate(PROMPT, max_new_tokens=3)


def test_a_chat_answers_under_a_grammar_and_goes_on(engine: Engine) -> None:
    chat = engine.chat()
    text = "".join(step.text for step in chat.send("hi", constraint=Constraint.json_schema(closed(a=WORD))))
    assert chat.messages[-1]["content"] == text and valid(text, closed(a=WORD))
    assert list(chat.send("again", max_new_tokens=4))


def test_one_constraint_serves_interleaved_answers(engine: Engine) -> None:
    constraint = Constraint.json_schema(SCHEMAS["array of objects"])
    alone = engine.generate(PROMPT, constraint=constraint)
    streams = [engine.stream(PROMPT, constraint=constraint) for _ in range(2)]
    texts = ["", ""]
    for steps in itertools.zip_longest(*streams):
        for place, step in enumerate(steps):
            texts[place] += step.text if step else ""
    assert texts == [alone, alone]


def test_a_single_model_without_a_draft_follows_a_grammar(tmp_path: Path) -> None:
    engine = load(export_tiny(tmp_path / "model", "llama", seed=3))
    constraint = Constraint.json_schema(SCHEMAS["object"])
    plain = engine.generate(PROMPT, constraint=constraint, mode="plain")
    assert engine.generate(PROMPT, constraint=constraint, mode="auto") == plain
    assert valid(plain, SCHEMAS["object"])


@pytest.mark.parametrize("wrong", [{"type": "object"}, "a", object()])
def test_what_is_no_constraint_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(SpecdecError, match=r"Constraint\.json_schema"):
        engine.stream(PROMPT, constraint=wrong)


@pytest.mark.integration
def test_a_real_model_answers_in_json_with_fewer_rounds(smol: Path) -> None:
    engine = load(smol)
    schema = closed(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}, hobbies=listed(WORD))
    for case in (
        schema,
        *(SCHEMAS[name] for name in ("weather tool", "search tool", "date", "anyOf of objects")),
    ):
        constraint = Constraint.json_schema(case)
        plain = engine.generate("Describe Ann as JSON.", constraint=constraint, mode="plain")
        rounds = engine.last.statistics.rounds
        assert valid(plain, case)
        assert engine.generate("Describe Ann as JSON.", constraint=constraint) == plain
        assert engine.last.statistics.rounds <= rounds
