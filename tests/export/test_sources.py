"""`--draft auto`: the target is opened, its vocabulary and size decide."""

from pathlib import Path

import pytest
from support.tiny import export_tiny, tiny_checkpoint

from specdec_onnx.export import sources
from specdec_onnx.export.cli import main
from specdec_onnx.models import catalog as catalog_drafts
from specdec_onnx.models.catalog import CatalogFile, Entry, Vocabulary, vocabulary_digest
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.pair import open_pair

BIG, SMALL = tiny_checkpoint(num_hidden_layers=4), tiny_checkpoint(num_hidden_layers=1)


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogFile:
    """A catalog whose only file is small.gguf; big.gguf opens as a larger checkpoint."""
    spellings = open_model(export_tiny(tmp_path / "any")).tokenizer.spellings
    vocabulary = Vocabulary(384, vocabulary_digest(spellings, 384))
    file = CatalogFile("small.gguf", "r", "0", 1, parameters=42_000, vocabulary=vocabulary)
    known = {"big.gguf": BIG, "small.gguf": SMALL}
    for name in known:
        (tmp_path / name).write_bytes(b"GGUF")
    for place in ("pipeline", "sources"):
        monkeypatch.setattr(
            f"specdec_onnx.export.{place}.open_checkpoint", lambda path: known[Path(path).name]
        )
    monkeypatch.setattr(sources, "fetch", lambda file, progress: tmp_path / file.name)
    monkeypatch.setattr(catalog_drafts, "catalog", lambda: {"tiny": Entry("tiny", "", "", file)})
    monkeypatch.chdir(tmp_path)
    return file


def test_the_catalog_s_draft_is_taken_and_explained(
    offered: CatalogFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["big.gguf", "--draft", "auto", "-o", "pair", "--no-measure", "--no-smoothing"]) == 0
    draft = open_pair("pair").draft
    assert draft is not None and draft.config["num_hidden_layers"] == 1
    assert "draft small.gguf: the same vocabulary, 3.5 times smaller" in capsys.readouterr().err


def test_no_fitting_draft_says_what_to_do(offered: CatalogFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["small.gguf", "--draft", "auto", "-o", "pair"]) == 2
    said = capsys.readouterr().err
    assert "the catalog has no draft for tiny" in said
    assert "--draft none" in said
    assert not Path("pair").exists()


def test_a_prebuilt_graph_of_an_unknown_family_needs_a_named_draft(
    offered: CatalogFile, tmp_path: Path
) -> None:
    config = export_tiny(tmp_path / "prebuilt") / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"mamba"'))
    with pytest.raises(SpecdecError, match="how large prebuilt is") as caught:
        sources.propose_for(tmp_path / "prebuilt")
    assert "--draft SOURCE" in caught.value.fix


def test_a_prebuilt_graph_is_sized_by_its_config(offered: CatalogFile, tmp_path: Path) -> None:
    prebuilt = export_tiny(tmp_path / "prebuilt", num_hidden_layers=4)
    assert sources.propose_for(prebuilt).ratio == sources.propose_for(tmp_path / "big.gguf").ratio
