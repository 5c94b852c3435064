"""Where an answer ends: EOS, stop strings, the length cap and the context, also inside an accepted block."""

import json
from pathlib import Path

import pytest
from support.scripted_proposer import ScriptedProposer
from support.tiny import export_tiny

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.generate import Step
from specdec_onnx.runtime.model.decoder import SPARE_ROWS

PROMPT = "the rain in the"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(tmp_path_factory.mktemp("models") / "model", format="w8a8", seed=11)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load(folder)


@pytest.fixture(scope="module")
def said(engine: Engine) -> list[int]:
    engine.generate(PROMPT, max_new_tokens=64, mode="plain")
    assert len(engine.last.tokens) == 64
    return engine.last.tokens


def drafted(engine: Engine, said: list[int], length: int, **ask: object) -> list[Step]:
    return list(engine.stream(PROMPT, mode="suffix", suffix=ScriptedProposer(said, length, wrong=0), **ask))


def ending_with(folder: Path, copy: Path, token: int) -> Engine:
    """The same model with `token` as its EOS."""
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).symlink_to(file)
    for name in ("generation_config.json", "config.json", "tokenizer_config.json", "genai_config.json"):
        content = json.loads((folder / name).read_text())
        content.pop("eos_token", None)
        (copy / name).unlink()
        (copy / name).write_text(json.dumps(content | {"eos_token_id": token}))
    return load(copy)


def test_eos_inside_an_accepted_block_ends_the_answer(folder: Path, said: list[int], tmp_path: Path) -> None:
    place = next(place for place in range(9, 40) if said[place] not in said[:place])
    engine = ending_with(folder, tmp_path / "copy", said[place])
    steps = drafted(engine, said, 31, max_new_tokens=64)
    assert steps[-1].finish_reason == "eos"
    assert [token for step in steps for token in step.tokens] == said[: place + 1]
    statistics = engine.last.statistics
    assert statistics.new_tokens == place + 1
    assert statistics.drafted == statistics.accepted <= place + 1
    assert engine.last.text == engine.tokenizer.decode(said[:place])


def test_an_eos_that_the_target_rejects_goes_on(folder: Path, said: list[int], tmp_path: Path) -> None:
    unsaid = next(token for token in range(300) if token not in said)
    engine = ending_with(folder, tmp_path / "copy", unsaid)
    list(
        engine.stream(PROMPT, mode="suffix", suffix=ScriptedProposer([unsaid] * 64, 4, 0), max_new_tokens=64)
    )
    assert engine.last.tokens == said
    assert engine.last.finish_reason == "length"


@pytest.mark.parametrize("length", [1, 5, 16])
def test_a_stop_string_that_spans_tokens(engine: Engine, said: list[int], length: int) -> None:
    text = engine.tokenizer.decode(said)
    stop = text[20:24]
    steps = drafted(engine, said, length, max_new_tokens=64, stop=(stop,))
    assert "".join(step.text for step in steps) == text[: text.index(stop)]
    assert steps[-1].finish_reason == "stop"
    assert engine.last.statistics.new_tokens == len(engine.last.tokens) < 64


def test_a_stop_string_in_the_round_of_the_length_cap(engine: Engine, said: list[int]) -> None:
    """The cap must not hide a stop string that lies inside the budget."""
    text = engine.tokenizer.decode(said[:16])
    steps = drafted(engine, said, 16, max_new_tokens=16, stop=(text[-3:],))
    assert steps[-1].finish_reason == "stop"
    assert engine.last.text == text[: text.index(text[-3:])]


def test_a_stop_string_changes_nothing_before_it(engine: Engine, said: list[int]) -> None:
    stop = engine.tokenizer.decode(said)[30:33]
    engine.generate(PROMPT, max_new_tokens=64, mode="plain", stop=stop)
    plain = engine.last
    drafted(engine, said, 7, max_new_tokens=64, stop=stop)
    assert (engine.last.text, engine.last.tokens) == (plain.text, plain.tokens)


@pytest.mark.parametrize("cap", [1, 2, 7, 16])
def test_the_length_cap_is_exact(engine: Engine, said: list[int], cap: int) -> None:
    steps = drafted(engine, said, 16, max_new_tokens=cap)
    assert engine.last.tokens == said[:cap]
    assert [step.finish_reason for step in steps][-1] == "length"


@pytest.mark.parametrize("room", [1, 2, 9, 20])
def test_the_context_limit_shortens_the_last_draft(folder: Path, said: list[int], room: int) -> None:
    length = len(
        load(folder).tokenizer.encode(f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n")
    )
    engine = load(folder, context=length + room)
    steps = drafted(engine, said, 16, max_new_tokens=64)
    assert engine.last.tokens == said[:room]
    assert steps[-1].finish_reason == "context"


def test_a_prompt_that_fills_the_context_is_refused_with_counts(folder: Path) -> None:
    engine = load(folder, context=16)
    with pytest.raises(SpecdecError, match=r"the prompt has \d+ tokens, the context has room for 16"):
        engine.stream("a long prompt " * 20)
    with pytest.raises(SpecdecError, match="empty"):
        engine.stream("", raw=True)
    with pytest.raises(SpecdecError, match="token id 99999 is outside the vocabulary of") as caught:
        engine.stream([5, 99_999])
    assert "give ids from 0 to" in caught.value.fix
    with pytest.raises(SpecdecError, match=r"parameters is \{'temperature': 1\}"):
        engine.stream([5], parameters={"temperature": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["plain", "suffix"])
def test_the_models_last_position_can_be_reached(tmp_path: Path, mode: str) -> None:
    engine = load(export_tiny(tmp_path / "short", format="w8a8", seed=11, max_position_embeddings=64))
    assert engine.context == 64 - SPARE_ROWS
    steps = list(engine.stream([5] * 40, mode=mode, max_new_tokens=100))
    assert (len(engine.last.tokens), steps[-1].finish_reason) == (24 - SPARE_ROWS, "context")
    with pytest.raises(SpecdecError, match=f"supports 2 to {64 - SPARE_ROWS}"):
        load(tmp_path / "short", context=1000)


def test_steps_say_who_wrote_what(engine: Engine, said: list[int]) -> None:
    step = drafted(engine, said, 4, max_new_tokens=64)[0]
    assert step.sources == ("suffix",) * 4 + ("target",)
    wrong = next(
        iter(engine.stream(PROMPT, mode="suffix", suffix=ScriptedProposer([1] * 64, 4, 0), max_new_tokens=4))
    )
    assert wrong.sources == ("target",)
    assert wrong.rejected == (1, 1, 1)


def test_prefill_reports_progress(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []
    engine.forget()
    engine.generate([5] * 300, max_new_tokens=1, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(128, 299), (256, 299), (299, 299)]


def test_cancel_during_prefill(engine: Engine) -> None:
    engine.forget()
    steps = list(engine.stream([5] * 300, on_progress=lambda done, total: engine.cancel()))
    assert [step.finish_reason for step in steps] == ["cancelled"]
    assert engine.generate(PROMPT, max_new_tokens=4)
