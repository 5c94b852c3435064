"""What PAIR on the command line and in `load` can mean."""

from pathlib import Path

import pytest
from support.tiny import export_tiny

import specdec_onnx as sd
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import exported, folder_of, locate


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


def test_load_takes_what_the_command_line_takes(home: Path) -> None:
    export_tiny(folder_of("smollm2-135m"))
    by_name, by_folder = sd.load("smollm2-135m"), sd.load(home / "pairs" / "smollm2-135m")
    assert by_name.pair.path == by_folder.pair.path == folder_of("smollm2-135m")
    assert by_name.generate("tea", max_new_tokens=3) == by_folder.generate("tea", max_new_tokens=3)


def test_load_says_how_to_get_a_name_that_is_not_there() -> None:
    with pytest.raises(SpecdecError, match="no pair at 'smollm2-135m'") as caught:
        sd.load("smollm2-135m")
    assert caught.value.fix == f"specdec-export smollm2-135m -o {folder_of('smollm2-135m')}"
    with pytest.raises(SpecdecError, match="no pair at 'no/such/folder'") as caught:
        sd.load(Path("no/such/folder"))
    assert "smollm2-135m" in caught.value.fix


def test_a_path_below_the_users_home_may_begin_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert locate("~/mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-of-that-name/pair"])
def test_what_can_be_no_path_is_no_pair(name: str) -> None:
    with pytest.raises(SpecdecError, match="no pair at"):
        locate(name)


def test_an_empty_name_is_no_pair() -> None:
    with pytest.raises(SpecdecError, match="no pair at ''"):
        locate("")


def test_anything_else_lists_what_there_is(home: Path) -> None:
    (home / "pairs" / "mine").mkdir(parents=True)
    with pytest.raises(SpecdecError, match="the pairs exported here are: mine") as caught:
        locate("yours")
    assert "qwen2.5-coder-1.5b" in caught.value.fix
