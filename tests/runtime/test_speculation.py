"""Proposers inside the engine: who drafts when, and what never reaches an answer."""

import math
from pathlib import Path

import numpy as np
import pytest
from support.scripted_proposer import ScriptedProposer
from support.tiny import export_model, export_tiny, export_tiny_pair, tiny_checkpoint

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.drafting.planner import Switch
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.generate import Statistics

PROMPT = "aaaa bbbb cccc aaaa bbbb cccc aaaa bbbb"


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Target and draft are the same float model: every draft is right."""
    folder = tmp_path_factory.mktemp("pairs") / "twins"
    return load(export_tiny_pair(folder, target_format="fp32", draft_format="fp32", seed=8))


@pytest.fixture
def eager(twins: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tokens are always worth drafting, whatever the clock says of so tiny a model."""
    planner = twins.speculation.planner("auto")
    monkeypatch.setattr(planner, "draft_switch", Switch())
    for rule in ("worth_drafting", "worth_checking"):
        monkeypatch.setattr(planner, rule, lambda chance, drafted: drafted <= 5)


def sources(engine: Engine, prompt: str, **ask: object) -> list[str]:
    """Who wrote each token of an answer that only the length limit ends."""
    endless = dict.fromkeys(engine.pair.target.eos_token_ids, -math.inf)
    steps = engine.stream(prompt, logit_bias=endless, **ask)
    return [source for step in steps for source in step.sources]


def test_speculation_can_be_off_for_one_request(twins: Engine) -> None:
    said = sources(twins, PROMPT, mode="plain", max_new_tokens=24)
    assert set(said) == {"target"}
    assert twins.last.statistics.rounds == 24
    assert set(sources(twins, PROMPT, mode="draft", max_new_tokens=24)) == {"target", "draft"}


def test_both_proposers_contribute(twins: Engine, eager: None) -> None:
    """A model that repeats itself feeds the suffix store; what is new comes from the draft model."""
    chat = twins.chat()
    said: set[str] = set()
    for _ in range(4):
        for step in chat.send(PROMPT, mode="auto", max_new_tokens=96):
            said |= set(step.sources)
    assert said == {"target", "draft", "suffix"}


def test_the_draft_goes_on_behind_free_tokens_by_the_same_rule(twins: Engine, eager: None) -> None:
    """With a seed the draft picks by the noise of its position: behind free tokens too, its twin keeps every one."""
    ask = {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.2, "max_new_tokens": 64}
    plain = twins.generate(PROMPT, mode="plain", **ask)
    known = twins.last.tokens
    twins.generate(PROMPT, mode="auto", suffix=ScriptedProposer(known, 2, wrong=0), **ask)
    statistics = twins.last.statistics
    assert twins.last.text == plain
    assert statistics.drafted_by_source["draft"] > 10
    assert statistics.acceptance_rate == 1.0


def test_a_draft_that_rested_is_as_good_as_before(twins: Engine) -> None:
    """Its cache fell behind by forty tokens; it catches up and is right again."""
    plain = twins.generate(PROMPT, mode="plain", max_new_tokens=96)
    steps = twins.stream(PROMPT, mode="auto", max_new_tokens=96, suffix=ScriptedProposer([], 0))
    switch = twins.speculation.planner("auto").draft_switch
    for number, step in enumerate(steps):
        switch._rest = 1000 if 3 <= number < 40 else 0
        if 4 <= number < 40:
            assert step.sources == ("target",)
    assert twins.last.text == plain
    assert twins.last.statistics.acceptance_rate == 1.0
    assert twins.last.statistics.rounds < 90


def test_a_draft_with_a_shorter_context_stops_drafting(tmp_path: Path) -> None:
    small = {"max_position_embeddings": 64}
    pair = export_tiny_pair(
        tmp_path / "pair", target_format="fp32", draft_format="fp32", seed=8, draft_sizes=small
    )
    engine = load(pair)
    sources(engine, PROMPT, mode="plain", max_new_tokens=120)
    plain = engine.last.text
    said = sources(engine, PROMPT, mode="draft", max_new_tokens=120)
    assert engine.last.text == plain
    assert "draft" in said[:20]
    assert set(said[-20:]) == {"target"}


@pytest.mark.parametrize("mode", ["plain", "suffix", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_is_never_said(tmp_path: Path, mode: str, temperature: float) -> None:
    """Rows of the vocabulary without a token score highest here; they must not be looked at."""
    checkpoint = tiny_checkpoint(seed=5, vocab_size=384, spare_rows=8)
    checkpoint.tensors["model.embed_tokens.weight"][376:] = 40 * np.sign(
        checkpoint.tensors["model.embed_tokens.weight"][376:]
    )
    engine = load(export_model(checkpoint, tmp_path / "padded", format="fp32"))
    for seed in range(4):
        engine.generate(f"prompt {seed}", mode=mode, temperature=temperature, max_new_tokens=32)
        assert engine.last.tokens
        assert max(engine.last.tokens) < engine.tokenizer.size == 376


def test_a_single_model_says_that_it_has_no_draft(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "single")
    with pytest.raises(SpecdecError, match="no draft model"):
        load(folder, mode="draft")
    engine = load(folder)
    assert engine.modes == ("plain", "suffix", "auto")
    with pytest.raises(SpecdecError, match="no draft model"):
        engine.stream("x", mode="draft")
    with pytest.raises(SpecdecError, match="unknown mode"):
        engine.stream("x", mode="magic")


def test_three_hundred_tokens_stay_identical(twins: Engine) -> None:
    for mode in ("suffix", "draft", "auto"):
        said = twins.generate("once", mode=mode, max_new_tokens=300)
        assert said == twins.generate("once", mode="plain", max_new_tokens=300)


def test_answers_add_up_by_place_and_by_source_whatever_their_lengths() -> None:
    short, long = Statistics(), Statistics(decode_seconds=2.0)
    short.observe(["draft"], accepted=1)
    long.observe(["suffix", "draft"], accepted=1)
    total = Statistics.total([short, long])
    assert (total.rounds, total.drafted, total.accepted, total.decode_seconds) == (2, 3, 2, 2.0)
    assert (total.drafted_by_position, total.accepted_by_position) == ([2, 1], [2, 0])
    assert total.drafted_by_source == {"draft": 2, "suffix": 1}
    assert short.drafted_by_position == [1]
    assert Statistics.total([]) == Statistics()
