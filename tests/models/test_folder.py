"""Model folders of every layout we read, and one clear error for each way they can be wrong."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.folders import byte_level_tokenizer, write_json, write_model_folder
from tokenizers.processors import TemplateProcessing

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.runtime.machine.footprint import predict
from specdec_onnx.runtime.text.prompt import prompt_tokens


def test_our_layout(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    write_json(folder / "generation_config.json", {"eos_token_id": [258, 256], "bos_token_id": 256})
    write_json(folder / "tokenizer_config.json", {"eos_token": {"content": "<|im_start|>"}})
    write_json(folder / "specdec.json", {"format": "w8a8", "trimmed_vocabulary": [[0, 3], [256, 258]]})
    model = open_model(str(folder))
    assert (model.name, model.model_type, model.vocab_size, model.context_length) == ("m", "qwen2", 320, 128)
    assert model.eos_token_ids == (258, 256, 257)
    assert model.bos_token_id == 256
    assert model.graph == folder / "onnx" / "model.onnx"
    assert model.trimmed_vocabulary is not None
    assert model.trimmed_vocabulary.tolist() == [0, 1, 2, 256, 257]
    assert model.tokenizer is model.tokenizer


def test_bare_folder_has_no_template_no_bos_and_a_whole_head(tmp_path: Path) -> None:
    model = open_model(write_model_folder(tmp_path))
    assert (model.chat_template, model.bos_token_id, model.trimmed_vocabulary) == (None, None, None)
    assert not model.adds_bos
    assert model.facts == {}


def test_bos_is_added_when_the_post_processor_does(tmp_path: Path) -> None:
    raw = byte_level_tokenizer()
    raw.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    folder = write_model_folder(tmp_path, raw, bos_token_id=256)
    assert open_model(folder).adds_bos
    write_json(folder / "tokenizer_config.json", {"add_bos_token": False})
    assert not open_model(folder).adds_bos


def test_genai_flat_folder_without_config_json(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, graph="model.onnx")
    (folder / "config.json").unlink()
    decoder = {"filename": "model.onnx"}
    model = {
        "type": "llama",
        "vocab_size": 300,
        "context_length": 64,
        "eos_token_id": [257],
        "decoder": decoder,
    }
    write_json(folder / "genai_config.json", {"model": model})
    opened = open_model(folder)
    assert (opened.model_type, opened.vocab_size, opened.context_length) == ("llama", 300, 64)
    assert opened.eos_token_ids == (257,)
    assert opened.graph.name == "model.onnx"


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["onnx/model_q4.onnx", "onnx/model_int8.onnx"], "onnx/model_q4.onnx"),
        (["onnx/model_q4.onnx", "onnx/model.onnx"], "onnx/model.onnx"),
        (["onnx/model_fp16.onnx", "onnx/model_quantized.onnx"], "onnx/model_fp16.onnx"),
        (["onnx/model_uint8.onnx"], "onnx/model_uint8.onnx"),
        (["model.onnx"], "model.onnx"),
    ],
)
def test_graph_is_found_in_hub_layouts(tmp_path: Path, present: list[str], chosen: str) -> None:
    for graph in present:
        write_model_folder(tmp_path, graph=graph)
    assert open_model(tmp_path).graph == tmp_path / chosen


def test_a_graph_may_be_named_itself(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    write_model_folder(tmp_path, graph="onnx/model_q4.onnx")
    opened = open_model(tmp_path / "onnx" / "model_q4.onnx")
    assert (opened.path, opened.graph.name) == (tmp_path, "model_q4.onnx")


def test_weight_bytes_count_the_data_the_graph_names(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "onnx/model.onnx").write_bytes(b"...location.weights.bin...")
    (folder / "onnx/weights.bin").write_bytes(bytes(1000))
    (folder / "onnx/unrelated.bin").write_bytes(bytes(5000))
    assert open_model(folder).weight_bytes == 26 + 1000


def test_chat_template_file_goes_before_the_config(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": named})
    assert open_model(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert open_model(folder).chat_template == "J"


@pytest.mark.parametrize(
    "name",
    [
        "../model.onnx",
        "/etc/model.onnx",
        "a/../../model.onnx",
        "..\\model.onnx",
        "C:\\model.onnx",
        "\\m.onnx",
    ],
)
def test_named_graph_may_not_escape(tmp_path: Path, name: str) -> None:
    folder = write_model_folder(tmp_path / "m")
    (tmp_path / "model.onnx").write_bytes(b"outside")
    write_json(folder / "genai_config.json", {"model": {"decoder": {"filename": name}}})
    with pytest.raises(SpecdecError, match="names a file outside itself"):
        open_model(folder)


def test_links_inside_the_folder_may_lead_out(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "snapshot")
    blob = tmp_path / "blob"
    (folder / "onnx/model.onnx").rename(blob)
    (folder / "onnx/model.onnx").symlink_to(blob)
    write_json(folder / "genai_config.json", {"model": {"decoder": {"filename": "onnx/model.onnx"}}})
    assert open_model(folder).graph.read_bytes() == b"placeholder"


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    with pytest.raises(SpecdecError, match="nothing is there"):
        open_model(tmp_path / "absent")
    with pytest.raises(SpecdecError, match="it is a file"):
        open_model(folder / "config.json")
    write_json(folder / "genai_config.json", {"model": {"decoder": {"filename": "onnx/other.onnx"}}})
    with pytest.raises(SpecdecError, match=r"names onnx/other\.onnx, which is missing"):
        open_model(folder)
    (folder / "genai_config.json").unlink()
    (folder / "onnx/model.onnx").unlink()
    with pytest.raises(SpecdecError, match="no ONNX graph"):
        open_model(folder)


@pytest.mark.parametrize(("content", "says"), [("{", "not valid JSON"), ("[1]", "not a JSON object")])
def test_broken_json(tmp_path: Path, content: str, says: str) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "config.json").write_text(content)
    with pytest.raises(SpecdecError, match=says):
        open_model(folder)


def test_missing_config_and_missing_number(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, vocab_size="many")
    with pytest.raises(SpecdecError, match="no usable vocab_size"):
        _ = open_model(folder).vocab_size
    (folder / "config.json").unlink()
    with pytest.raises(SpecdecError, match=r"no config\.json"):
        open_model(folder)


WRONG = [
    ("config.json", {"vocab_size": "many"}, "vocab_size"),
    ("config.json", {"vocab_size": True}, "vocab_size"),
    ("config.json", {"vocab_size": 320, "max_position_embeddings": 1e3}, "max_position_embeddings"),
    ("config.json", {"eos_token_id": "end"}, "eos_token_id"),
    ("config.json", {"hidden_size": "wide"}, "hidden_size"),
    ("generation_config.json", {"eos_token_id": [1, None]}, "eos_token_id"),
    ("generation_config.json", {"eos_token_id": {"id": 3}}, "eos_token_id"),
    ("generation_config.json", {"bos_token_id": 1.5}, "bos_token_id"),
    ("generation_config.json", {"bos_token_id": -1}, "bos_token_id"),
    ("tokenizer_config.json", {"eos_token": 7}, "eos_token"),
    ("tokenizer_config.json", {"bos_token": ["<s>"]}, "bos_token"),
    ("tokenizer_config.json", {"eos_token": {"content": 7}}, "eos_token"),
    ("tokenizer_config.json", {"add_bos_token": "yes"}, "add_bos_token"),
    ("tokenizer_config.json", {"chat_template": 7}, "chat_template"),
    ("tokenizer_config.json", {"chat_template": {"default": "x"}}, "chat_template"),
    ("tokenizer_config.json", {"chat_template": ["x"]}, "chat_template"),
    ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": 7}]}, "chat_template"),
    ("specdec.json", {"context_length": "many"}, "context_length"),
    ("specdec.json", {"context_length": [1]}, "context_length"),
    ("specdec.json", {"trimmed_vocabulary": 7}, "trimmed_vocabulary"),
    ("specdec.json", {"trimmed_vocabulary": [[0, "x"]]}, "trimmed_vocabulary"),
    ("specdec.json", {"trimmed_vocabulary": [[0, 1, 2]]}, "trimmed_vocabulary"),
]


@pytest.mark.parametrize(("file", "content", "key"), WRONG)
def test_a_value_of_the_wrong_kind_is_one_error(
    tmp_path: Path, file: str, content: dict[str, Any], key: str
) -> None:
    base = {"vocab_size": 320, "max_position_embeddings": 128} if file == "config.json" else {}
    write_json(write_model_folder(tmp_path) / file, base | content)
    model = open_model(tmp_path)
    with pytest.raises(SpecdecError, match=f"(has no usable|settings say) {key}"):
        use_everything(model)


@pytest.mark.parametrize("key", ["vocab_size", "context_length", "eos_token_id"])
@pytest.mark.parametrize("value", ["many", {"a": 1}, 1.5])
def test_a_genai_folder_with_odd_values_is_one_error(tmp_path: Path, key: str, value: object) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "config.json").unlink()
    model = {"type": 7, "vocab_size": 320, "context_length": 64, "eos_token_id": 1, key: value}
    write_json(folder / "genai_config.json", {"model": model})
    with pytest.raises(SpecdecError, match="has no usable"):
        use_everything(open_model(folder))


def use_everything(model: ModelFolder) -> None:
    """All that the folder is asked for when a model is loaded and answers."""
    _ = (model.name, model.model_type, model.vocab_size, model.context_length, model.eos_token_ids)
    _ = (model.bos_token_id, model.adds_bos, model.chat_template, model.trimmed_vocabulary)
    _ = predict(model, 64)
    _ = prompt_tokens(model, "hi")


def test_a_template_that_is_not_utf8_is_one_error(tmp_path: Path) -> None:
    (write_model_folder(tmp_path) / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    with pytest.raises(SpecdecError, match=r"chat_template\.jinja is not UTF-8"):
        _ = open_model(tmp_path).chat_template


@pytest.mark.parametrize("content", [b"\xff{}", b"[" * 100_000], ids=["not UTF-8", "too deep"])
@pytest.mark.parametrize(
    "file", ["config.json", "genai_config.json", "specdec.json", "tokenizer_config.json"]
)
def test_settings_that_cannot_be_read_are_one_error(tmp_path: Path, file: str, content: bytes) -> None:
    (write_model_folder(tmp_path) / file).write_bytes(content)
    with pytest.raises(SpecdecError, match="not valid JSON"):
        open_model(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="names of bytes")
def test_a_folder_whose_name_is_not_utf_8_is_refused_by_that_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"p\xe9")
    write_model_folder(tmp_path / "m").rename(folder)
    with pytest.raises(SpecdecError, match="cannot be opened") as caught:
        open_model(folder)
    assert "not UTF-8" in caught.value.why
