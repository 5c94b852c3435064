"""`specdec run` over a scripted engine: what goes to stdout, what to stderr, what reaches the engine."""

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_engine import ANSWER, ScriptedEngine
from support.tiny import export_tiny_pair

from specdec_onnx.runtime.sampling.constraint import Constraint
from specdec_onnx.tui.cli.main import main


class Pipe(io.TextIOWrapper):
    """Standard input that is not a terminal."""

    def __init__(self, content: str | bytes, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(content.encode() if isinstance(content, str) else content), encoding)


class Terminal(Pipe):
    """Standard input that is one."""

    def __init__(self, typed: str = "") -> None:
        super().__init__(typed)

    def isatty(self) -> bool:
        return True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedEngine]:
    scripted = ScriptedEngine()
    scripted.install(monkeypatch)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair").mkdir()
    before = signal.getsignal(signal.SIGINT)
    yield scripted
    assert signal.getsignal(signal.SIGINT) is before


def test_the_answer_is_stdout_and_the_statistics_stderr(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "pair", "Count"]) == 0
    said = capsys.readouterr()
    assert said.out == ANSWER + "\n"
    assert said.err == "32.0 tok/s · 8 tok · 4.0 tok/round · 100 % accepted · first token 0.2 s\n"


def test_plain_has_nothing_to_say_about_drafts(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "pair", "Count", "--no-speculate"]) == 0
    assert capsys.readouterr().err == "8.0 tok/s · 8 tok · first token 0.2 s\n"
    assert engine.calls[0].mode == "plain"


def test_options_reach_the_engine(engine: ScriptedEngine) -> None:
    flags = "--temperature 0.8 --top-k 5 --top-p 0.9 --min-p 0.1 --seed 3 --stop END --stop FIN --max-new-tokens 4"
    assert main(["run", "pair", "Count", *flags.split()]) == 0
    asked = engine.calls[0].parameters
    assert (asked.temperature, asked.top_k, asked.top_p, asked.min_p, asked.seed) == (0.8, 5, 0.9, 0.1, 3)
    assert (asked.stop, asked.max_new_tokens) == (("END", "FIN"), 4)


def test_options_that_were_not_given_keep_their_defaults(engine: ScriptedEngine) -> None:
    from specdec_onnx.runtime.sampling.parameters import Parameters

    main(["run", "pair", "Count"])
    assert engine.calls[0].parameters == Parameters()


def test_loading_gets_the_engine_options(
    monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def load(path: Path, **options: Any) -> ScriptedEngine:
        seen.update(options, path=path)
        return engine

    monkeypatch.setattr("specdec_onnx.runtime.engine.load", load)
    options = "--draft other --device cpu --draft-device webgpu --threads 2 --context 512 --cache fp32"
    main(["run", "pair", "Hi", *options.split()])
    seen.pop("on_measure")()
    assert "first time" in capsys.readouterr().err
    assert seen == {
        "path": Path("pair"),
        "draft": Path("other"),
        "device": "cpu",
        "draft_device": "webgpu",
        "threads": 2,
        "context": 512,
        "cache": "fp32",
    }


def test_piped_text_alone_is_the_prompt(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe("def f(): pass\n"))
    main(["run", "pair"])
    assert engine.calls[0].prompt == "def f(): pass"


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["Explain:", "-"], "Explain:\n\ndef f(): pass"),
        (["-", "Explain", "that."], "def f(): pass\n\nExplain that."),
        (["-"], "def f(): pass"),
        (["Explain"], "Explain"),
    ],
)
def test_a_dash_in_the_prompt_is_the_text_on_stdin(
    words: list[str], prompt: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Pipe("def f(): pass\n"))
    assert main(["run", "pair", *words]) == 0
    assert engine.calls[0].prompt == prompt


