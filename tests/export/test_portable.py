"""The portable graph: traced by Optimum, quantized by us, run with a growing cache as exactly as the fused one."""

from pathlib import Path

import numpy as np
import pytest
from support.reference import reference_logits
from support.tiny import export_model, tiny_checkpoint
from support.tiny_tokenizer import write_tokenizer

from specdec_onnx.export.cli import main
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.spec import Options
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.model.decoder import Decoder

pytest.importorskip("optimum.exporters.onnx", exc_type=ImportError)

TOKENS = np.random.default_rng(5).integers(0, 380, 40).tolist()
PROMPTS = ("the rain in the", "aaaa bbbb aaaa bbbb aaaa", "Tea for two, two for tea. Tea for")


def test_logits_equal_numpy(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint("llama", seed=3, tie_word_embeddings=False)
    out = export_model(checkpoint, tmp_path / "model", format="fp32", graph="portable")
    expected = reference_logits(checkpoint.config, checkpoint.tensors, TOKENS)
    decoder = Decoder.open(open_model(out), capacity=64, exact=True)
    for cuts in ([40], [7, 1, 16, 2, 14]):
        decoder.rollback(0)
        rows = [decoder.forward(TOKENS[decoder.length :][:size]).copy() for size in cuts]
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-4)
    assert {path.name for path in out.iterdir() if path.name.startswith(".")} == set()


@pytest.fixture(scope="module", params=["fp32", "w8a8", "int4"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder, tiny = tmp_path_factory.mktemp("portable") / "pair", tiny_checkpoint("qwen2", seed=5)
    return load(export_pair(tiny, tiny, folder, Options(target_format=request.param, graph="portable")))


@pytest.mark.parametrize("mode", ["suffix", "draft", "auto"])
def test_speculation_equals_plain(engine: Engine, mode: str) -> None:
    assert engine.identity.bit_identical
    for prompt in PROMPTS:
        found = []
        for one in (mode, "plain"):
            engine.generate(prompt, max_new_tokens=32, mode=one)
            found.append(engine.last.tokens)
        assert found[0] == found[1]


def test_a_family_that_only_optimum_knows(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(
        vocab_size=384, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    source = tmp_path / "source"
    transformers.GPTNeoXForCausalLM(config).save_pretrained(source)
    write_tokenizer(source, 384)
    with pytest.raises(SpecdecError, match="gpt_neox") as caught:
        export_model(source, tmp_path / "out")
    assert "--graph portable" in str(caught.value)
    command = [str(source), "--draft", "none", "-o", str(tmp_path / "out"), "--graph", "portable"]
    assert main(command) == 0
    engine = load(tmp_path / "out")
    engine.generate("tea for two, tea for", max_new_tokens=8)
    assert engine.identity.bit_identical


def test_what_optimum_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tiny_checkpoint("llama")
    checkpoint.config["model_type"] = "mamba9"
    with pytest.raises(SpecdecError, match="Optimum cannot export"):
        export_model(checkpoint, tmp_path / "out", graph="portable")
    assert not (tmp_path / "out").exists()


def test_frequency_tensors_are_refused(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint("llama", rope_freq_factors=[1.0] * 8)
    with pytest.raises(SpecdecError, match="portable"):
        export_model(checkpoint, tmp_path / "out", graph="portable")
