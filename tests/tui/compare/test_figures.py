"""A comparison's arithmetic and its page."""

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.compare_child import FINISHED, LOADED, run

from specdec_onnx.tui.compare.child import Meter
from specdec_onnx.tui.compare.figures import (
    MOST_TOKENS,
    Line,
    choice_line,
    crossover_lines,
    fastest_by_answer,
    first_token_crossings,
    place_figures,
    plain_spread,
    verdict,
)
from specdec_onnx.tui.compare.page import page
from specdec_onnx.tui.compare.places import Outcome, Place

TIMES = st.floats(0.1, 1000)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(1, MOST_TOKENS))
@example([(1.0, 4.0), (5.0, 1.0), (4.0, 1.0)], 2)
def test_the_segments_name_the_fastest_place_at_every_length(
    times: list[tuple[float, float]], tokens: int
) -> None:
    candidates = [Line(str(number), "auto", *each) for number, each in enumerate(times)]
    segments = fastest_by_answer(candidates)
    chosen = [line for start, line in segments if start <= tokens][-1]
    assert math.isclose(chosen.seconds(tokens), min(line.seconds(tokens) for line in candidates))
    starts = [start for start, _ in segments]
    assert starts[0] == 1 and starts == sorted(set(starts))


def place(name: str, *, factor: float = 1.0, joules: float | None = None, repeat: int = 1) -> dict[str, Any]:
    outcomes = []
    for turn in range(repeat):
        runs = [run(name, length, mode) for length in (64, 256) for mode in ("plain", "auto")]
        for each in runs:
            each["per_token_ms"] *= factor * (1 + 0.02 * turn)
            each["joules"] = joules
        outcomes.append(Outcome(dict(LOADED), runs, dict(FINISHED)))
    return place_figures(Place(name, "cpu"), outcomes)


def report(**places: dict[str, Any]) -> dict[str, Any]:
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
        "places": places,
        **verdict(places, [64, 256]),
        "energy": {"counted": False, "note": "no counters"},
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
    assert found == [{"from_prompt_tokens": 100, "place": "a"}, {"from_prompt_tokens": 151, "place": "b"}]
    assert first_token_crossings({"gone": {"lengths": []}}) == []


def test_a_clear_lead_is_explained() -> None:
    found = report(cpu=place("cpu"), slow=place("slow", factor=4.0))
    choice = found["choice"]
    assert (choice["place"], choice["runner_up"], choice["close"]) == ("cpu", "slow", False)
    assert choice["times_as_fast"] > 2
    assert "4.00× in writing" in choice_line(found) and choice_line(found).startswith("Choose cpu, mode auto")


def test_a_lead_within_the_spread_of_the_repeats_is_none() -> None:
    places = {"cpu": place("cpu"), "other": place("other", factor=1.3)}
    places["other"]["lengths"][0]["modes"]["auto"]["spread"] = [10.0, 15.0]
    found = report(**places)
    assert found["choice"]["close"] and "differ by up to 50 %" in choice_line(found)
    assert "no clear lead" in choice_line(report(cpu=place("cpu"), other=place("other", factor=1.01)))


def test_a_place_that_was_not_measured_to_the_end_is_not_chosen() -> None:
    quick = place("quick", factor=0.1)
    quick["lengths"] = quick["lengths"][:1]
    found = report(cpu=place("cpu"), quick=quick)
    assert found["choice"]["place"] == "cpu"
    assert found["crossovers"]["by_answer"][0]["segments"][0]["place"] == "quick"


def test_one_place_alone() -> None:
    found = report(cpu=place("cpu"))
    assert "no other place was measured" in choice_line(found)
    assert crossover_lines(found)[0].endswith("is the fastest, however long the answer")


def test_answers_that_differ_are_seen() -> None:
    runs = [run("cpu", 64, "plain"), run("cpu", 64, "auto") | {"tokens": [1, 2, 3]}]
    modes = place_figures(Place("cpu", "cpu"), [Outcome({}, runs)])["lengths"][0]["modes"]
    assert modes["plain"]["identical_to_plain"] is True and modes["auto"]["identical_to_plain"] is False
    assert (
        place_figures(Place("cpu", "cpu"), [Outcome({}, runs[1:])])["lengths"][0]["modes"]["auto"][
            "identical_to_plain"
        ]
        is None
    )


def test_spread_of_plain_over_places() -> None:
    outcomes = {
        "a": [
            Outcome(runs=[run("cpu", 64, "plain")]),
            Outcome(runs=[run("cpu", 64, "plain") | {"per_token_ms": 50.0}]),
        ],
        "b": [Outcome(runs=[run("cpu", 64, "auto")])],
    }
    assert plain_spread(outcomes) == 0.25 and plain_spread({"a": outcomes["a"][:1]}) is None


def test_the_page_needs_nothing_but_itself() -> None:
    found = report(
        cpu=place("cpu", repeat=2), **{"cpu:1": place("cpu:1"), "dml": place_figures(Place("dml", "dml"), [])}
    )
    found["places"]["dml"]["problem"] = "no <provider>"
    text = page(found)
    assert text.count("<svg") == 4 and "<script" not in text
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\')\s>]+)', text)
    assert [link for link in links if not link.startswith("#")] == []
    assert "pair &lt;b&gt;" in text and "no &lt;provider&gt;" in text and "others &amp; more" in text
    assert "Choose cpu" in text and "<b>" not in text


def test_energy_gets_a_chart_where_it_is_counted() -> None:
    found = report(cpu=place("cpu", joules=8.0))
    found["energy"] = {"counted": True, "note": "of the package"}
    assert found["places"]["cpu"]["lengths"][0]["modes"]["auto"]["joules_per_token"] == 2.0
    assert page(found).count("<svg") == 5


def powercap(root: Path, *microjoules: int) -> Path:
    for number, value in enumerate(microjoules):
        for name, kind in ((f"intel-rapl:{number}", f"package-{number}"), (f"intel-rapl:{number}:0", "core")):
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name / "name").write_text(kind + "\n")
            (root / name / "energy_uj").write_text(f"{value}\n")
            (root / name / "max_energy_range_uj").write_text("9999999\n")
    return root


def test_packages_are_added_up_and_counters_start_again(tmp_path: Path) -> None:
    meter = Meter(powercap(tmp_path, 1_000_000, 9_000_000))
    before = meter.read()
    powercap(tmp_path, 3_500_000, 1_000_000)
    assert meter.problem == "" and meter.joules_since(before) == pytest.approx(2.5 + 2.0)


def test_why_there_is_no_energy(tmp_path: Path) -> None:
    assert "no energy counters" in Meter(tmp_path / "none").problem
    meter = Meter(tmp_path)
    assert meter.joules_since(meter.read()) is None
    if os.geteuid():
        (powercap(tmp_path, 1) / "intel-rapl:0" / "energy_uj").chmod(0)
        assert "only root" in Meter(tmp_path).problem
