"""Folders that ONNX Runtime GenAI's own builder makes.

It needs torch, transformers, onnx_ir and onnxruntime-genai: in this environment, or in that of the interpreter that
GENAI_PYTHON names.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from safetensors.numpy import save_file
from support.tiny import export_tiny, tiny_checkpoint

from specdec_onnx.export.cli import main
from specdec_onnx.export.pipeline import export_pair
from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.engine import load

PYTHON = os.environ.get("GENAI_PYTHON", sys.executable)
NEEDED = "import onnx_ir, onnxruntime_genai.models, torch, transformers"
QUESTIONS = ("Tea for two", "Count to ten", "def f(x):")


@cache
def usable() -> bool:
    return subprocess.run([PYTHON, "-c", NEEDED], capture_output=True, check=False).returncode == 0


@pytest.fixture(autouse=True)
def builder() -> None:
    if not usable():
        pytest.skip("onnxruntime-genai, torch, transformers and onnx_ir are not all installed")


def built(folder: Path, family: str, precision: str) -> Path:
    """What the builder makes of the tiny checkpoint of that family."""
    source, out = folder / "source", folder / "built"
    source.mkdir()
    checkpoint = tiny_checkpoint(family)
    save_file(dict(checkpoint.tensors), source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text(json.dumps(checkpoint.config))
    checkpoint.write_tokenizer(source)
    command = [PYTHON, "-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-p", precision]
    places = ["-i", str(source), "-o", str(out), "-c", str(folder / "cache")]
    run = subprocess.run(
        [*command, *places],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return out


@pytest.mark.builder
@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_builders_model_takes_our_draft_and_stays_exact(
    family: str, precision: str, tmp_path: Path
) -> None:
    theirs = built(tmp_path, family, precision)
    pair = export_pair(theirs, tiny_checkpoint(family, num_hidden_layers=1), tmp_path / "pair", measure=True)
    engine, ours = load(pair), load(export_tiny(tmp_path / "ours", family))
    for question in QUESTIONS:
        answers = {}
        for mode in engine.modes:
            engine.generate(question, max_new_tokens=40, mode=mode)
            answers[mode] = engine.last.tokens
        assert all(tokens == answers["plain"] for tokens in answers.values())
        if precision == "fp32":  # the two tools round int4 differently
            ours.generate(question, max_new_tokens=40, mode="plain")
            assert answers["plain"] == ours.last.tokens
    assert "draft" in engine.modes


@pytest.mark.builder
def test_a_builders_model_is_exported_alone_and_opens_where_it_lies(tmp_path: Path) -> None:
    theirs = built(tmp_path, "qwen2", "int4")
    assert main([str(theirs), "-o", str(tmp_path / "ours")]) == 0
    answers = [
        load(folder).generate("Tea for two", max_new_tokens=12) for folder in (theirs, tmp_path / "ours")
    ]
    assert answers[0] == answers[1]
    assert open_model(theirs).config["head_dim"] == 16
