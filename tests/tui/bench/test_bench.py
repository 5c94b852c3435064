"""`specdec bench` over a scripted engine: the JSON contract and how the figures come about."""

import json
import os
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_engine import ANSWER, ScriptedEngine
from support.steady import steady
from support.tiny import export_tiny_pair

from specdec_onnx.models.pair import open_pair
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.kernels import SETTING, Kernels, kernels, selected
from specdec_onnx.runtime.machine.footprint import footprints
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.bench.command import Benchmark
from specdec_onnx.tui.bench.figures import summarize
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import alternating, orders
from specdec_onnx.tui.cli.main import main

PROMPTS = ("code 0", "code 1", "prose 0", "prose 1")
ROUND_TRIP = "one two three four five six seven nine"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedEngine:
    scripted = ScriptedEngine()
    scripted.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair").mkdir()
    lines = [
        {"category": name, "prompt": f"{name} {number}"} for name in ("code", "prose") for number in range(2)
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return scripted


def bench(*options: str) -> dict[str, Any]:
    assert main(["bench", "pair", "--prompts", "p.jsonl", "--json", "out.json", *options]) == 0
    figures: dict[str, Any] = json.loads(Path("out.json").read_text())
    return figures


def test_the_report_holds_machine_pair_costs_and_modes(engine: ScriptedEngine) -> None:
    figures = bench("--modes", "plain,draft")
    assert figures["prompts"] == 4
    assert figures["forward_cost_ms"] == {"1": 10.0, "2": 12.5}
    assert set(figures["machine"]) >= {"processor", "cores", "onnxruntime", "kernels"}
    assert figures["pair"]["target"]["format"] == "w8a8" and figures["pair"]["draft"]["format"] == "int4"
    assert figures["pair"]["identity"] == "bit-identical"
    assert list(figures["modes"]) == ["plain", "draft"]
    draft = figures["modes"]["draft"]
    assert draft["decode_tokens_per_second"] == 32.0 and draft["tokens_per_round"] == 4.0
    assert draft["time_to_first_token_ms"] == 250.0 and draft["acceptance_rate"] == 1.0
    assert draft["speedup"] == {"overall": 4.0, "by_category": {"code": 4.0, "prose": 4.0}}
    assert draft["identical_to_plain"] == 4


def test_a_changed_answer_is_counted(engine: ScriptedEngine) -> None:
    engine.answers["draft"] = ROUND_TRIP
    modes = bench("--modes", "plain,draft,suffix")["modes"]
    assert {mode: modes[mode]["identical_to_plain"] for mode in modes} == {
        "plain": 4,
        "draft": 0,
        "suffix": 4,
    }


def test_plain_is_always_measured(engine: ScriptedEngine) -> None:
    assert list(bench("--modes", "draft")["modes"]) == ["plain", "draft"]
    assert list(bench()["modes"]) == ["plain", "suffix", "draft", "auto"]


def test_sampled_answers_are_compared_when_a_seed_couples_them(engine: ScriptedEngine) -> None:
    assert bench("--temperature", "0.8")["modes"]["auto"]["identical_to_plain"] is None
    assert all(call.parameters.seed is None for call in engine.calls)
    engine.answers["suffix"] = ROUND_TRIP
    modes = bench("--temperature", "0.8", "--seed", "7")["modes"]
    assert (modes["auto"]["identical_to_plain"], modes["suffix"]["identical_to_plain"]) == (4, 0)
    assert engine.calls[-1].parameters.seed == 7


def test_rates_are_given_with_and_without_the_prompt(engine: ScriptedEngine) -> None:
    auto = bench("--modes", "auto")["modes"]["auto"]
    assert auto["decode_tokens_per_second"] == 32.0
    assert auto["end_to_end_tokens_per_second"] == round(8 / (0.25 + 0.25), 3)


def test_acceptance_is_split_by_position_and_source(engine: ScriptedEngine) -> None:
    modes = bench("--modes", "plain,draft")["modes"]
    assert modes["draft"]["drafted_by_position"] == [8, 8, 8]  # four prompts, two rounds each
    assert modes["draft"]["acceptance_by_position"] == [1.0, 1.0, 1.0]
    assert modes["draft"]["acceptance_by_source"] == {"draft": 1.0}
    assert modes["plain"]["acceptance_by_position"] == []


def test_time_is_split_into_draft_verify_and_host(engine: ScriptedEngine) -> None:
    draft = bench("--modes", "draft", "--limit", "1")["modes"]["draft"]
    seconds = [draft[f"{part}_seconds"] for part in ("draft", "verify", "host", "decode")]
    assert seconds == [0.0625, 0.125, 0.0625, 0.25]  # a quarter, a half and a quarter of two rounds


def test_repeats_show_their_spread(engine: ScriptedEngine) -> None:
    assert bench("--modes", "draft")["modes"]["draft"]["spread"] is None
    seconds = iter([1.0, 0.1, 0.3, 0.2])  # the first one warms up
    engine.seconds_of = lambda mode: next(seconds) if mode == "draft" else 0.2
    draft = bench("--modes", "draft", "--limit", "1", "--repeat", "3")["modes"]["draft"]
    assert draft["decode_tokens_per_second"] == 20.0 and draft["speedup"]["overall"] == 4.0
    assert draft["spread"]["decode_tokens_per_second"] == [13.333, 40.0]
    assert draft["spread"]["speedup"] == [2.667, 8.0]


def test_a_repeat_that_differs_is_no_identical_answer(engine: ScriptedEngine) -> None:
    texts = iter([ANSWER, ANSWER, ROUND_TRIP])
    engine.text_of = lambda mode: next(texts) if mode == "draft" else ANSWER
    modes = bench("--modes", "draft", "--limit", "1", "--repeat", "2")["modes"]
    assert modes["draft"]["identical_to_plain"] == 0 and modes["plain"]["identical_to_plain"] == 1


def test_peak_memory_and_noise_are_reported(engine: ScriptedEngine) -> None:
    figures = bench("--modes", "plain", "--repeat", "2")
    assert figures["peak_memory_bytes"] > 10e6
    assert figures["noise"]["plain_spread"] == 0.0 and isinstance(figures["noise"]["warnings"], list)


def test_settings_reach_the_engine(engine: ScriptedEngine) -> None:
    figures = bench("--max-new-tokens", "3", "--limit", "1", "--raw")
    assert figures["modes"]["auto"]["new_tokens"] == 3 and figures["prompts"] == 1
    assert all(call.raw for call in engine.calls)
    assert {call.prompt for call in engine.calls} == {"code 0"}


@pytest.mark.parametrize("out", ["nowhere/out.json", "pair"])
def test_a_file_that_cannot_be_written_is_reported_before_measuring(
    engine: ScriptedEngine, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "pair", "--prompts", "p.jsonl", "--json", out]) == 2
    said = capsys.readouterr()
    assert f"cannot write {out}" in said.err and not said.out


