"""A halved cache: half the bytes, nearly the same logits, still exact."""

from pathlib import Path

import numpy as np
import pytest
from support.tiny import export_tiny, export_tiny_pair

from specdec_onnx.export.half_cache import halve_cache
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.decoder import Decoder
from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.footprint import predict
from specdec_onnx.runtime.selftest import settle_padding


@pytest.mark.parametrize("format", ["fp32", "int4", "w8a8"])
def test_the_cache_is_halved_and_the_logits_stay_near(tmp_path: Path, format: str) -> None:
    folder = export_tiny(tmp_path / "tiny", format=format, seed=3)
    text = np.random.default_rng(0).integers(0, 380, 40).tolist()
    whole = Decoder.open(open_model(folder), capacity=64)
    expected = whole.forward(text).copy()
    halve_cache(folder)
    model = open_model(folder)
    halved = Decoder.open(model, capacity=64, exact=True)
    assert halved.cache.nbytes * 2 == whole.cache.nbytes
    assert predict(model, 64).cache == halved.cache.nbytes
    found = halved.forward(text)
    assert 0 < np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * expected.std()
    assert settle_padding(halved).max_difference < 0.5


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
