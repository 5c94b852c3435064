"""Tokens that only the files beside tokenizer.json declare work as transformers would have them."""

from pathlib import Path
from typing import Any

import pytest
from support.folders import byte_level_tokenizer, write_json, write_model_folder
from tokenizers import AddedToken, Tokenizer

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.pair import misfits

FREE = 256
"""The first id behind the bytes."""


def opened(
    path: Path, settings: dict[str, Any] | None = None, raw: Tokenizer | None = None, **others: Any
) -> ModelFolder:
    """A model whose tokenizer.json holds the bytes only; `others` are JSON files by stem."""
    write_model_folder(path, raw or byte_level_tokenizer(special=()), eos_token_id=None)
    for stem, content in ({"tokenizer_config": settings or {}} | others).items():
        write_json(path / f"{stem}.json", content)
    return open_model(path)


def entry(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": True} | plain | flags


def test_tokens_of_the_settings_are_one_id_and_can_end_an_answer(tmp_path: Path) -> None:
    listed = {str(FREE + 1): entry("<|im_end|>"), str(FREE): entry("<|im_start|>")}
    model = opened(tmp_path / "m", {"added_tokens_decoder": listed, "eos_token": "<|im_end|>"})
    assert model.tokenizer.encode("<|im_start|>a<|im_end|>") == [FREE, model.tokenizer.id_of("a"), FREE + 1]
    assert model.eos_token_ids == (FREE + 1,)
    assert model.tokenizer.special_tokens == {"<|im_start|>": FREE, "<|im_end|>": FREE + 1}
    assert model.tokenizer.decode([FREE, FREE + 1]) == ""
    assert model.tokenizer.size == FREE + 2


def test_their_flags_hold(tmp_path: Path) -> None:
    listed = {
        "256": entry("<r>", rstrip=True), "257": entry("<l>", lstrip=True),
        "258": entry("word", single_word=True, special=False), "259": entry("<plain>", special=False),
    }  # fmt: skip
    tokenizer = opened(tmp_path / "m", {"added_tokens_decoder": listed}).tokenizer
    a = tokenizer.id_of("a")
    assert tokenizer.encode("<r> \n a <l>a") == [256, a, 257, a]
    assert tokenizer.encode("word") == [258]
    assert 258 not in tokenizer.encode("words")
    assert tokenizer.decode([256, 258, 259]) == "word<plain>"


def test_the_settings_count_more_than_tokenizer_json_about_the_same_token(tmp_path: Path) -> None:
    raw = byte_level_tokenizer(special=("<|user|>",))
    tokenizer = opened(
        tmp_path / "m", {"added_tokens_decoder": {"256": entry("<|user|>", rstrip=True)}}, raw
    ).tokenizer
    assert tokenizer.encode("<|user|>\n\na") == [256, tokenizer.id_of("a")]


def test_roles_are_read_from_special_tokens_map(tmp_path: Path) -> None:
    roles = {"bos_token": {**entry("<s>"), "special": True}, "eos_token": "</s>"}
    model = opened(tmp_path / "m", special_tokens_map=roles)
    assert (model.bos_token_id, model.eos_token_ids) == (FREE, (FREE + 1,))
    assert model.tokenizer.encode("<s></s>") == [FREE, FREE + 1]
    assert set(model.tokenizer.special_tokens.values()) == {FREE, FREE + 1}
    assert model.tokenizer_config["eos_token"] == "</s>"


def test_a_token_of_the_vocabulary_keeps_its_id_and_becomes_special(tmp_path: Path) -> None:
    raw = byte_level_tokenizer(["<s>", "</s>"], special=())
    model = opened(tmp_path / "m", {"bos_token": "<s>", "eos_token": "</s>"}, raw)
    assert model.tokenizer.encode("a<s>") == [model.tokenizer.id_of("a"), raw.token_to_id("<s>")]
    assert set(model.tokenizer.special_tokens.values()) == {raw.token_to_id("<s>"), raw.token_to_id("</s>")}
    assert model.tokenizer.size == raw.get_vocab_size()


def test_older_folders_list_their_tokens_in_added_tokens_json(tmp_path: Path) -> None:
    model = opened(tmp_path / "m", {"eos_token": "<|b|>"}, added_tokens={"<|b|>": 257, "<|a|>": 256})
    assert model.tokenizer.encode("<|a|><|b|>") == [256, 257]
    assert set(model.tokenizer.special_tokens.values()) == {257}
    assert model.eos_token_ids == (257,)


def test_a_token_that_the_model_has_no_room_for_stays_text(tmp_path: Path) -> None:
    write_model_folder(tmp_path, byte_level_tokenizer(special=()), vocab_size=257, eos_token_id=None)
    listed = {"256": entry("<a>"), "257": entry("<b>"), "9000": entry("<c>")}
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": listed, "pad_token": "[PAD]"})
    tokenizer = open_model(tmp_path).tokenizer
    assert tokenizer.size == 257
    assert tokenizer.encode("<a>") == [256]
    assert tokenizer.decode(tokenizer.encode("<b><c>[PAD]")) == "<b><c>[PAD]"


def test_a_tokenizer_is_shared_only_by_folders_that_declare_the_same(tmp_path: Path) -> None:
    listed = {"added_tokens_decoder": {"256": entry("<a>")}}
    bare, one = opened(tmp_path / "bare"), opened(tmp_path / "one", listed)
    again, nothing_new = (
        opened(tmp_path / "again", listed),
        opened(tmp_path / "same", {"add_bos_token": False}),
    )
    assert one.tokenizer is again.tokenizer
    assert bare.tokenizer is nothing_new.tokenizer
    assert bare.tokenizer is not one.tokenizer
    assert (bare.tokenizer.size, one.tokenizer.size) == (256, 257)


def test_a_declaration_of_what_is_there_already_changes_nothing(tmp_path: Path) -> None:
    raw = byte_level_tokenizer()
    listed = {str(raw.token_to_id(text)): entry(text) for text in ("<|im_start|>", "<|im_end|>")}
    said = opened(tmp_path / "said", {"added_tokens_decoder": listed, "eos_token": "<|im_end|>"}, raw)
    assert said.tokenizer is opened(tmp_path / "bare", raw=byte_level_tokenizer()).tokenizer


def test_a_pair_is_compared_with_what_each_declares(tmp_path: Path) -> None:
    target = opened(tmp_path / "target", {"added_tokens_decoder": {"256": entry("<a>")}})
    draft = opened(tmp_path / "draft", {"added_tokens_decoder": {"256": entry("<b>")}})
    assert misfits(target, target) == []
    assert "1 of 257 ids differ" in misfits(target, draft)[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"added_tokens_decoder": {"300": entry("<a>")}}, "lacks the token <a>"),
        ({"added_tokens_decoder": {"x": entry("<a>")}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"256": 7}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": ["<a>"]}, "added_tokens_decoder"),
        ({"eos_token": 7}, "eos_token: 7"),
        ({"additional_special_tokens": "<a>"}, "additional_special_tokens"),
    ],
)
def test_settings_that_make_no_sense_are_named(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecdecError, match=says):
        opened(tmp_path / "m", settings).tokenizer.encode("a")


def test_a_token_id_that_is_no_number_is_named(tmp_path: Path) -> None:
    model = opened(tmp_path / "m", generation_config={"eos_token_id": ["x"]})
    with pytest.raises(SpecdecError, match="no usable eos_token_id"):
        print(model.eos_token_ids)


def test_a_token_stays_added_beside_others(tmp_path: Path) -> None:
    raw = byte_level_tokenizer(special=("<a>",))
    raw.add_tokens([AddedToken("<b>")])
    model = opened(tmp_path / "m", {"added_tokens_decoder": {"258": entry("<c>")}}, raw)
    assert model.tokenizer.added_ids == [256, 257, 258]
