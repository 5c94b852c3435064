"""Which drafts fit which targets, and the ways to name a pair."""

import time
from pathlib import Path

import pytest
from support.folders import SPECIAL, byte_level_tokenizer, write_json, write_model_folder
from tokenizers import Tokenizer, models

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, open_model
from specdec_onnx.models.pair import misfits, open_pair


def compared(tmp_path: Path, target: Tokenizer, draft: Tokenizer, **config: int) -> list[str]:
    write_model_folder(tmp_path / "target", target)
    write_model_folder(tmp_path / "draft", draft, **config)
    return misfits(open_model(tmp_path / "target"), open_model(tmp_path / "draft"))


def test_equal_tokenizers_fit(tmp_path: Path) -> None:
    assert compared(tmp_path, byte_level_tokenizer(["ab"]), byte_level_tokenizer(["ab"])) == []


def test_padded_widths_may_differ(tmp_path: Path) -> None:
    assert compared(tmp_path, byte_level_tokenizer(), byte_level_tokenizer(), vocab_size=1344) == []


def test_differing_ids_are_counted_and_shown(tmp_path: Path) -> None:
    found = compared(tmp_path, byte_level_tokenizer(["ab"]), byte_level_tokenizer(["xy"]))
    assert found == ['1 of 260 ids differ: token 256 is "ab" in the target but "xy" in the draft']


def test_only_the_first_few_are_listed(tmp_path: Path) -> None:
    found = compared(tmp_path, byte_level_tokenizer(["abcdef"]), byte_level_tokenizer(["uvwxyz"]))
    (problem,) = found
    assert problem.startswith("5 of 264 ids differ: token 256 ")
    assert problem.endswith("; and 2 more")


def test_moved_special_token_is_named(tmp_path: Path) -> None:
    moved = [SPECIAL[0], SPECIAL[2], SPECIAL[1]]
    found = compared(tmp_path, byte_level_tokenizer(), byte_level_tokenizer(special=moved))
    assert "special token <|im_end|> has id 258 in the target but 257 in the draft" in found
    assert "special token <|im_start|> has id 257 in the target but 258 in the draft" in found


def test_draft_tokens_beyond_the_target_are_a_problem(tmp_path: Path) -> None:
    found = compared(tmp_path, byte_level_tokenizer(), byte_level_tokenizer(special=[*SPECIAL, "<|more|>"]))
    (problem,) = found
    assert problem == ("1 of the draft's ids are outside the target's vocabulary of 259: 259 is \"<|more|>\"")


def test_the_target_may_have_further_tokens(tmp_path: Path) -> None:
    target = byte_level_tokenizer(special=[*SPECIAL, "<|more|>"])
    assert compared(tmp_path, target, byte_level_tokenizer()) == []


def test_a_hole_in_the_target_is_a_problem(tmp_path: Path) -> None:
    def with_last(ids: list[int]) -> Tokenizer:
        return Tokenizer(models.BPE(vocab={chr(97 + i): i for i in ids}, merges=[]))

    found = compared(tmp_path, with_last([0, 1, 3]), with_last([0, 1, 2, 3]))
    assert found == ['1 of 4 ids differ: token 2 is nothing in the target but "c" in the draft']


def test_halves_of_a_character_are_told_apart(tmp_path: Path) -> None:
    found = compared(tmp_path, byte_level_tokenizer(["åä"]), byte_level_tokenizer(["åå"]))
    (problem,) = found
    assert '"åä"' in problem and '"åå"' in problem


def test_other_merges_do_not_matter(tmp_path: Path) -> None:
    words = byte_level_tokenizer(["de"]).get_vocab(with_added_tokens=False)
    lazy = byte_level_tokenizer(["de"])
    lazy.model = models.BPE(vocab=words, merges=[])
    assert compared(tmp_path, byte_level_tokenizer(["de"]), lazy) == []


def test_end_of_text_and_template_may_differ(tmp_path: Path) -> None:
    raw = byte_level_tokenizer()
    write_model_folder(tmp_path / "draft", raw).joinpath("chat_template.jinja").write_text("x")
    assert compared(tmp_path, raw, raw, eos_token_id=256, bos_token_id=256) == []


