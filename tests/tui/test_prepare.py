"""From a catalog name to a pair: what is there is kept, what is missing is made."""

from pathlib import Path
from typing import Any

import pytest

from specdec_onnx.models.catalog import CatalogFile
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import folder_of
from specdec_onnx.tui.prepare import prepare_pair, prepared_pair


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of the exporter; downloads are the names of their files."""
    calls: list[tuple[Any, ...]] = []

    def export_pair(target: Path, draft: Path | None, out: Path, *, progress: Any) -> None:
        calls.append((target, draft, out))
        progress("target: layer 1", 1, 2)
        progress("target: layer 2", 2, 2)

    def fetch(file: CatalogFile, progress: Any) -> Path:
        progress(file.name, file.bytes, file.bytes)
        return Path(file.name)

    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path))
    monkeypatch.setattr("specdec_onnx.models.download.fetch", fetch)
    monkeypatch.setattr("specdec_onnx.export.pipeline.export_pair", export_pair)
    return calls


def test_a_pair_is_fetched_and_exported(
    exports: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepared_pair("qwen2.5-coder-1.5b")
    assert folder == folder_of("qwen2.5-coder-1.5b")
    target, draft = (Path(f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf") for size in ("1.5b", "0.5b"))
    assert exports == [(target, draft, folder)]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"100 %  {target}",
        f"100 %  {draft}",
        " 50 %  exporting qwen2.5-coder-1.5b",
        "100 %  exporting qwen2.5-coder-1.5b",
    ]


def test_a_single_model_has_no_draft(exports: list[tuple[Any, ...]]) -> None:
    prepared_pair("smollm2-135m")
    assert exports[0][1] is None


def test_what_is_there_is_kept(exports: list[tuple[Any, ...]]) -> None:
    folder_of("smollm2-135m").mkdir(parents=True)
    assert prepared_pair("smollm2-135m") == folder_of("smollm2-135m")
    assert exports == []


def test_the_chat_hears_of_each_step(exports: list[tuple[Any, ...]], tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []
    prepare_pair("smollm2-135m", tmp_path / "pair", lambda what, done, total: heard.append((what, done)))
    assert exports[0][2] == tmp_path / "pair"
    assert [what for what, _ in heard[1:]] == ["preparing target: layer 1", "preparing target: layer 2"]


def test_an_unknown_name(exports: list[tuple[Any, ...]]) -> None:
    with pytest.raises(SpecdecError, match="nonsense"):
        prepared_pair("nonsense")
