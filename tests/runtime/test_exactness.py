"""The product: speculation never changes a token, whatever is drafted, in every format."""

import itertools
from pathlib import Path

import pytest
from support.scripted_proposer import ScriptedProposer
from support.tiny import export_tiny_pair

from specdec_onnx.runtime.engine import Engine, load

FORMATS = ("fp32", "int8", "int4", "w8a8")
SPECULATIVE = ("suffix", "draft", "auto")
PROMPTS = ("the rain in the", "aaaa bbbb aaaa bbbb aaaa", "x", "Tea for two, two for tea. Tea for")


@pytest.fixture(scope="module", params=list(itertools.product(FORMATS, ("qwen2", "llama"))), ids="-".join)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A target and a draft of the same shape whose weights are near, so that some drafts are kept and some fall."""
    format, family = request.param
    folder = tmp_path_factory.mktemp("pairs") / "pair"
    return load(export_tiny_pair(folder, family=family, target_format=format, draft_format="int4", seed=5))


@pytest.fixture(scope="module")
def unrelated(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A draft that knows nothing of its target: nearly everything it drafts falls."""
    folder = tmp_path_factory.mktemp("pairs") / "unrelated"
    return load(export_tiny_pair(folder, target_format="w8a8", seed=5, draft_seed=6, trim=300))


def tokens(engine: Engine, prompt: str, **ask: object) -> list[int]:
    engine.generate(prompt, max_new_tokens=48, **ask)
    return engine.last.tokens


def test_self_test_finds_no_difference(engine: Engine) -> None:
    assert engine.identity.bit_identical
    assert str(engine.identity) == "bit-identical"


@pytest.mark.parametrize("mode", SPECULATIVE)
def test_greedy_equals_plain(engine: Engine, mode: str) -> None:
    for prompt in PROMPTS:
        assert tokens(engine, prompt, mode=mode) == tokens(engine, prompt, mode="plain")


@pytest.mark.parametrize("mode", SPECULATIVE)
def test_greedy_equals_plain_with_an_unrelated_draft(unrelated: Engine, mode: str) -> None:
    for prompt in PROMPTS:
        assert tokens(unrelated, prompt, mode=mode) == tokens(unrelated, prompt, mode="plain")


@pytest.mark.parametrize("mode", SPECULATIVE)
@pytest.mark.parametrize("seed", range(3))
def test_seeded_sampling_equals_plain(unrelated: Engine, mode: str, seed: int) -> None:
    ask = {"temperature": 1.1, "top_p": 0.95, "repetition_penalty": 1.1, "seed": seed}
    for prompt in PROMPTS:
        assert tokens(unrelated, prompt, mode=mode, **ask) == tokens(unrelated, prompt, mode="plain", **ask)


def test_another_seed_is_another_answer(unrelated: Engine) -> None:
    answers = {tuple(tokens(unrelated, "x", temperature=1.0, seed=seed)) for seed in range(5)}
    assert len(answers) == 5


@pytest.mark.parametrize("length", range(1, 17))
def test_any_draft_length_equals_plain(unrelated: Engine, length: int) -> None:
    """Scripted drafts, half right and half wrong, of every length."""
    plain = tokens(unrelated, "the rain in the", mode="plain")
    unrelated.generate(
        "the rain in the", max_new_tokens=48, mode="suffix", suffix=ScriptedProposer(plain, length)
    )
    assert unrelated.last.tokens == plain
    assert unrelated.last.statistics.accepted > 0


def test_a_draft_equal_to_its_target_is_always_kept(tmp_path: Path) -> None:
    engine = load(export_tiny_pair(tmp_path / "same", target_format="fp32", draft_format="fp32", seed=5))
    tokens(engine, "the rain", mode="draft")
    statistics = engine.last.statistics
    assert statistics.drafted > 0
    assert statistics.acceptance_rate == 1.0