def test_large_vocabularies_compare_quickly(tmp_path: Path) -> None:
    def wide(last: str) -> ModelFolder:
        vocabulary = {f"t{i}": i for i in range(151_642)} | {last: 151_642}
        raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        return open_model(write_model_folder(tmp_path / last, raw, vocab_size=151_936))

    target, draft = wide("one"), wide("two")
    assert target.tokenizer.raw and draft.tokenizer.raw
    start = time.perf_counter()
    found = misfits(target, draft)
    assert time.perf_counter() - start < 2, "0.3 s on an idle core; the bound leaves room for a busy machine"
    assert found == ['1 of 151,643 ids differ: token 151642 is "one" in the target but "two" in the draft']


def write_pair(path: Path, draft: Tokenizer | None = None) -> Path:
    write_model_folder(path / "target")
    write_model_folder(path / "draft", draft)
    names = {
        "decoder": {"filename": "target/onnx/model.onnx"},
        "draft": {"filename": "draft/onnx/model.onnx"},
    }
    write_json(path / "genai_config.json", {"model": names})
    return path


def test_pair_folder(tmp_path: Path) -> None:
    pair = open_pair(write_pair(tmp_path))
    assert pair.draft is not None
    assert (pair.target.path, pair.draft.path) == (tmp_path / "target", tmp_path / "draft")
    assert pair.target.graph == tmp_path / "target/onnx/model.onnx"


def test_pair_folder_by_its_subfolders_alone(tmp_path: Path) -> None:
    (write_pair(tmp_path) / "genai_config.json").unlink()
    pair = open_pair(tmp_path)
    assert pair.draft is not None and pair.draft.path.name == "draft"


def test_single_model_and_separate_draft(tmp_path: Path) -> None:
    target = write_model_folder(tmp_path / "a")
    draft = write_model_folder(tmp_path / "b")
    assert open_pair(target).draft is None
    both = open_pair(target, draft)
    assert both.draft is not None and both.draft.path == draft


def test_a_given_draft_replaces_the_pairs_own(tmp_path: Path) -> None:
    pair = open_pair(write_pair(tmp_path / "pair"), write_model_folder(tmp_path / "other"))
    assert pair.draft is not None and pair.draft.path.name == "other"


def test_flat_genai_pair(tmp_path: Path) -> None:
    write_model_folder(tmp_path, graph="model.onnx")
    write_model_folder(tmp_path, graph="draft/model.onnx")
    names = {"decoder": {"filename": "model.onnx"}, "draft": {"filename": "draft/model.onnx"}}
    write_json(tmp_path / "genai_config.json", {"model": names})
    pair = open_pair(tmp_path)
    assert pair.draft is not None
    assert (pair.target.path, pair.draft.path) == (tmp_path, tmp_path)
    assert pair.draft.graph == tmp_path / "draft/model.onnx"


def test_misfits_are_refused_with_the_reason(tmp_path: Path) -> None:
    write_pair(tmp_path, byte_level_tokenizer(["zz"]))
    with pytest.raises(SpecdecError, match="draft cannot draft for target") as caught:
        open_pair(tmp_path)
    assert "token 256 is" in caught.value.why and caught.value.fix


def test_pair_that_names_a_missing_or_outside_graph(tmp_path: Path) -> None:
    write_pair(tmp_path)
    (tmp_path / "draft/onnx/model.onnx").unlink()
    with pytest.raises(SpecdecError, match="but it is missing"):
        open_pair(tmp_path)
    names = {"decoder": {"filename": "target/onnx/model.onnx"}, "draft": {"filename": "../x.onnx"}}
    write_json(tmp_path / "genai_config.json", {"model": names})
    with pytest.raises(SpecdecError, match="outside itself"):
        open_pair(tmp_path)


def test_a_pair_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="it holds a pair"):
        open_model(write_pair(tmp_path))


def test_the_draft_of_a_single_model_may_be_named_from_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    write_model_folder(tmp_path / "target")
    write_model_folder(tmp_path / "draft")
    pair = open_pair(tmp_path / "target", "~/draft")
    assert pair.draft is not None and pair.draft.path == tmp_path / "draft"