def test_the_table_is_stdout_unless_the_json_is(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    bench("--modes", "plain,draft")
    said = capsys.readouterr()
    assert "4.00×" in said.out and "4/4" in said.out and "4.00×" not in said.err
    assert main(["bench", "pair", "--prompts", "p.jsonl", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["prompts"] == 4 and "4.00×" in said.err


def test_ctrl_c_reports_what_was_measured(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(number: int) -> None:
        if engine.calls[-1].prompt == "prose 0":
            raise KeyboardInterrupt

    engine.before_step = interrupt
    ask = ["bench", "pair", "--prompts", "p.jsonl", "--json", "out.json", "--isolated"]
    assert main(ask) == 130
    assert json.loads(Path("out.json").read_text())["prompts"] == 2
    assert "stopped after 2 of 4 prompts" in capsys.readouterr().err


def test_ctrl_c_keeps_the_prompts_that_every_mode_answered(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(number: int) -> None:
        if len(engine.calls) == 4 + 2 * 16 + 3:  # warm-up, two repeats, and a part of the third
            raise KeyboardInterrupt

    engine.before_step = interrupt
    assert main(["bench", "pair", "--prompts", "p.jsonl", "--json", "out.json", "--repeat", "3"]) == 130
    figures = json.loads(Path("out.json").read_text())
    assert figures["prompts"] == 4 and figures["modes"]["auto"]["identical_to_plain"] == 4
    assert figures["modes"]["plain"]["drafted_by_position"] == []
    assert sum(figures["modes"]["draft"]["drafted_by_position"]) == 2 * 4 * 6  # of two repeats


def test_ctrl_c_before_anything_was_measured_writes_nothing(engine: ScriptedEngine) -> None:
    engine.before_step = lambda number: (_ for _ in ()).throw(KeyboardInterrupt)
    assert main(["bench", "pair", "--prompts", "p.jsonl", "--json", "out.json"]) == 130
    assert not Path("out.json").exists()


def test_a_mode_that_the_pair_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine
) -> None:
    ScriptedEngine(modes=("plain", "suffix", "auto")).install(monkeypatch)
    assert main(["bench", "pair", "--modes", "draft"]) == 2


@pytest.mark.parametrize("options", [["--limit", "0"], ["--repeat", "0"], ["--json", "missing/out.json"]])
def test_impossible_options_are_refused(engine: ScriptedEngine, options: list[str]) -> None:
    assert main(["bench", "pair", "--prompts", "p.jsonl", *options]) == 2


def test_modes_take_turns_at_going_first(engine: ScriptedEngine) -> None:
    bench("--limit", "2", "--modes", "plain,draft", "--isolated")
    measured = [(call.prompt, call.mode) for call in engine.calls[2:]]
    assert measured == [("code 0", "plain"), ("code 0", "draft"), ("code 1", "draft"), ("code 1", "plain")]


def test_isolated_answers_start_from_empty_caches(engine: ScriptedEngine) -> None:
    settings = bench("--limit", "2", "--isolated")["settings"]
    assert set(range(len(engine.calls))) <= set(engine.forgotten)
    assert (settings["caches"], settings["order_seed"]) == ("emptied", None)


def test_nothing_is_emptied_between_shuffled_prompts(engine: ScriptedEngine) -> None:
    settings = bench()["settings"]
    assert set(engine.forgotten) == {0, 4}, "before and after the warm-up"
    asked = [call.prompt for call in engine.calls[4:]]
    assert all(prompt != following for prompt, following in pairwise(asked))
    assert asked[:4] == [PROMPTS[place] for place in settings["order"][0]]
    assert len({(call.prompt, call.mode) for call in engine.calls[4:]}) == len(asked) == 16
    assert settings["caches"] == "carried" and settings["order_seed"] == 0


def test_the_seed_settles_the_order(engine: ScriptedEngine) -> None:
    first, again = (bench("--order-seed", "3", "--repeat", "2")["settings"]["order"] for _ in range(2))
    assert first == again and first[0] != first[1]
    assert bench("--order-seed", "4", "--repeat", "2")["settings"]["order"] != first


def test_a_single_prompt_is_not_answered_from_its_own_cache(engine: ScriptedEngine) -> None:
    settings = bench("--limit", "1", "--repeat", "2")["settings"]
    assert set(range(len(engine.calls))) <= set(engine.forgotten)
    assert settings["caches"] == "emptied"


@settings(deadline=None)
@given(st.integers(2, 15), st.integers(1, 7), st.integers(1, 3), st.integers())
def test_every_mode_answers_every_prompt_and_none_follows_itself(
    prompts: int, contestants: int, repeat: int, seed: int
) -> None:
    slots = [slot for order in orders(prompts, repeat, seed) for slot in alternating(order, contestants)]
    assert Counter(slots) == dict.fromkeys(product(range(prompts), range(contestants)), repeat)
    assert all(one[0] != other[0] for one, other in pairwise(slots))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = tmp_path_factory.mktemp("pairs") / "pair"
    return steady(load(export_tiny_pair(folder, target_format="fp32", seed=5, target_sizes=sizes)))


def test_acceptance_is_the_same_with_caches_as_in_use_as_with_emptied_ones(tiny: Engine) -> None:
    prompts = [
        Prompt("all", (text,)) for text in ("tea for two", "aa bb aa bb", "the rain", "x", "tea for one")
    ]

    def found(order_seed: int | None) -> dict[str, tuple[Any, ...]]:
        benchmark = Benchmark(
            {"": tiny}, prompts, tiny.modes, Parameters(max_new_tokens=24), order_seed=order_seed
        )
        modes = summarize(benchmark.rounds(), tiny.modes, comparable=True)
        kept = (
            "tokens_per_round",
            "acceptance_rate",
            "drafted_by_position",
            "identical_to_plain",
            "new_tokens",
        )
        return {mode: tuple(figures[name] for name in kept) for mode, figures in modes.items()}

    emptied = found(None)
    assert emptied["draft"][0] > 1.5 and emptied["auto"][0] > 1.5
    assert [found(seed) for seed in (0, 1)] == [emptied] * 2


def test_conversations_answer_every_turn(engine: ScriptedEngine) -> None:
    Path("p.jsonl").write_text(json.dumps({"category": "writing", "turns": ["first", "second"]}))
    figures = bench("--all-turns", "--modes", "plain")
    assert figures["prompts"] == 1 and figures["modes"]["plain"]["new_tokens"] == 2 * len(ANSWER.split())
    assert [call.prompt for call in engine.calls[-2:]] == ["first", "second"]
    assert len(engine.calls) - 1 not in engine.forgotten


def test_names_and_categories_are_shown_as_they_are_and_never_obeyed(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt": str(n), "category": f"[/x] :smile: \x1b]52;c;{n}\x07"} for n in range(2)]
    Path("p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    engine.pair.path = Path("[bold]\x9b2J\udcff")
    assert main(["bench", "pair", "--prompts", "p.jsonl", "--json", "out.json"]) == 0
    said = capsys.readouterr()
    assert "[/x] :smile: " in said.out and "[bold]" in said.out
    assert not set("\x1b\x07\x9b") & set(said.out + said.err)
    figures = json.loads(Path("out.json").read_text())
    assert figures["pair"]["name"] == "[bold]\x9b2J\udcff"
    assert set(figures["modes"]["auto"]["speedup"]["by_category"]) == {line["category"] for line in lines}


def test_a_link_or_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    from specdec_onnx.tui.cli.output import write

    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new\n"
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        write(tmp_path / "pipe", "figures")
        assert os.read(reader, 99) == b"figures\n" and not (tmp_path / "pipe").is_file()
        os.close(reader)


def test_both_kernel_sets_are_compared_in_one_run(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slower, settings_seen = ScriptedEngine({"auto": ROUND_TRIP}), list[str]()
    slower.seconds_of = lambda mode: 0.25
    engines = iter([engine, slower])

    def opened(path: Path, **options: Any) -> ScriptedEngine:
        settings_seen.append(os.environ[SETTING])
        return next(engines)

    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr("specdec_onnx.runtime.engine.load", opened)
    monkeypatch.setattr("specdec_onnx.runtime.kernels.kernels", lambda: Kernels("avx2"))
    monkeypatch.setattr("specdec_onnx.tui.bench.command._check_room", lambda args: None)
    figures = bench("--kernels", "onnxruntime,specdec", "--modes", "auto")
    assert settings_seen == ["auto", "off"] and SETTING not in os.environ
    modes = figures["modes"]
    assert set(modes) == {"plain", "auto", "plain (onnxruntime)", "auto (onnxruntime)"}
    assert modes["auto"]["decode_tokens_per_second"] == 32.0
    assert modes["auto (onnxruntime)"]["decode_tokens_per_second"] == 16.0
    assert modes["auto"]["identical_to_plain"] == 4  # each set is compared with its own plain decoding
    assert modes["auto (onnxruntime)"]["identical_to_plain"] == 0
    assert modes["auto (onnxruntime)"]["speedup"]["overall"] == 4.0
    assert figures["kernels"]["onnxruntime"]["speed_ratio"] == {"plain": 2.0, "auto": 2.0}
    assert figures["kernels"]["onnxruntime"]["forward_cost_ms"] == figures["forward_cost_ms"]
    said = capsys.readouterr().out
    assert "auto (onnxruntime)" in said and "our kernels against onnxruntime's" in said


def test_one_kernel_set_is_measured_under_the_plain_names(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = bench("--kernels", "onnxruntime", "--modes", "auto")
    assert list(figures["modes"]) == ["plain", "auto"] and "kernels" not in figures


def test_kernel_sets_are_refused_where_there_are_not_two(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "pair", "--kernels", "onnxruntime,specdec", "--device", "webgpu"]) == 2
    with pytest.raises(SystemExit):
        main(["bench", "pair", "--kernels", "other"])
    monkeypatch.setattr("specdec_onnx.runtime.kernels.kernels", lambda: Kernels(absent="nothing compiled it"))
    assert main(["bench", "pair", "--kernels", "specdec"]) == 2
    assert "nothing compiled it" in capsys.readouterr().err
    assert engine.calls == []


def test_memory_for_both_engines_is_checked_before_one_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = export_tiny_pair(tmp_path / "pair", target_format="int4")
    one = sum(need.total for need in footprints({"target": open_pair(pair).target}).values())
    monkeypatch.setattr("specdec_onnx.runtime.machine.footprint.available_memory", lambda: one * 3 // 2)
    monkeypatch.setattr("specdec_onnx.runtime.engine.load", None)
    assert main(["bench", str(pair), "--kernels", "onnxruntime,specdec"]) == 2
    said = capsys.readouterr().err
    assert "not enough memory" in said and "target (specdec)" in said and "target (onnxruntime)" in said


@pytest.mark.skipif(not kernels().name, reason="our kernels are not built here")
def test_a_real_pair_answers_with_both_kernel_sets(tmp_path: Path) -> None:
    pair, out = export_tiny_pair(tmp_path / "pair", target_format="int4"), tmp_path / "o.json"
    options = ["--limit", "2", "--max-new-tokens", "12", "--raw", "--json", str(out)]
    assert main(["bench", str(pair), "--kernels", "onnxruntime,specdec", *options]) == 0
    figures = json.loads(out.read_text())
    assert [figures["modes"][name]["identical_to_plain"] for name in ("auto", "auto (onnxruntime)")] == [2, 2]
    with selected("off") as theirs:
        assert load(pair).target.kernels == theirs and not theirs.name
    assert load(pair).target.kernels == kernels() and kernels().name
