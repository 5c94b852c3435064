"""A halved cache: half the bytes, nearly the same logits, still exact."""

from pathlib import Path

import numpy as np
import pytest
from support.tiny import export_tiny, export_tiny_pair, tiny_checkpoint

from specdec_onnx.export.graph.half_cache import halve_cache
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.spec import Options
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.pair import open_pair
from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.machine.footprint import predict
from specdec_onnx.runtime.machine.self_test import settle_padding
from specdec_onnx.runtime.model.decoder import Decoder


@pytest.mark.parametrize("format", ["fp32", "int4", "w8a8"])
def test_the_cache_is_halved_and_the_logits_stay_near(tmp_path: Path, format: str) -> None:
    folder = export_tiny(tmp_path / "tiny", format=format, seed=3)
    text = np.random.default_rng(0).integers(0, 380, 40).tolist()
    whole = Decoder.open(open_model(folder), capacity=64, half_cache=False)
    expected = whole.forward(text).copy()
    halve_cache(folder)
    model = open_model(folder)
    halved = Decoder.open(model, capacity=64, exact=True)
    assert halved.cache.nbytes * 2 == whole.cache.nbytes
    assert predict(model, 64).cache == halved.cache.nbytes
    found = halved.forward(text)
    assert 0 < np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * expected.std()
    assert settle_padding(halved).max_difference < 0.5


@pytest.mark.parametrize("family", ["qwen3", "olmo2", "smollm3", "gemma2"])
def test_families_whose_attention_reads_more_inputs_or_fewer(tmp_path: Path, family: str) -> None:
    sizes = {"num_hidden_layers": 4, "seed": 3}
    text = np.random.default_rng(0).integers(0, 380, 30).tolist()
    folder = export_tiny(tmp_path / "tiny", family, **sizes)
    expected = Decoder.open(open_model(folder), capacity=64, half_cache=False).forward(text).copy()
    halve_cache(folder)
    found = Decoder.open(open_model(folder), capacity=64).forward(text)
    assert 0 < np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * expected.std()


def test_a_pair_is_exported_with_half_a_cache(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    caches = {}
    for cache in ("fp32", "fp16"):
        options = Options(cache=cache, trim=300)  # type: ignore[arg-type]
        pair = open_pair(export_pair(checkpoint, checkpoint, tmp_path / cache, options))
        assert pair.draft is not None
        caches[cache] = [
            Decoder.open(model, capacity=64, half_cache=False).cache.nbytes
            for model in (pair.target, pair.draft)
        ]
        assert pair.draft.facts.get("cache", "fp32") == cache
    assert [2 * size for size in caches["fp16"]] == caches["fp32"]


def test_a_prebuilt_graph_keeps_its_cache(tmp_path: Path) -> None:
    prebuilt = export_tiny(tmp_path / "prebuilt")
    with pytest.raises(SpecdecError, match="cache cannot be fp16"):
        export_pair(prebuilt, None, tmp_path / "out", Options(cache="fp16"))


def test_speculation_with_halved_caches_equals_plain_decoding(tmp_path: Path) -> None:
    pair = export_tiny_pair(tmp_path / "pair", target_format="int4", seed=5)
    for role in ("target", "draft"):
        halve_cache(pair / role)
    engine = load(pair, context=128)
    assert engine.identity.bit_identical
    answers = set()
    for mode in engine.modes:
        engine.generate("aaaa bbbb aaaa bbbb", mode=mode, max_new_tokens=40)
        answers.add(tuple(engine.last.tokens))
    assert len(answers) == 1
