"""A comparison's arithmetic and its page."""

import math
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.compare_child import FINISHED, LOADED, run

from specdec_onnx.tui.bench.machine import unsteadiness
from specdec_onnx.tui.compare.choice import (
    MOST_TOKENS,
    Line,
    choice_line,
    crossover_lines,
    fastest_by_answer,
    first_token_crossings,
    verdict,
)
from specdec_onnx.tui.compare.figures import plain_times, setup_figures
from specdec_onnx.tui.compare.page import page
from specdec_onnx.tui.compare.setups import Outcome, Setup

TIMES = st.floats(0.1, 1000)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(1, MOST_TOKENS))
@example([(1.0, 4.0), (5.0, 1.0), (4.0, 1.0)], 2)
def test_the_segments_name_the_fastest_setup_at_every_length(
    times: list[tuple[float, float]], tokens: int
) -> None:
    candidates = [Line(str(number), "auto", *each) for number, each in enumerate(times)]
    segments = fastest_by_answer(candidates)
    chosen = [line for start, line in segments if start <= tokens][-1]
    assert math.isclose(chosen.seconds(tokens), min(line.seconds(tokens) for line in candidates))
    starts = [start for start, _ in segments]
    assert starts[0] == 1 and starts == sorted(set(starts))


def setup(name: str, *, factor: float = 1.0, repeat: int = 1) -> dict[str, Any]:
    outcomes = []
    for turn in range(repeat):
        runs = [run(name, length, mode) for length in (64, 256) for mode in ("plain", "auto")]
        for each in runs:
            each["per_token_ms"] *= factor * (1 + 0.02 * turn)
        outcomes.append(Outcome(dict(LOADED), runs, dict(FINISHED)))
    return setup_figures(Setup(name, "cpu"), outcomes)


def report(**setups: dict[str, Any]) -> dict[str, Any]:
    model = {"name": "model", "format": "w8a8"}
    return {
        "pair": {"name": "pair <b>", "target": model, "draft": model},
        "machine": {"processor": "P", "physical_cores": 2, "cores": 4, "onnxruntime": "1", "system": "S"},
        "settings": {
            "modes": ["plain", "auto"],
            "prompt_lengths": [64, 256],
            "max_new_tokens": 8,
            "repeat": 1,
        },
        "setups": setups,
        **verdict(setups, [64, 256]),
        "noise": {"warnings": ["others & more"]},
    }


def test_first_tokens_cross_between_measured_lengths() -> None:
    def curve(*times: float) -> dict[str, Any]:
        lengths = zip((100, 200), times, strict=True)
        return {
            "lengths": [
                {"prompt_tokens": tokens, "modes": {"plain": {"first_token_ms": time}}}
                for tokens, time in lengths
            ]
        }

    found = first_token_crossings({"a": curve(10, 40), "b": curve(20, 30), "gone": {"lengths": []}})
    assert found == [{"from_prompt_tokens": 100, "setup": "a"}, {"from_prompt_tokens": 151, "setup": "b"}]
    assert first_token_crossings({"gone": {"lengths": []}}) == []


def test_a_clear_lead_is_explained() -> None:
    found = report(cpu=setup("cpu"), slow=setup("slow", factor=4.0))
    choice = found["choice"]
    assert (choice["setup"], choice["runner_up"], choice["close"]) == ("cpu", "slow", False)
    assert choice["times_as_fast"] > 2
    assert "4.00× at writing" in choice_line(found) and choice_line(found).startswith("Choose cpu, mode auto")


def test_a_lead_within_the_spread_of_the_repeats_is_none() -> None:
    setups = {"cpu": setup("cpu"), "other": setup("other", factor=1.3)}
    setups["other"]["lengths"][0]["modes"]["auto"]["spread"] = [10.0, 15.0]
    found = report(**setups)
    assert found["choice"]["close"] and "differ by up to 50 %" in choice_line(found)
    assert "not a clear lead" in choice_line(report(cpu=setup("cpu"), other=setup("other", factor=1.01)))


def test_a_setup_that_was_not_measured_to_the_end_is_not_chosen() -> None:
    quick = setup("quick", factor=0.1)
    quick["lengths"] = quick["lengths"][:1]
    found = report(cpu=setup("cpu"), quick=quick)
    assert found["choice"]["setup"] == "cpu"
    assert found["crossovers"]["by_answer"][0]["segments"][0]["setup"] == "quick"


def test_one_setup_alone_is_the_choice() -> None:
    found = report(cpu=setup("cpu"))
    assert "no other device was measured" in choice_line(found)
    assert crossover_lines(found)[0].endswith("is the fastest, however long the answer")


def test_answers_that_differ_from_plain_are_marked() -> None:
    runs = [run("cpu", 64, "plain"), run("cpu", 64, "auto") | {"tokens": [1, 2, 3]}]
    modes = setup_figures(Setup("cpu", "cpu"), [Outcome({}, runs)])["lengths"][0]["modes"]
    assert modes["plain"]["identical_to_plain"] is True and modes["auto"]["identical_to_plain"] is False
    assert (
        setup_figures(Setup("cpu", "cpu"), [Outcome({}, runs[1:])])["lengths"][0]["modes"]["auto"][
            "identical_to_plain"
        ]
        is None
    )


def test_plain_times_are_grouped_by_setup_and_length() -> None:
    outcomes = {
        "a": [
            Outcome(runs=[run("cpu", 64, "plain")]),
            Outcome(runs=[run("cpu", 64, "plain") | {"per_token_ms": 50.0}]),
        ],
        "b": [Outcome(runs=[run("cpu", 64, "auto")])],
    }
    assert plain_times(outcomes) == [[40.0, 50.0]] and unsteadiness(plain_times(outcomes)) == 0.25
    assert unsteadiness(plain_times({"a": outcomes["a"][:1]})) is None


def test_the_page_needs_nothing_but_itself() -> None:
    found = report(
        cpu=setup("cpu", repeat=2), **{"cpu:1": setup("cpu:1"), "dml": setup_figures(Setup("dml", "dml"), [])}
    )
    found["setups"]["dml"]["problem"] = "no <provider>"
    text = page(found)
    assert text.count("<svg") == 4 and "<script" not in text
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\')\s>]+)', text)
    assert [link for link in links if not link.startswith("#")] == []
    assert "pair &lt;b&gt;" in text and "no &lt;provider&gt;" in text and "others &amp; more" in text
    assert "Choose cpu" in text and "<b>" not in text
