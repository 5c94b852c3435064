"""What PAIR on the command line can mean."""

from pathlib import Path

import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.pairs import exported, folder_of, locate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_a_path_is_itself(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert locate(str(tmp_path / "mine")) == tmp_path / "mine"
    assert locate("mine") == Path("mine")


def test_a_name_is_an_exported_pair(home: Path) -> None:
    (home / "pairs" / "smollm2-135m").mkdir(parents=True)
    (home / "pairs" / ".smollm2-135m.partial-1").mkdir()
    assert exported() == ["smollm2-135m"]
    assert locate("smollm2-135m") == folder_of("smollm2-135m") == home / "pairs" / "smollm2-135m"


def test_a_catalog_name_that_was_not_exported_says_how() -> None:
    with pytest.raises(SpecdecError, match="no pair has been exported") as caught:
        locate("smollm2-135m")
    assert caught.value.fix == f"specdec-export smollm2-135m -o {folder_of('smollm2-135m')}"


def test_an_empty_name_is_no_pair() -> None:
    with pytest.raises(SpecdecError, match="no pair at ''"):
        locate("")


def test_anything_else_lists_what_there_is(home: Path) -> None:
    (home / "pairs" / "mine").mkdir(parents=True)
    with pytest.raises(SpecdecError, match="the pairs exported here are: mine") as caught:
        locate("yours")
    assert "qwen2.5-coder-1.5b" in caught.value.fix
