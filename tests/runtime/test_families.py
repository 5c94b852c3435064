"""Every family's features keep exactness: windows, soft-caps, norms of heads, layers without rotary embedding."""

from pathlib import Path

import numpy as np
import pytest
from support.families import FAMILIES
from support.tiny import export_tiny, export_tiny_pair

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.model.decoder import Decoder

CUTS = ([1] * 48, [7, 1, 16, 2, 14, 8], [5, 3, 40])


@pytest.mark.parametrize("format", ["fp32", "w8a8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_any_cut_gives_the_same_bits(name: str, format: str, tmp_path: Path) -> None:
    family, sizes = FAMILIES[name]
    model = open_model(export_tiny(tmp_path / "model", family, format, seed=2, **sizes))
    decoder = Decoder.open(model, capacity=64, exact=True)
    tokens = np.random.default_rng(3).integers(0, model.vocab_size, 48).tolist()
    whole = decoder.forward(tokens).copy()
    for cuts in CUTS:
        decoder.rollback(0)
        for size in cuts:
            at = decoder.length
            np.testing.assert_array_equal(decoder.forward(tokens[at : at + size]), whole[at : at + size])


@pytest.mark.parametrize("name", FAMILIES)
def test_speculation_equals_plain(name: str, tmp_path: Path) -> None:
    family, sizes = FAMILIES[name]
    pair = export_tiny_pair(tmp_path / "pair", family=family, target_sizes=sizes, seed=5, trim=300)
    engine = load(pair)
    on = dict.fromkeys(engine.pair.target.eos_token_ids, -100.0)
    found = {}
    for mode in ("plain", "draft", "auto"):
        engine.generate("Tea for two, two for tea. Tea for", max_new_tokens=24, mode=mode, logit_bias=on)
        found[mode] = engine.last.tokens
    assert engine.identity.bit_identical
    assert all(tokens == found["plain"] for tokens in found.values())
    assert len(found["plain"]) == 24
