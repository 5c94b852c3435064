"""The panels of the charts: one set of axes each."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.compare.crossover import lines

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
