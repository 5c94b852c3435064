"""The charts of a comparison, each as an SVG that needs nothing beside itself."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdec_onnx.tui.compare import panels
from specdec_onnx.tui.compare.panels import Draw, Places

STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
WIDTH, PANEL_HEIGHT = 10.6, 3.3


def charts(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, explanation and SVG of each chart that the figures are enough for."""
    places = {name: place for name, place in report["places"].items() if place["lengths"]}
    if not places:
        return
    lengths = report["settings"]["prompt_lengths"]
    for title, words, name, drawn in (
        ("Until the first token", FIRST, "first", [panels.first_token(places)]),
        (
            "For each token of the answer",
            PER_TOKEN,
            "token",
            [panels.per_token(places, length) for length in lengths],
        ),
        ("Until the end of the answer", WHOLE, "whole", [panels.whole(places, length) for length in lengths]),
        ("A pass over several tokens", PASSES, "pass", [panels.passes(places)] if _costed(places) else []),
        ("Energy", ENERGY, "energy", [panels.energy(places)] if report["energy"]["counted"] else []),
    ):
        if drawn:
            yield title, words, _svg(name, drawn, _heights(name, places))


FIRST = "Milliseconds until the first token, by the length of the prompt; the quickest mode in each place."
PER_TOKEN = "Milliseconds for a token, by place and mode; whiskers span the repeats. Shorter is better."
WHOLE = "Seconds until an answer is complete, by its length. Where two lines cross, the better place changes."
PASSES = "How much longer the target takes for several tokens than for one. The flatter the line, the more drafts pay."
ENERGY = "Joules that the processor package used for a token, with whatever else ran."


def _heights(name: str, places: Places) -> float:
    bars = sum(max(len(each["modes"]) for each in place["lengths"]) for place in places.values())
    return 0.9 + 0.3 * bars if name in ("token", "energy") else PANEL_HEIGHT


def _svg(name: str, drawn: Sequence[Draw], height: float) -> str:
    """Panels side by side, three a row."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    across = min(3, len(drawn))
    rows = -(-len(drawn) // across)
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, rows * height), layout="constrained")
        for number, draw in enumerate(drawn, start=1):
            draw(figure.add_subplot(rows, across, number))
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _costed(places: Places) -> bool:
    return any(place["forward_cost_ms"] for place in places.values())
