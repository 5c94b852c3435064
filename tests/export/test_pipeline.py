"""Whole folders: what lies in them, that it is the same each time, and what is refused."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny import TinyCheckpoint, export_model, export_tiny, export_tiny_pair, tiny_checkpoint

from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.export.spec import Options
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.pair import open_pair


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "report.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_model_folder_says_what_it_is(tmp_path: Path) -> None:
    model = open_model(export_tiny(tmp_path / "model", "llama", "w8a8"))
    assert model.model_type == "llama"
    assert model.vocab_size == 384
    assert model.eos_token_ids == (383, 381)
    assert model.chat_template
    assert model.graph == tmp_path / "model" / "onnx" / "model.onnx"
    assert model.facts["format"] == "w8a8"
    assert len(model.facts["source"]["sha256"]) == 64
    assert model.weight_bytes > 100_000


def test_genai_config_names_the_graph(tmp_path: Path) -> None:
    config = json.loads((export_tiny(tmp_path / "model") / "genai_config.json").read_text())
    decoder = config["model"]["decoder"]
    assert (tmp_path / "model" / decoder["filename"]).is_file()
    assert config["model"]["type"] == "qwen2"
    assert config["model"]["eos_token_id"] == [383, 381]
    sizes = ("head_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")
    assert [decoder[size] for size in sizes] == [16, 64, 4, 2, 2]
    assert config["search"]["past_present_share_buffer"] is True


def test_a_pair_folder_opens(tmp_path: Path) -> None:
    folder = export_tiny_pair(tmp_path / "pair", draft_sizes={"num_hidden_layers": 1}, trim=300)
    pair = open_pair(folder)
    assert pair.draft is not None
    assert pair.target.facts["format"] == "w8a8"
    assert pair.draft.facts["format"] == "int4-128"
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    assert (folder / config["decoder"]["filename"]) == pair.target.graph
    assert (folder / config["draft"]["filename"]) == pair.draft.graph
    assert config["draft"]["num_hidden_layers"] == 1
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize("format", ["fp32", "w8a8", "int4", "int8"])
def test_the_same_source_gives_the_same_bytes(format: str, tmp_path: Path) -> None:
    first = digests(export_tiny_pair(tmp_path / "a", target_format=format, draft_format=format, trim=300))
    second = digests(export_tiny_pair(tmp_path / "b", target_format=format, draft_format=format, trim=300))
    assert first == second
    assert len(first) > 20


def test_rotary_tables_stop_at_the_context(tmp_path: Path) -> None:
    short = export_model(tiny_checkpoint(), tmp_path / "short", context=64)
    assert json.loads((short / "genai_config.json").read_text())["model"]["context_length"] == 64
    assert open_model(short).facts["context_length"] == 64


def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    checkpoint = tiny_checkpoint()
    export_pair(
        checkpoint,
        checkpoint,
        tmp_path / "pair",
        Options(trim=None),
        progress=lambda *step: seen.append(step),
    )
    done = [step[1] for step in seen]
    assert done == sorted(done)
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2] == 8
    assert {what.split(":")[0] for what, _, _ in seen} == {"target", "draft"}


def broken(**sizes: Any) -> TinyCheckpoint:
    return tiny_checkpoint(**sizes)


def without(name: str) -> TinyCheckpoint:
    whole = tiny_checkpoint()
    return replace(whole, tensors={key: values for key, values in whole.tensors.items() if key != name})


def changed(name: str, values: np.ndarray[Any, Any]) -> TinyCheckpoint:
    whole = tiny_checkpoint()
    return replace(whole, tensors={**whole.tensors, name: values.astype(np.float32)})


def configured(**keys: Any) -> TinyCheckpoint:
    whole = tiny_checkpoint()
    return replace(whole, config={**whole.config, **keys})


UP = "model.layers.1.mlp.up_proj.weight"
REFUSED = {
    "cannot export a model of type 'mamba'": lambda: configured(model_type="mamba"),
    "cannot export a model of type 'None'": lambda: configured(model_type=None),
    f"lacks tensor {UP}": lambda: without(UP),
    "lacks tensor lm_head.weight": lambda: configured(tie_word_embeddings=False),
    "has shape": lambda: changed(UP, np.ones((96, 63))),
    "NaN": lambda: changed(UP, np.full((96, 64), np.nan)),
    "hidden_size is None": lambda: configured(hidden_size=None),
    "num_hidden_layers is 0": lambda: configured(num_hidden_layers=0),
    "activation 'relu'": lambda: configured(hidden_act="relu"),
    "layer_types": lambda: configured(layer_types=["chunked_attention"]),
    "rope scaling 'spiral'": lambda: configured(rope_scaling={"rope_type": "spiral"}),
    "rope scaling 'llama3' is incomplete": lambda: configured(
        rope_scaling={"rope_type": "llama3", "factor": 2.0}
    ),
    "the tokenizer has 390 tokens": lambda: replace(tiny_checkpoint(), spare_rows=-6),
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_unusable_source_leaves_nothing(message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError) as caught:
        export_model(REFUSED[message](), tmp_path / "model")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_draft_of_another_vocabulary_is_refused_before_the_work(tmp_path: Path) -> None:
    steps: list[int] = []
    target, draft = tiny_checkpoint(), tiny_checkpoint(vocab_size=400)
    with pytest.raises(SpecdecError):
        export_pair(target, draft, tmp_path / "pair", progress=lambda _, done, __: steps.append(done))
    assert steps == []
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_model(tiny_checkpoint(), tmp_path / "model", progress=interrupt)
    assert list(tmp_path.iterdir()) == []
