"""A comparison as one HTML page that opens offline: no scripts, nothing loaded from elsewhere."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.inventory import gigabytes
from specdec_onnx.tui.compare import page as panels
from specdec_onnx.tui.compare.figures import choice_line, crossover_lines, energy_line, lines, nodes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d31", "#666666")
"""Okabe and Ito's palette: told apart by colour-blind readers too."""

ROW_OF_LEGEND = 0.1
"""Share of the height that a row of the legend takes."""

LONGEST_ANSWER = 400
"""Tokens up to which the time of an answer is drawn."""

Places = Mapping[str, Mapping[str, Any]]
Draw = Callable[["Axes"], None]


def _color(places: Places, name: str) -> str:
    return COLORS[list(places).index(name) % len(COLORS)]


def first_token(places: Places) -> Draw:
    """Time to the first token over the length of the prompt, a line for each place."""

    def draw(axes: "Axes") -> None:
        for name, place in places.items():
            times = [
                min(mode["first_token_ms"] for mode in each["modes"].values()) for each in place["lengths"]
            ]
            tokens = [each["prompt_tokens"] for each in place["lengths"]]
            axes.plot(tokens, times, "o-", color=_color(places, name), label=name)
        axes.set(xlabel="tokens of prompt", ylabel="ms", xlim=(0, None))
        _legend(axes, 4)

    return draw


def per_token(places: Places, length: int) -> Draw:
    """Time of a token at one prompt length, a bar for each place and mode."""
    bars = [
        (name, mode, figures["per_token_ms"], figures["spread"])
        for name, place in places.items()
        for each in place["lengths"]
        if each["length"] == length
        for mode, figures in each["modes"].items()
    ]

    def draw(axes: "Axes") -> None:
        _bars(axes, places, bars)
        axes.set(title=f"prompt of {length} tokens", xlabel="ms per token")

    return draw


def energy(places: Places) -> Draw:
    """Joules of a token at the shortest prompt, a bar for each place and mode."""
    bars = [
        (name, mode, figures["joules_per_token"] or 0.0, None)
        for name, place in places.items()
        for mode, figures in place["lengths"][0]["modes"].items()
    ]

    def draw(axes: "Axes") -> None:
        _bars(axes, places, bars)
        axes.set(xlabel="joules per token")

    return draw


def _bars(axes: "Axes", places: Places, bars: Sequence[tuple[str, str, float, list[float] | None]]) -> None:
    """One bar for each place and mode, plain ones pale; the first is on top."""
    for row, (name, mode, value, spread) in enumerate(bars):
        pale = 0.45 if mode == "plain" else 1.0
        axes.barh(row, value, color=_color(places, name), alpha=pale, height=0.72)
        if spread:
            axes.plot(spread, [row, row], color="#222222", linewidth=1.2, marker="|", markersize=6)
        end = max([value, *(spread or [])])
        axes.annotate(f"{value:.3g}", (end, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [f"{name} {mode}" for name, mode, _, _ in bars])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.18)


def whole(places: Places, length: int) -> Draw:
    """Time of an answer over its length, a line for each place in the mode that is best for half the range."""

    def draw(axes: "Axes") -> None:
        for line in lines(places, length, LONGEST_ANSWER // 2):
            ends = (1, LONGEST_ANSWER)
            axes.plot(
                ends,
                [line.seconds(tokens) for tokens in ends],
                color=_color(places, line.place),
                label=f"{line.place} {line.mode}",
            )
        axes.set(title=f"prompt of {length} tokens", xlabel="tokens of answer", ylabel="s")
        axes.set(xlim=(0, None))
        _legend(axes, 1)

    return draw


def passes(places: Places) -> Draw:
    """Time of a pass of the target over its width, as a multiple of a pass over one token, a line for each place."""

    def draw(axes: "Axes") -> None:
        for name, place in places.items():
            if costs := place["forward_cost_ms"]:
                widths, values = [int(width) for width in costs], list(costs.values())
                ratios = [value / values[0] for value in values]
                axes.plot(widths, ratios, "o-", color=_color(places, name), label=name)
        axes.set(xlabel="tokens in the pass", ylabel="× a pass over one", xlim=(0, None))
        _legend(axes, 4)

    return draw


def _legend(axes: "Axes", across: int) -> None:
    """In the upper left, which is kept free: all lines rise to the right."""
    rows = -(-len(axes.lines) // across)
    axes.set_ylim(0, (1 + ROW_OF_LEGEND * rows) * axes.get_ylim()[1])
    axes.legend(frameon=False, loc="upper left", ncols=across, fontsize=9, handlelength=1.4, labelspacing=0.3)


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


def require_charts() -> None:
    """Raise SpecdecError when the library that draws the charts is missing."""
    if find_spec("matplotlib") is None:
        raise SpecdecError(
            "matplotlib is not installed",
            "it draws the charts of --html",
            "pip install 'specdec-onnx[report]'",
        )


def page(report: Mapping[str, Any]) -> str:
    """The whole page; every text in it is escaped."""
    from jinja2 import Environment

    source = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True).from_string(source)
    return template.render(
        report=report,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        choice=choice_line(report),
        crossovers=crossover_lines(report),
        energy=energy_line(report),
        charts=list(charts(report)),
        nodes=nodes_text,
        gigabytes=gigabytes,
    )
