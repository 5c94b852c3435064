"""ONNX Runtime GenAI opens each family's folder and says the same, where it is installed."""

from pathlib import Path

import numpy as np
import pytest
from support.families import FAMILIES
from support.tiny import export_tiny

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.model.decoder import Decoder

genai = pytest.importorskip("onnxruntime_genai")

PROMPT = np.random.default_rng(1).integers(0, 380, 12)
LENGTH = 32


@pytest.mark.parametrize("name", FAMILIES)
def test_same_greedy_tokens(name: str, tmp_path: Path) -> None:
    family, sizes = FAMILIES[name]
    folder = export_tiny(tmp_path / "model", family, "int4", seed=4, **sizes)
    assert theirs(folder) == ours(folder)[: len(theirs(folder))]


def ours(folder: Path) -> list[int]:
    decoder = Decoder.open(open_model(folder), capacity=64)
    tokens, row = [], decoder.forward(PROMPT.tolist())[-1]
    while len(tokens) < LENGTH:
        tokens.append(int(row.argmax()))
        row = decoder.forward(tokens[-1:])[0]
    return tokens


def theirs(folder: Path) -> list[int]:
    """LENGTH tokens, or as many as come before an end token."""
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=64, do_sample=False)
    generator, tokens = genai.Generator(model, parameters), []
    generator.append_tokens(PROMPT[None].astype(np.int32))
    while not generator.is_done() and len(tokens) < LENGTH:
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    assert len(tokens) > 5
    return tokens
