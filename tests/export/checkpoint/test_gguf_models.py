"""The catalog's own GGUF files, read whole."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.mixed_text import MIXED, own_sources, random_texts
from support.slow_bpe import SlowBpe
from tokenizers import Tokenizer

from specdec_onnx.export.checkpoint import Checkpoint, open_checkpoint
from specdec_onnx.models.catalog import lookup
from specdec_onnx.models.download import fetch

SMOLLM_IDS = {
    "Hello": [19556],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "def fibonacci(n):": [1604, 3987, 46477, 24, 94, 727],
}
"""As the original model's tokenizer encodes them."""

QWEN_IDS = {
    "Hello world": [9707, 1879],
    " Hello world": [21927, 1879],
    "\n\n": [271],
    "<|im_start|>user\n": [151644, 872, 198],
}
"""As the original model's tokenizer encodes them."""


@pytest.fixture(scope="module")
def smollm() -> Checkpoint:
    return open_checkpoint(fetch(lookup("smollm2-135m").target))


def rebuilt(checkpoint: Checkpoint, folder: Path) -> tuple[Tokenizer, SlowBpe]:
    checkpoint.write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    whole = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
    kind = "smollm" if checkpoint.config["model_type"] == "llama" else "qwen2"
    return tokenizer, SlowBpe(kind, model["vocab"] | whole, model["merges"], whole)


def same_ids(tokenizer: Tokenizer, reference: SlowBpe) -> bool:
    texts = [*MIXED, *own_sources(), *random_texts(500)]
    return all(tokenizer.encode(text).ids == reference.encode(text) for text in texts)


@pytest.mark.integration
def test_smollm_is_read(smollm: Checkpoint) -> None:
    assert smollm.config | {"hidden_size": 576, "num_key_value_heads": 3, "head_dim": 64} == smollm.config
    assert smollm.config | {"rope_theta": 1e5, "rms_norm_eps": 1e-5, "vocab_size": 49152} == smollm.config
    assert smollm.config["tie_word_embeddings"]
    assert len(smollm.names()) == 272
    assert smollm.source.sha256 == lookup("smollm2-135m").target.sha256
    for name in sorted(smollm.names())[::9]:
        values = smollm.tensor(name)
        assert values.shape == smollm.shape(name)
        assert np.isfinite(values).all()


@pytest.mark.integration
def test_smollm_tokenizer(smollm: Checkpoint, tmp_path: Path) -> None:
    tokenizer, reference = rebuilt(smollm, tmp_path)
    assert {text: tokenizer.encode(text).ids for text in SMOLLM_IDS} == SMOLLM_IDS
    assert same_ids(tokenizer, reference)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert tokenizer.get_vocab_size() == 49152


@pytest.mark.large
def test_qwen_tokenizer(tmp_path: Path) -> None:
    draft = lookup("qwen2.5-coder-1.5b").draft
    assert draft is not None
    tokenizer, reference = rebuilt(open_checkpoint(fetch(draft)), tmp_path)
    assert {text: tokenizer.encode(text).ids for text in QWEN_IDS} == QWEN_IDS
    assert same_ids(tokenizer, reference)
    assert tokenizer.get_vocab_size() == 151_665
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [151645, 151643]
