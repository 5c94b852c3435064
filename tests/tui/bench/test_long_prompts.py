"""`specdec bench --long`: what its prompts are like, and that all contestants read the same."""

import ast
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.scripted_engine import ScriptedEngine
from support.smol import smol

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.bench.long_prompts import PARTS, log, long_prompts
from specdec_onnx.tui.bench.opponent import Opponent
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import answer
from specdec_onnx.tui.cli.main import main

__all__ = ["smol"]


def test_two_prompts_of_each_kind_the_same_each_time() -> None:
    prompts = long_prompts()
    kinds = Counter(prompt.category for prompt in prompts)
    assert kinds == {"long edit": 2, "long summary": 2, "long chat": 2}
    assert {prompt.category for prompt in prompts[:3]} == set(kinds)
    assert prompts == long_prompts()


def test_the_files_to_edit_are_valid_and_hold_the_class_in_question() -> None:
    for prompt in long_prompts():
        if prompt.category == "long edit":
            text = prompt.turns[0]
            tree = ast.parse(text.split("```python\n")[1].split("```")[0])
            classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
            assert text.split("class `")[1].split("`")[0] in {each.name for each in classes}
            for each in classes:
                methods = Counter(part.name for part in each.body if isinstance(part, ast.FunctionDef))
                assert set(methods.values()) == {1}


def test_a_sentence_of_the_log_comes_again_only_after_all_others() -> None:
    starts = [re.split(r"\{", sentence)[0] or sentence.split("}")[1][:20] for sentence in PARTS["log"]]
    days = log(1)
    text = ""
    while text.count(". ") < len(PARTS["log"]) - 10:
        text += next(days).split(". ", 1)[1] + " "
    assert all(text.count(start) <= 1 for start in starts if len(start) > 8)


def test_chats_take_turns_and_the_assistant_quotes_what_the_user_gave() -> None:
    for prompt in long_prompts():
        if prompt.category == "long chat":
            assert len(prompt.before) >= 10
            assert [role for role, _ in prompt.before] == ["user", "assistant"] * (len(prompt.before) // 2)
    user, assistant = (text for _, text in long_prompts()[-1].before[:2])
    for line in assistant.split("\n\n")[1].split("\n"):
        assert line.split(". ", 1)[1] in user


@pytest.mark.integration
def test_they_have_2000_to_6000_tokens(smol: Path) -> None:
    model = open_model(smol)
    assert all(2000 <= len(prompt.tokens(model)) <= 6000 for prompt in long_prompts())


@pytest.mark.integration
def test_what_was_said_before_is_read_as_turns_of_the_chat(smol: Path) -> None:
    model = open_model(smol)
    prompt = Prompt("chat", ("And now?",), (("user", "Hi"), ("assistant", "Ho")))
    text = model.tokenizer.decode(prompt.tokens(model))
    assert re.search(r"user\s+Hi.*assistant\s+Ho.*user\s+And now\?.*assistant\s*$", text, re.DOTALL)
    assert model.tokenizer.decode(prompt.tokens(model, raw=True)) == "Hi\n\nHo\n\nAnd now?"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedEngine:
    """A token is a character, so that 6,000 tokens of text have room only in a larger context."""
    scripted = ScriptedEngine()
    for model in scripted.pair.target, scripted.pair.draft:
        model.chat_template, model.adds_bos = None, False
        model.tokenizer = SimpleNamespace(encode=lambda text: [ord(character) for character in text])
    scripted.context = 100_000
    scripted.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair").mkdir()
    return scripted


def test_the_engine_and_the_other_program_read_the_same_tokens(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    reply = {"tokens": [1], "prefill_seconds": 1.0, "decode_seconds": 1.0}
    monkeypatch.setattr(Opponent, "_exchange", lambda self, message: told.append(message) or dict(reply))
    prompt = long_prompts()[-1]
    Opponent.__new__(Opponent).answer(engine, "plain", False, prompt, 4, False)
    answer(engine, "plain", prompt, 4, parameters=Parameters())
    assert engine.calls[-1].prompt == told[0]["tokens"] == prompt.tokens(engine.pair.target)


def test_long_prompts_are_measured_by_category(engine: ScriptedEngine) -> None:
    assert main(["bench", "pair", "--long", "--json", "o.json", "--modes", "plain,auto"]) == 0
    figures = json.loads(Path("o.json").read_text())
    assert figures["prompts"] == 6
    assert set(figures["modes"]["auto"]["speedup"]["by_category"]) == {
        "long edit",
        "long summary",
        "long chat",
    }


def test_a_context_that_is_too_small_is_refused_before_anything_runs(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.context = 4096
    assert main(["bench", "pair", "--long"]) == 2
    assert "--long needs a context of" in capsys.readouterr().err and not engine.calls


def test_long_prompts_and_a_file_exclude_each_other(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "pair", "--long", "--prompts", "p.jsonl"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_how_fast_prompts_are_read_counts_what_was_not_cached(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(on_progress: Any) -> None:
        engine.last.statistics.prompt_tokens, engine.last.statistics.cached_prompt_tokens = 110, 10

    engine.read_prompt = read
    assert main(["bench", "pair", "--long", "--json", "o.json"]) == 0
    figures = json.loads(Path("o.json").read_text())
    assert (
        figures["modes"]["auto"]["prefill_tokens_per_second"] == 400.0
    )  # 100 tokens in a quarter of a second
    assert re.search(r"^auto .* 400 +6/6$", capsys.readouterr().out, re.MULTILINE)


def test_a_long_reading_is_shown_in_a_terminal_while_it_lasts(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    engine.read_prompt = lambda on_progress: on_progress(1024, 4096)
    assert main(["bench", "pair", "--long", "--limit", "2", "--modes", "plain"]) == 0
    assert "25 %  of a prompt of 4096 tokens read" in capsys.readouterr().err


def test_caches_are_emptied_before_the_first_answer_to_a_prompt_only(engine: ScriptedEngine) -> None:
    def read(on_progress: Any) -> None:
        anew = engine.forgotten[-1] == len(engine.calls) - 1
        engine.last.statistics.first_token_seconds = 2.0 if anew else 0.1

    engine.read_prompt = read
    options = ["--limit", "2", "--repeat", "3", "--modes", "plain,auto", "--json", "o.json"]
    assert main(["bench", "pair", "--long", *options]) == 0
    assert engine.forgotten == [0, 0, 1, 2, 2, 3, 8, 9]  # costs, two warm-ups, all; two modes on two prompts
    figures = json.loads(Path("o.json").read_text())
    assert figures["modes"]["plain"]["time_to_first_token_ms"] == 2000.0
    assert figures["modes"]["plain"]["new_tokens"] == 16
    assert figures["settings"]["caches"] == "kept for repeats"


def test_isolated_repeats_read_the_prompt_again(engine: ScriptedEngine) -> None:
    options = ["--limit", "1", "--repeat", "2", "--modes", "plain", "--isolated", "--json", "o.json"]
    assert main(["bench", "pair", "--long", *options]) == 0
    assert engine.forgotten == [0, 0, 1, 1, 2]
    assert json.loads(Path("o.json").read_text())["settings"]["caches"] == "emptied"
