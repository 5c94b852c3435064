"""An answer that was stopped is gone on with as its text would."""

from pathlib import Path

from support.tokenizer_kinds import export_kind

from specdec_onnx.runtime.engine import load
from specdec_onnx.tui.engine_session import EngineSession
from specdec_onnx.tui.session import Request
from specdec_onnx.tui.settings import Settings


def test_the_first_space_of_what_follows_a_partial_answer_is_kept(tmp_path: Path) -> None:
    engine = load(export_kind("llama", tmp_path / "llama"))
    paris = engine.tokenizer.id_of("▁Paris")
    assert paris is not None
    settings = Settings(max_new_tokens=2, logit_bias={paris: 1e9})
    request = Request([{"role": "user", "content": "a"}], settings, "plain", partial="word")
    rounds = list(EngineSession(engine, "llama").reply(request, lambda done, total: None))
    assert "".join(round_.text for round_ in rounds) == " Paris Paris"
    assert "".join(piece.text for round_ in rounds for piece in round_.pieces) == " Paris Paris"
