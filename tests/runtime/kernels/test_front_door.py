"""Which kernels run, who decides, and what is said where there are none."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.tiny import export_tiny

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime import kernels as front
from specdec_onnx.runtime.kernels import SETTING, kernels, usable_sets
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import Device

SETS = usable_sets()
built = pytest.mark.skipif(not SETS, reason="the kernel library was not built")


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installation into which pip could not compile the library."""
    monkeypatch.setattr(front, "_FOLDER", tmp_path)
    front._find.cache_clear()
    front._kernels.cache_clear()
    yield tmp_path
    front._find.cache_clear()
    front._kernels.cache_clear()


@built
def test_the_best_instruction_set_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    assert kernels().name == SETS[0]
    monkeypatch.setenv(SETTING, "AUTO")
    assert kernels().name == SETS[0]


@built
@pytest.mark.parametrize("name", SETS)
def test_an_instruction_set_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(SETTING, name)
    assert kernels().name == name


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "off")
    assert kernels().name == ""
    assert "off" in str(kernels())


def test_an_unknown_setting_is_an_error_that_names_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "sse9")
    with pytest.raises(SpecdecError, match=r"(?s)unknown kernels 'sse9'.*avx512vnni"):
        kernels()


@built
def test_an_instruction_set_of_another_processor_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = next(name for name in front.INSTRUCTION_SETS if name not in SETS)
    monkeypatch.setenv(SETTING, foreign)
    with pytest.raises(SpecdecError, match=f"kernels '{foreign}' are not available"):
        kernels()


def test_a_wrong_setting_ends_a_command_with_one_clear_error() -> None:
    pytest.importorskip("rich", reason="the command prints tables")
    done = subprocess.run(
        [sys.executable, "-m", "specdec_onnx.tui.cli.main", "doctor"],
        env=os.environ | {SETTING: "sse9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("unknown kernels 'sse9'")


def test_without_a_library_onnx_runtime_runs_and_the_reason_is_kept(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_library / "absent.txt").write_text("no compiler\n")
    monkeypatch.setenv(SETTING, "auto")
    assert kernels().name == ""
    assert "no compiler" in kernels().absent
    monkeypatch.setenv(SETTING, "avx2")
    with pytest.raises(SpecdecError, match="no compiler"):
        kernels()


def test_a_library_that_cannot_be_loaded_is_a_reason(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_library / "specdec_kernels.so").write_bytes(b"no library")
    monkeypatch.setenv(SETTING, "auto")
    assert "cannot be loaded" in kernels().absent


@built
def test_what_was_measured_with_other_kernels_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for setting in ("off", *SETS):
        monkeypatch.setenv(SETTING, setting)
        found.add(Device().fingerprint)
    assert len(found) == 1 + len(SETS)


@built
def test_a_model_that_they_refuse_opens_on_onnx_runtime_and_says_why(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "model", format="int4")
    file = folder / "onnx" / "model.onnx"
    model = onnx.load(file)
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    size = {found.name: found.i for found in node.attribute}
    groups = np.arange(size["K"], dtype=np.int32) // size["block_size"]
    node.input.extend(["", "groups"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(groups, "groups"))
    onnx.save(model, file)
    decoder = Decoder.open(open_model(folder), capacity=64)
    assert decoder.kernels.name == ""
    assert "group index" in str(decoder.kernels)
    assert decoder.forward([1, 2, 3]).shape[0] == 3


@built
def test_a_decoder_tells_what_it_runs_on(tmp_path: Path) -> None:
    decoder = Decoder.open(open_model(export_tiny(tmp_path / "model", format="int4")), capacity=64)
    assert decoder.kernels == kernels()


@built
@pytest.mark.parametrize("half_cache", [True, False])
def test_gated_layers_run_as_one_node(tmp_path: Path, half_cache: bool) -> None:
    folder = open_model(export_tiny(tmp_path / "model", format="int4"))
    session, _ = Device().open(folder.graph, half_cache=half_cache)
    parts = session.get_provider_graph_assignment_info()
    operators = [node.op_type for part in parts for node in part.get_nodes()]
    assert "GatedMatMulNBits" in operators
    assert "QuickGelu" not in operators


@built
def test_doctor_shows_them_and_records_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    from specdec_onnx.tui.cli.main import main

    monkeypatch.setenv(SETTING, SETS[-1])
    assert main(["doctor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("int4 kernels"))
    assert SETS[-1] in line
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["kernels"]["name"] == SETS[-1]
    monkeypatch.setenv(SETTING, "off")
    assert main(["doctor"]) == 0
    assert "SPECDEC_KERNELS is off" in " ".join(capsys.readouterr().out.split())