def test_stdin_cannot_be_read_twice(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pair", "-", "and", "-"]) == 2
    assert capsys.readouterr().err.startswith("PROMPT has more than one -")


def test_an_empty_stdin_is_mentioned(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Pipe(""))
    assert main(["run", "pair", "Explain", "-"]) == 0
    assert engine.calls[0].prompt == "Explain"
    assert capsys.readouterr().err.startswith("stdin is empty\n")


def test_a_dash_at_a_terminal_is_typed(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("typed\n"))
    assert main(["run", "pair", "-"]) == 0
    assert engine.calls[0].prompt == "typed"


def test_a_byte_order_mark_is_no_text(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe(b"\xef\xbb\xbfone\r\ntwo\r\n"))
    main(["run", "pair"])
    assert engine.calls[0].prompt == "one\ntwo"


def test_stdin_is_utf_8_in_a_locale_without_it(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (content, encoding) in enumerate([("é\0€".encode(), "ascii"), (b"\xe9\0\x80", "cp1252")]):
        monkeypatch.setattr("sys.stdin", Pipe(content, encoding))
        assert main(["run", "pair", "-"]) == 0
        assert engine.calls[number].prompt == "é\0€"


@pytest.mark.parametrize("words", [["cut \udcff"], ["Hi", "--system", "\udcff"], ["Hi", "--stop", "\ud83d"]])
def test_arguments_that_are_not_text_are_named(
    words: list[str], engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "pair", *words])
    assert end.value.code == 2 and not engine.calls
    named = words[1] if len(words) > 1 else "PROMPT"
    assert f"argument {named}: it is not UTF-8 text" in capsys.readouterr().err


def test_raw_text_keeps_its_last_newline(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Pipe("def f():\n"))
    main(["run", "pair", "--raw"])
    assert (engine.calls[0].prompt, engine.calls[0].raw) == ("def f():\n", True)


def test_a_prompt_that_is_not_utf_8_is_an_error(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Pipe(b"\xff\xfe bad"))
    assert main(["run", "pair"]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_a_missing_prompt_is_an_error(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pair"]) == 2
    assert capsys.readouterr().err.startswith("there is no prompt")


def test_a_system_prompt_needs_the_template(engine: ScriptedEngine) -> None:
    assert main(["run", "pair", "Hi", "--system", "Be brief."]) == 0
    assert engine.calls[0].system == "Be brief."
    assert main(["run", "pair", "Hi", "--system", "Be brief.", "--raw"]) == 2


def test_json_is_one_object(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pair", "Count", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"text", "tokens", "finish_reason", "statistics"}
    assert (answer["text"], answer["finish_reason"], len(answer["tokens"])) == (ANSWER, "eos", 8)
    assert answer["statistics"]["tokens_per_round"] == 4


def test_the_length_limit_is_mentioned(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "pair", "Count", "--max-new-tokens", "2"])
    assert capsys.readouterr().err.endswith("· cut off by --max-new-tokens\n")


def test_ctrl_c_keeps_the_text_so_far(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.before_step = lambda number: signal.raise_signal(signal.SIGINT) if number == 1 else None
    assert main(["run", "pair", "Count", "--no-speculate"]) == 130
    said = capsys.readouterr()
    assert said.out == "one two\n" and said.err.endswith("· stopped\n")


def test_an_answer_without_a_token_is_an_empty_line(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.answers["auto"] = ""
    assert main(["run", "pair", "Count"]) == 0
    assert capsys.readouterr() == ("\n", "no token yet\n")


def test_a_second_ctrl_c_ends_the_program(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    def press_twice(number: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    engine.before_step = press_twice
    assert main(["run", "pair", "Count"]) == 130
    assert "tok/s" not in capsys.readouterr().err


def test_a_cached_prompt_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    pair = export_tiny_pair(tmp_path / "pair", seed=5, target_sizes={"max_position_embeddings": 2048})
    manual = tmp_path / "manual.txt"
    manual.write_text("the rain in Spain stays mainly in the plain. " * 20, encoding="utf-8")

    def ask(question: str) -> dict[str, Any]:
        options = ["--cache-prompt", str(manual), "--json", "--max-new-tokens", "8"]
        assert main(["run", str(pair), question, *options]) == 0
        return json.loads(capsys.readouterr().out)["statistics"]

    first, second = ask("why?"), ask("when?")
    assert first["cached_prompt_tokens"] == 0
    assert 256 < second["prompt_tokens"] - 40 < second["cached_prompt_tokens"] < second["prompt_tokens"]
    assert len(list((tmp_path / "cache" / "prefixes").iterdir())) == 2, (
        "target and draft, without the questions"
    )


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read"), (b"\xff\xfe\xfa", "is not UTF-8")])
def test_a_cached_prompt_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert main(["run", "pair", "Hi", "--cache-prompt", str(tmp_path / "x")]) == 2
    assert said in capsys.readouterr().err


def test_the_form_of_the_answer_is_a_schema_a_pattern_or_a_grammar(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "null"}', encoding="utf-8")
    (tmp_path / "yes.lark").write_text('start: "yes"', encoding="utf-8")
    forms = [
        (["--json-schema", "schema.json"], Constraint.json_schema({"type": "null"})),
        (["--json-schema", '{"type": "null"}'], Constraint.json_schema({"type": "null"})),
        (["--regex", "a|b"], Constraint.regex("a|b")),
        (["--grammar", str(tmp_path / "yes.lark")], Constraint.lark('start: "yes"')),
        ([], None),
    ]
    for options, form in forms:
        assert main(["run", "pair", "Hi", *options]) == 0
        assert engine.calls[-1].constraint == form


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json-schema", "nowhere.json"], "cannot read nowhere.json"),
        (["--json-schema", '{"type": 3}'], "the schema cannot be followed"),
        (["--regex", "(a"], "the regular expression cannot be followed"),
        (["--grammar", "nowhere.lark"], "cannot read nowhere.lark"),
    ],
)
def test_a_form_that_cannot_be_followed_is_an_error(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["run", "pair", "Hi", *options]) == 2
    assert capsys.readouterr().err.startswith(said) and not engine.calls
