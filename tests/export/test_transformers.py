"""Exported float32 graphs against transformers' own models, where that is installed."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.families import FAMILIES
from support.graphs import GraphRunner
from support.tiny import TinyCheckpoint, export_model, tiny_checkpoint

from specdec_onnx.export.checkpoint import open_checkpoint
from specdec_onnx.export.graph.architecture import read_architecture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = [int(token) for token in np.random.default_rng(5).integers(1, 380, 40)]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    """Prefill, then one token at a time, then chunks as verification feeds them; past the window where one is."""
    family, sizes = FAMILIES[name]
    checkpoint = tiny_checkpoint(family, seed=3, **sizes)
    context = 64 if name == "phi3 short text" else 128
    runner = GraphRunner(export_model(checkpoint, tmp_path / "model", format="fp32", context=context))
    with torch.no_grad():
        expected = their_model(checkpoint)(torch.tensor([TOKENS])).logits[0].numpy()
    assert expected.std() > 0.5
    for cuts in ([40], [1] * 40, [20, 1, 5, 2, 12]):
        runner.length = 0
        rows = [runner.logits(TOKENS[sum(cuts[:at]) :][:size]) for at, size in enumerate(cuts)]
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_folders_say_the_same(name: str, tmp_path: Path) -> None:
    """What transformers writes is read as the config.json that published models have."""
    family, sizes = FAMILIES[name]
    checkpoint = tiny_checkpoint(family, seed=3, **sizes)
    their_model(checkpoint).save_pretrained(tmp_path)
    checkpoint.write_tokenizer(tmp_path)
    saved = open_checkpoint(tmp_path)
    assert read_architecture(saved.config, 128) == read_architecture(checkpoint.config, 128)
    for tensor in checkpoint.names():
        np.testing.assert_array_equal(saved.tensor(tensor), checkpoint.tensor(tensor))


def their_model(checkpoint: TinyCheckpoint) -> Any:
    """The checkpoint in transformers' model of its family, attention in its plainest form."""
    config = transformers.AutoConfig.for_model(**deepcopy(checkpoint.config))  # it writes into it
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tensors = {name: torch.from_numpy(checkpoint.tensor(name)) for name in checkpoint.names()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"} if checkpoint.config["tie_word_embeddings"] else not missing
    return model.eval().float()
