"""A comparison as one HTML page that opens offline: no scripts, nothing loaded from elsewhere."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.text import gigabytes
from specdec_onnx.tui.compare.choice import Setups, choice_line, crossover_lines, lines
from specdec_onnx.tui.compare.figures import nodes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d31", "#666666")
"""Okabe and Ito's palette, which colour-blind readers can tell apart too."""

ROW_OF_LEGEND = 0.1
"""Share of the height that a row of the legend takes."""

LONGEST_ANSWER = 400
"""Tokens up to which the time of an answer is drawn."""

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

Draw = Callable[["Axes"], None]


def require_charts() -> None:
    """Raise SpecdecError if the library that draws the charts is missing."""
    if find_spec("matplotlib") is None:
        raise SpecdecError(
            "matplotlib is not installed",
            "--html needs it to draw the charts",
            "pip install 'specdec-onnx[report]'",
        )


def page(report: Mapping[str, Any]) -> str:
    """The whole page; every text in it is escaped."""
    source = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True).from_string(source)
    return template.render(
        report=report,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        choice=choice_line(report),
        crossovers=crossover_lines(report),
        charts=list(charts(report)),
        nodes=nodes_text,
        gigabytes=gigabytes,
    )


def charts(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, explanation and SVG of each chart that has figures."""
    setups = {name: setup for name, setup in report["setups"].items() if setup["lengths"]}
    if not setups:
        return
    lengths = report["settings"]["prompt_lengths"]
    bars = sum(max(len(each["modes"]) for each in setup["lengths"]) for setup in setups.values())
    title = "Until the first token"
    words = (
        "Milliseconds until the first token, by the length of the prompt; each device in its quickest mode."
    )
    yield title, words, _svg("first", [partial(_first_token, setups)])
    title = "For each token of the answer"
    words = "Milliseconds for a token, by device and mode; whiskers span the repeats. Shorter is better."
    panels = [partial(_per_token, setups, length) for length in lengths]
    yield title, words, _svg("token", panels, 0.9 + 0.3 * bars)
    title = "Until the end of the answer"
    words = "Seconds until an answer is complete, by its length. Where two lines cross, the better device changes."
    yield title, words, _svg("whole", [partial(_whole_answer, setups, length) for length in lengths])
    if any(setup["forward_cost_ms"] for setup in setups.values()):
        title = "A pass over several tokens"
        words = "How many times as long the target takes for several tokens. The flatter the line, the more drafts pay."
        yield title, words, _svg("pass", [partial(_passes, setups)])


def _first_token(setups: Setups, axes: "Axes") -> None:
    for name, setup in setups.items():
        tokens = [each["prompt_tokens"] for each in setup["lengths"]]
        times = [min(mode["first_token_ms"] for mode in each["modes"].values()) for each in setup["lengths"]]
        axes.plot(tokens, times, "o-", color=_color(setups, name), label=name)
    _finish(axes, 4, xlabel="tokens of prompt", ylabel="ms")


def _per_token(setups: Setups, length: int, axes: "Axes") -> None:
    """A bar for each setup and mode; plain ones pale, the first on top."""
    bars = [
        (name, mode, figures)
        for name, setup in setups.items()
        for each in setup["lengths"]
        if each["length"] == length
        for mode, figures in each["modes"].items()
    ]
    for row, (name, mode, figures) in enumerate(bars):
        value, spread = figures["per_token_ms"], figures["spread"] or []
        alpha = 0.45 if mode == "plain" else 1.0
        axes.barh(row, value, color=_color(setups, name), alpha=alpha, height=0.72)
        if spread:
            axes.plot(spread, [row, row], color="#222222", linewidth=1.2, marker="|", markersize=6)
        end = max([value, *spread])
        axes.annotate(f"{value:.3g}", (end, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [f"{name} {mode}" for name, mode, _ in bars])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.18)
    axes.set(title=f"prompt of {length} tokens", xlabel="ms per token")


def _whole_answer(setups: Setups, length: int, axes: "Axes") -> None:
    """A line for each setup, in the mode that is best for half the range."""
    ends = (1, LONGEST_ANSWER)
    for line in lines(setups, length, LONGEST_ANSWER // 2):
        seconds = [line.seconds(tokens) for tokens in ends]
        axes.plot(ends, seconds, color=_color(setups, line.setup), label=f"{line.setup} {line.mode}")
    _finish(axes, 1, title=f"prompt of {length} tokens", xlabel="tokens of answer", ylabel="s")


def _passes(setups: Setups, axes: "Axes") -> None:
    for name, setup in setups.items():
        if costs := setup["forward_cost_ms"]:
            ratios = [cost / next(iter(costs.values())) for cost in costs.values()]
            axes.plot(list(map(int, costs)), ratios, "o-", color=_color(setups, name), label=name)
    _finish(axes, 4, xlabel="tokens in the pass", ylabel="× a pass over one")


def _finish(axes: "Axes", across: int, **labels: str) -> None:
    """Labels, and a legend in the upper left, which is kept free: all lines rise to the right."""
    axes.set(xlim=(0, None), **labels)
    rows = -(-len(axes.lines) // across)
    axes.set_ylim(0, (1 + ROW_OF_LEGEND * rows) * axes.get_ylim()[1])
    axes.legend(frameon=False, loc="upper left", ncols=across, fontsize=9, handlelength=1.4, labelspacing=0.3)


def _color(setups: Setups, name: str) -> str:
    return COLORS[list(setups).index(name) % len(COLORS)]


def _svg(name: str, panels: Sequence[Draw], height: float = PANEL_HEIGHT) -> str:
    """Panels side by side, three in a row, each `height` inches high."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    across = min(3, len(panels))
    rows = -(-len(panels) // across)
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, rows * height), layout="constrained")
        for number, draw in enumerate(panels, start=1):
            draw(figure.add_subplot(rows, across, number))
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]
