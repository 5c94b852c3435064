"""The report as a picture: sizes, forward costs and memory as bars, in SVG without any library."""

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

PICTURE_FILE = "report.svg"

_WIDTH, _ROW, _LEFT, _BAR = 720, 24, 190, 400
_COLOURS = {"target": "#3366aa", "draft": "#dd8833", "model": "#3366aa", "all": "#667788"}

Bar = tuple[str, float, str, str]
"""Label, value, its text, and what gives the colour."""


def draw(report: Mapping[str, Any]) -> str:
    """SVG of the report; a block of bars for each thing that was found out."""
    lines, y = [], 16
    for title, bars in _blocks(report):
        largest = max(value for _, value, _, _ in bars) or 1.0
        lines.append(_text(12, y + 16, title, "bold"))
        y += 28
        for label, value, text, role in bars:
            lines += _bar(y, label, value / largest, text, role)
            y += _ROW
        y += 16
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}"'
    style = f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="sans-serif" font-size="13">', style, *lines, "</svg>\n"])


def _blocks(report: Mapping[str, Any]) -> Iterator[tuple[str, list[Bar]]]:
    entries = {role: report[role] for role in ("target", "draft") if role in report} or {"model": report}
    yield "Size by part, MB", list(_sizes(entries))
    for role, entry in entries.items():
        if "forward_cost_ms" in entry:
            yield f"{role}: forward pass over S tokens, ms", list(_costs(role, entry["forward_cost_ms"]))
    if any("kl_mean" in entry for entry in entries.values()):
        yield "KL to the float source, nats", list(_divergences(entries))
    if "memory_bytes" in report:
        yield "Memory by context length, MB", list(_memory(report["memory_bytes"]))
    if "speculation" in report:
        yield "Speed against plain decoding", list(_speedups(report["speculation"]))


def _sizes(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[Bar]:
    for role, entry in entries.items():
        for part, size in entry["size_bytes"].items():
            yield f"{role} {part.replace('_', ' ')}", size / 1e6, f"{size / 1e6:.1f}", role


def _costs(role: str, costs: Mapping[str, float]) -> Iterator[Bar]:
    for width, cost in costs.items():
        yield f"S = {width}", cost, f"{cost:.1f}", role


def _divergences(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[Bar]:
    for role, entry in entries.items():
        if "kl_mean" in entry:
            yield f"{role}, {entry['format']}", entry["kl_mean"], f"{entry['kl_mean']:.4f}", role


def _memory(needs: Mapping[str, int]) -> Iterator[Bar]:
    for context, need in needs.items():
        yield f"{context} tokens", need / 1e6, f"{need / 1e6:.0f}", "all"


def _speedups(found: Mapping[str, Any]) -> Iterator[Bar]:
    yield "plain", 1.0, "1.00", "all"
    if "predicted_speedup" in found:
        yield "draft, predicted", found["predicted_speedup"], f"{found['predicted_speedup']:.2f}", "draft"
    for mode, speedup in found["measured_speedup"].items():
        yield f"{mode}, measured", speedup, f"{speedup:.2f}", "target"


def _bar(y: int, label: str, share: float, text: str, role: str) -> list[str]:
    width = max(1.0, _BAR * share)
    bar = f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 6}" fill="{_COLOURS[role]}"/>'
    return [_text(24, y + 14, label), bar, _text(_LEFT + width + 8, y + 14, text)]


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
