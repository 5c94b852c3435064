"""Head trimming: which ids stay, and what the graph says about the others."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.graphs import GraphRunner
from support.tiny import TinyCheckpoint, export_tiny, export_tiny_pair

from specdec_onnx.export.graph.vocabulary import Trimming, trim
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.pair import open_pair

TOKENS = [5, 260, 31, 99, 7]


def test_the_first_ids_and_the_special_tokens_are_kept() -> None:
    assert trim(100, [500, 502, 501, 3, 700], 1000) == Trimming(((0, 100), (500, 503), (700, 701)))
    assert trim(100, [100, 101], 1000) == Trimming(((0, 102),))
    assert trim(100, [999, 1000, 2000], 1000) == Trimming(((0, 100), (999, 1000)))


def test_a_count_beyond_the_vocabulary_trims_nothing() -> None:
    assert trim(1000, [], 1000) is None
    assert trim(5000, [4], 1000) is None


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(count: int) -> None:
    with pytest.raises(SpecdecError, match="cannot trim"):
        trim(count, [], 1000)


@pytest.mark.parametrize("format", ["fp32", "w8a8", "int4-128"])
def test_a_trimmed_head_scores_its_ids_like_the_whole_one(format: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 400, "spare_rows": 9}
    whole = GraphRunner(export_tiny(tmp_path / "whole", format=format, **sizes)).logits(TOKENS)
    folder = export_tiny(tmp_path / "trimmed", format=format, trim=300, **sizes)
    ids = open_model(folder).trimmed_vocabulary
    assert ids is not None
    assert ids.tolist() == [*range(300), 388, 389, 390]
    found = GraphRunner(folder).forward(TOKENS)
    np.testing.assert_allclose(found["trimmed_logits"][0], whole[:, ids], atol=1e-5)
    np.testing.assert_array_equal(found["logits"][0][:, ids], found["trimmed_logits"][0])
    others = np.setdiff1d(np.arange(400), ids)
    assert (found["logits"][0][:, others] == -65504).all()


def test_a_trimmed_head_keeps_the_last_rows_on_request(tmp_path: Path) -> None:
    runner = GraphRunner(export_tiny(tmp_path / "model", trim=300))
    whole = runner.forward(TOKENS)
    runner.length = 0
    last = runner.forward(TOKENS, num_logits_to_keep=2)
    for name in ("logits", "trimmed_logits"):
        np.testing.assert_array_equal(last[name], whole[name][:, -2:])


def test_only_the_draft_of_a_pair_is_trimmed(tmp_path: Path) -> None:
    pair = open_pair(export_tiny_pair(tmp_path / "pair", trim=280))
    assert pair.target.trimmed_vocabulary is None
    assert pair.draft is not None
    assert pair.draft.trimmed_vocabulary is not None
    assert len(pair.draft.trimmed_vocabulary) == 283


def test_tokens_that_only_the_settings_declare_stay_in_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of turn that tokenizer.json lacks could else never be drafted."""
    plain = TinyCheckpoint.write_tokenizer

    def without_added(checkpoint: TinyCheckpoint, folder: Path) -> None:
        plain(checkpoint, folder)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        added = {str(token.pop("id")): token for token in tokenizer["added_tokens"]}
        for token in added.values():
            tokenizer["model"]["vocab"].pop(token["content"], None)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"added_tokens": []}))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": added}))

    monkeypatch.setattr(TinyCheckpoint, "write_tokenizer", without_added)
    model = open_model(export_tiny(tmp_path / "m", trim=300))
    assert model.trimmed_vocabulary is not None
    assert model.trimmed_vocabulary.tolist() == [*range(300), 381, 382, 383]
    assert set(model.tokenizer.special_tokens.values()) == {381, 382, 383}
