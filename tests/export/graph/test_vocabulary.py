"""Head trimming: which ids stay, and what the graph says about the others."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.graphs import GraphRunner
from support.tiny import TinyCheckpoint, export_tiny, export_tiny_pair, tiny_checkpoint

from specdec_onnx.export.graph.vocabulary import Trimming, trim
from specdec_onnx.export.pipeline import Options, export_model, export_pair
from specdec_onnx.export.quantization.calibration import token_counts
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.pair import open_pair

TOKENS = [5, 260, 31, 99, 7]


def test_first_ids_and_special_tokens() -> None:
    assert trim(100, [500, 502, 501, 3, 700], 1000) == Trimming(((0, 100), (500, 503), (700, 701)))
    assert trim(100, [100, 101], 1000) == Trimming(((0, 102),))
    assert trim(100, [999, 1000, 2000], 1000) == Trimming(((0, 100), (999, 1000)))


def test_nothing_to_trim() -> None:
    assert trim(1000, [], 1000) is None
    assert trim(5000, [4], 1000) is None


def test_frequent_ids_displace_the_last_low_ones() -> None:
    seen = np.zeros(1000, np.int64)
    seen[[900, 700]] = [3, 5]
    assert trim(100, [], 1000, seen) == Trimming(((0, 98), (700, 701), (900, 901)))
    assert trim(100, [50, 998], 1000, seen) == Trimming(((0, 98), (700, 701), (900, 901), (998, 999)))
    assert trim(100, [], 1000, np.zeros(1000, np.int64)) == trim(100, [], 1000)


def test_the_more_frequent_id_wins() -> None:
    seen = np.ones(1000, np.int64)
    seen[900], seen[901] = 50_000, 40_000
    kept = trim(99, [], 1000, seen)
    assert kept is not None and kept.ranges[-1] == (900, 902)
    kept = trim(1, [], 1000, seen)
    assert kept == Trimming(((900, 901),))


def test_a_head_trimmed_by_frequency_scores_like_the_whole_one(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(vocab_size=800)
    whole = GraphRunner(export_model(checkpoint, tmp_path / "whole", format="fp32")).logits(TOKENS)
    options = Options(draft_format="fp32", trim=400, trim_by="frequency")
    draft = export_pair(checkpoint, checkpoint, tmp_path / "pair", options) / "draft"
    model = open_model(draft)
    ids = model.trimmed_vocabulary
    assert ids is not None and (np.diff(ids) > 0).all()
    assert len(model.facts["trimmed_vocabulary"]) > 8
    counts = token_counts(model)
    missed, added = np.setdiff1d(np.arange(400), ids), ids[(ids >= 400) & (ids < 797)]
    assert len(missed) and counts[added].min() > counts[missed].max()
    assert {797, 798, 799} <= set(ids.tolist())
    found = GraphRunner(draft).forward(TOKENS)
    np.testing.assert_allclose(found["trimmed_logits"][0], whole[:, ids], atol=1e-5)
    np.testing.assert_array_equal(found["logits"][0][:, ids], found["trimmed_logits"][0])
    assert (found["logits"][0][:, np.setdiff1d(np.arange(800), ids)] == -65504).all()


@pytest.mark.parametrize("count", [0, -1])
def test_impossible_trim(count: int) -> None:
    with pytest.raises(SpecdecError, match="cannot trim"):
        trim(count, [], 1000)


@pytest.mark.parametrize("format", ["fp32", "w8a8", "int4-128"])
def test_trimmed_head_scores_its_ids_like_the_whole_one(format: str, tmp_path: Path) -> None:
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


def test_trimmed_head_keeps_rows(tmp_path: Path) -> None:
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
