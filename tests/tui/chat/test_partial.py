"""The chat shows the tokens of an answer as one text, also when it goes on with one that was stopped."""

from pathlib import Path

from support.tokenizer_kinds import export_kind

from specdec_onnx.runtime.engine import load
from specdec_onnx.tui.chat.engine_worker import Worker, rounds
from specdec_onnx.tui.chat.session import Request
from specdec_onnx.tui.chat.settings import Settings


def test_the_first_space_of_what_follows_a_partial_answer_is_kept(tmp_path: Path) -> None:
    engine = load(export_kind("llama", tmp_path / "llama"))
    paris = engine.tokenizer.id_of("▁Paris")
    assert paris is not None
    settings = Settings(max_new_tokens=2, logit_bias={paris: 1e9})
    request = Request([{"role": "user", "content": "a"}], settings, "plain", partial="word")
    answer = list(rounds(Worker(engine, "llama").stream(request), engine.tokenizer))
    assert "".join(round_.text for round_ in answer) == " Paris Paris"
    assert "".join(piece.text for round_ in answer for piece in round_.pieces) == " Paris Paris"


def test_the_pieces_of_an_answer_that_ends_in_half_a_run_are_its_text(tmp_path: Path) -> None:
    engine = load(export_kind("llama", tmp_path / "llama"))
    line = engine.tokenizer.id_of("<0x0A>")
    assert line is not None
    request = Request(
        [{"role": "user", "content": "a"}], Settings(max_new_tokens=3, logit_bias={line: 1e9}), "plain"
    )
    answer = list(rounds(Worker(engine, "llama").stream(request), engine.tokenizer))
    assert "".join(round_.text for round_ in answer) == "\n\n\n"
    assert "".join(piece.text for round_ in answer for piece in round_.pieces) == "\n\n\n"
