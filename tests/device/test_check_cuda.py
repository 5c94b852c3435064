"""The script for a machine with a graphics processor, tried where there is none."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check") / "models"
    subprocess.run([sys.executable, HERE / "build_models.py", folder, "--small"], check=True)
    return folder


def check(models: Path, device: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, HERE / "check_cuda.py", models, "--device", device]
    result = subprocess.run(command, capture_output=True, check=False, text=True)
    return result.returncode, json.loads(result.stdout)


def test_the_cpu_agrees_with_itself(models: Path) -> None:
    code, report = check(models, "cpu")
    assert (code, report["ok"], report["complete"]) == (0, True, True)
    assert {
        f"parity {name}" for name in ("middle", "tiny-fp32", "tiny-int4", "tiny-int8", "tiny-w8a8")
    } < set(report)
    for name, part in report.items():
        if name.startswith("parity"):
            assert (part["rms_difference_over_spread"], part["identity"]) == (0.0, "bit-identical")
    said = report["speculation target on cpu, draft on cpu"]
    assert all(said[mode]["same_as_plain"] for mode in ("suffix", "draft", "auto", "replayed"))
    assert said["replayed"]["speedup"] > 0
    assert set(report["curve"]["milliseconds"]) >= {"1", "8", "32"}


def test_a_missing_device_fails_each_section_and_is_still_a_report(models: Path) -> None:
    code, report = check(models, "dml")
    assert (code, report["ok"]) == (1, False)
    assert "not available" in report["parity middle"]["error"]
    assert "not available" in report["speculation target on cpu, draft on dml"]["error"]
