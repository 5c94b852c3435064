"""One generation step stays on a page: few functions in few files lie between the command and ONNX Runtime."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.tiny import export_tiny_pair

import specdec_onnx.runtime.engine as engine_module
from specdec_onnx.tui.cli.main import main

ROOT = Path(engine_module.__file__).resolve().parent.parent


def calls_to_onnx_runtime(arguments: list[str]) -> set[tuple[tuple[str, str], ...]]:
    """The different stacks of our own functions (file and name) when a session runs, for one command."""
    stacks = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ == "run_with_iobinding":
            stack, at = [], frame.f_back
            while at is not None:
                file = Path(at.f_code.co_filename).resolve()
                if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in ("tui", "runtime"):
                    stack.append((str(file), at.f_code.co_qualname))
                at = at.f_back
            stacks.add(tuple(stack))

    sys.setprofile(watch)
    try:
        assert main(arguments) == 0
    finally:
        sys.setprofile(None)
    return {stack for stack in stacks if any(name == "Answer.steps" for _, name in stack)}


def test_a_pass_is_reached_through_few_functions_in_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    pair = export_tiny_pair(tmp_path / "pair")
    stacks = calls_to_onnx_runtime(["run", str(pair), "hello hello", "--max-new-tokens", "24"])
    drafts = {stack for stack in stacks if any(name == "DraftModel.propose" for _, name in stack)}
    assert drafts and stacks - drafts
    for stack in stacks:
        functions, files = len(set(stack)), len({file for file, _ in stack})
        assert functions <= (8, 10)[any("speculation" in file for file, _ in stack)], stack
        assert files <= (5, 6)[any("speculation" in file for file, _ in stack)], stack
