"""Command lines in the orders in which people write them."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_onnx.export import cli as export_cli
from specdec_onnx.tui.cli.main import COMMANDS, build_parser

ENGINE = [
    ["--draft", "d"],
    ["--device", "cpu"],
    ["--draft-device", "cpu"],
    ["--threads", "1"],
    ["--context=9"],
]
SAMPLING = [["--max-new-tokens", "4"], ["--temperature=.5"], ["--presence-penalty", "-1e-3"], ["--seed", "3"]]
STOPS = [["--stop", "---"], ["--stop=-x"]]
OPTIONS = {
    "chat": [["-c"], ["--draft", "-d"], ["--threads", "1"], ["--serve"], ["--port", "1"]],
    "run": [*ENGINE, *SAMPLING, ["--system", "-s"], ["--raw"], ["--json"], ["--no-speculate"]],
    "serve": [
        *ENGINE,
        *SAMPLING,
        ["--host", "h"],
        ["--port", "1"],
        ["--api-key", "-k"],
        ["--cors", "*"],
        ["--queue", "2"],
    ],
    "bench": [*ENGINE, *SAMPLING, ["--modes", "plain,draft"], ["--json", "-"], ["--limit", "1"], ["--raw"]],
    "compare": [["--devices", "cpu,cpu:1"], ["--prompt-lengths", "8,9"], ["--json", "-"], ["--timeout", "1"]],
    "doctor": [*ENGINE, ["--json"]],
    "demo": [["--small"], ["--prompt", "-p"], ["--max-new-tokens", "2"]],
}
WORDS = {
    "chat": ["pair"],
    "run": ["pair", "-", "a question", "- of mine", "-5"],
    "serve": ["pair"],
    "bench": ["pair"],
    "compare": ["pair"],
    "doctor": ["pair"],
    "demo": [],
}


def parsed(command: str, groups: Sequence[Sequence[str]]) -> Namespace:
    return build_parser().parse_args([command, *(word for group in groups for word in group)])


@pytest.mark.parametrize("command", COMMANDS)
@settings(max_examples=500)
@given(data=st.data())
def test_options_and_words_come_in_any_order(command: str, data: st.DataObject) -> None:
    words = [[word] for word in WORDS[command]]
    options = OPTIONS[command] + (STOPS if command in ("run", "bench") else [])
    mixed: list[list[str]] = data.draw(st.permutations([*options, *words]))
    # words and stops keep their own order: it is part of what they mean
    ordered = {"word": iter(words), "stop": iter(STOPS)}
    mixed = [next(ordered[kind]) if (kind := _kind(group, words)) in ordered else group for group in mixed]
    assert parsed(command, mixed) == parsed(command, [*words, *options])


def _kind(group: list[str], words: Sequence[list[str]]) -> str:
    return "word" if group in words else "stop" if group in STOPS else "option"


@settings(max_examples=500)
@given(st.permutations([["big.gguf"], ["--draft", "s"], ["-o", "out"], ["--trim", "9"], ["--force"]]))
def test_the_arguments_of_an_export_come_in_any_order(groups: list[list[str]]) -> None:
    found = export_cli.build_parser().parse_args([word for group in groups for word in group])
    assert (found.source, found.draft, str(found.output), found.trim, found.force) == (
        "big.gguf",
        "s",
        "out",
        9,
        True,
    )


def test_an_option_may_come_before_the_prompt() -> None:
    found = build_parser().parse_args(["run", "pair", "--max-new-tokens", "4", "question"])
    assert (found.pair, found.prompt, found.max_new_tokens) == ("pair", ["question"], 4)


def test_what_follows_two_dashes_is_never_an_option() -> None:
    found = build_parser().parse_args(["run", "--json", "--", "pair", "--raw"])
    assert (found.pair, found.prompt, found.json, found.raw) == ("pair", ["--raw"], True, False)


@pytest.mark.parametrize(
    "prompt", ["-hello world", "- one", "-5", "-1e-3", "--json\tis what?", "-h\nelp", "-"]
)
def test_a_prompt_may_begin_with_a_dash(prompt: str) -> None:
    for words in (["pair", prompt, "--json"], ["--json", "pair", "--temp", ".5", prompt]):
        assert build_parser().parse_args(["run", *words]).prompt == [prompt]


def test_values_may_begin_with_a_dash() -> None:
    words = ["--stop", "---", "--freq", "-1e-3", "--stop", "-a b", "--stop", "--x", "--seed", "1"]
    found = build_parser().parse_args(["run", "pair", *words])
    assert (found.stop, found.seed, found.frequency_penalty) == (["---", "-a b", "--x"], 1, -1e-3)


def test_an_option_is_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["run", "pair", "--system", "--json"])
    assert "argument --system: expected one argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "pair", "--jsn", "hi"], "unrecognized arguments: --jsn"),
        (["run", "pair", "--sytem=be brief", "hi"], "unrecognized arguments: --sytem=be brief"),
        (["run", "--json"], "the following arguments are required: PAIR"),
        (["doctor", "one", "two"], "unrecognized arguments: two"),
        (["demo", "x"], "unrecognized arguments: x"),
        (["run", "pair", "--seed", "\x1b]52;c;x\x07"], "invalid int value"),
    ],
)
def test_wrong_lines_are_refused_with_the_whole_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(words)
    shown = capsys.readouterr().err
    assert end.value.code == 2 and said in shown and "\x1b" not in shown and "\x07" not in shown


def test_help_shows_the_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["run", "-h"])
    assert "PAIR [PROMPT ...]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["chat", "--draft=~/x"],
        ["run", "pair", "--draft", "~/x"],
        ["bench", "pair", "--prompts=~/x"],
        ["bench", "pair", "--against-pair=~/x"],
        ["bench", "pair", "--json=~/x"],
        ["compare", "pair", "--draft=~/x"],
        ["compare", "pair", "--html=~/x"],
        ["doctor", "pair", "--draft=~/x"],
    ],
)
def test_a_tilde_is_the_home_folder_in_every_option_that_takes_a_path(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    given = [str(value) for value in vars(build_parser().parse_args(words)).values()]
    assert str(tmp_path / "x") in given and "~/x" not in given


def test_lists_take_blanks_after_their_commas() -> None:
    assert build_parser().parse_args(["bench", "pair", "--modes", " plain, suffix"]).modes == [
        "plain",
        "suffix",
    ]
    lengths = ["compare", "pair", "--prompt-lengths", "64, 8"]
    assert build_parser().parse_args(lengths).prompt_lengths == (8, 64)
