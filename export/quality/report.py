"""report.json: what an export weighs, costs and loses; and the same as a table for people."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from specdec_onnx.export.staging import write_json, write_text
from specdec_onnx.models.folder import read_json

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


REPORT_FILE = "report.json"

_PARTS = {
    "embedding": ("embedding.",),
    "attention": (".qkv.", ".output."),
    "feed_forward": (".gate_up.", ".down."),
    "head": ("logits.",),
}

Entry = Mapping[str, Any]


def size_by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of a data file by part of the model; norms and rotary tables are `other`."""
    parts = dict.fromkeys([*_PARTS, "other"], 0)
    for tensor, size in sizes.items():
        found = (part for part, marks in _PARTS.items() if any(mark in tensor for mark in marks))
        parts[next(found, "other")] += size
    return parts


def read_report(folder: Path) -> Mapping[str, Any]:
    """The report of an export, {} if it has none."""
    return read_json(folder / REPORT_FILE)


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Put `report` and its picture into the folder, each in one step."""
    write_json(folder / REPORT_FILE, report)
    write_text(folder / PICTURE_FILE, draw(report))


def render(report: Mapping[str, Any]) -> str:
    """The report as lines of text, a column for each model."""
    entries = {role: report[role] for role in ("target", "draft") if role in report} or {"model": report}
    rows = [("", list(entries)), *_rows(list(entries.values()))]
    label = max(len(name) for name, _ in rows)
    width = max(len(cell) for _, cells in rows for cell in cells)
    lines = [f"{name:{label}}  " + "  ".join(f"{cell:>{width}}" for cell in cells) for name, cells in rows]
    peak = report.get("peak_memory_bytes")
    memory = f", peak memory {_bytes(peak)}" if peak else ""
    seconds = f"exported in {report['export_seconds']:.0f} s"
    if "whole_seconds" in report:
        seconds += f", with measuring in {report['whole_seconds']:.0f} s"
    return "\n".join([*lines, *_notes(report), seconds + memory])


def decisions(report: Mapping[str, Any]) -> Iterator[str]:
    """What the export chose by measuring, and why."""
    if formats := report.get("target", report).get("formats"):
        tried = [
            f"{name} {one['predicted_tokens_per_second']:.1f} tokens/s, KL {one['kl_mean']:.4f}"
            for name, one in formats["candidates"].items()
        ]
        drafted = (
            f"{formats['acceptance']:.0%} of drafted tokens kept, {formats['draft_token_ms']:.1f} ms for each"
        )
        yield f"target format: {formats['chosen']} (predicted {'; '.join(tried)}; with {drafted})"
    if layers := report.get("draft", {}).get("layers"):
        before, after = layers["acceptance_before"], layers["acceptance_after"]
        gains = {tuple(row["dropped"]): row["predicted_speedup"] for row in layers["tried"]}
        if not layers["dropped"]:
            best = max((gain for dropped, gain in gains.items() if dropped), default=0.0)
            why = f"predicted {gains[()]:.2f}× with all, at best {best:.2f}× with fewer"
            yield f"draft layers: all {layers['kept']} kept ({why}; acceptance {before:.1%})"
            return
        dropped = ", ".join(map(str, layers["dropped"]))
        speeds = f"predicted {gains[()]:.2f}× → {gains[tuple(layers['dropped'])]:.2f}×"
        yield f"draft layers: {dropped} dropped, acceptance {before:.1%} → {after:.1%}, {speeds}"


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    """What concerns the export as a whole."""
    if "memory_bytes" in report:
        needs = ", ".join(f"{_bytes(need)} at {context}" for context, need in report["memory_bytes"].items())
        yield f"memory by context length: {needs}"
    if "speculation" in report:
        found = report["speculation"]
        yield (
            f"the draft on {found['prompts']} prompts: {found['acceptance_rate']:.0%} accepted, "
            f"{found['tokens_per_round']:.2f} tokens a round"
        )
        measured = [f"{mode} {speedup:.2f}×" for mode, speedup in found["measured_speedup"].items()]
        predicted = [f"predicted {found['predicted_speedup']:.2f}×"] if "predicted_speedup" in found else []
        yield f"speed against plain decoding: {', '.join(predicted + measured)}"


def _rows(entries: list[Entry]) -> Iterator[tuple[str, list[str]]]:
    yield "format", [entry["format"] for entry in entries]
    yield "size", [_bytes(sum(entry["size_bytes"].values())) for entry in entries]
    for part in entries[0]["size_bytes"]:
        yield f"  {part.replace('_', ' ')}", [_bytes(entry["size_bytes"].get(part, 0)) for entry in entries]
    if any(entry.get("carried_tensors") for entry in entries):
        yield "carried over as stored", [f"{entry.get('carried_tensors', 0)} tensors" for entry in entries]
    if all("forward_cost_ms" in entry for entry in entries):
        yield from _measured_rows(entries)


def _measured_rows(entries: list[Entry]) -> Iterator[tuple[str, list[str]]]:
    for width in entries[0]["forward_cost_ms"]:
        costs = [entry["forward_cost_ms"].get(width) for entry in entries]
        yield f"forward pass, S={width}", ["-" if cost is None else f"{cost:.1f} ms" for cost in costs]
    finer = next((entry["quality_reference"] for entry in entries if "quality_reference" in entry), None)
    if finer is None:
        return
    yield f"KL to {finer}", [_cell(entry, "kl_mean", ".4f") for entry in entries]
    yield f"top-1 as {finer}", [_cell(entry, "top1_agreement", ".1%") for entry in entries]
    if any("perplexity" in entry for entry in entries):
        yield "perplexity", [_cell(entry, "perplexity", ".2f") for entry in entries]
        yield f"perplexity in {finer}", [_cell(entry, "source_perplexity", ".2f") for entry in entries]
    if any("kept_probability" in entry for entry in entries):
        yield "kept by the trimmed head", [f"{entry.get('kept_probability', 1.0):.1%}" for entry in entries]


def _cell(entry: Entry, key: str, form: str) -> str:
    return format(entry[key], form) if key in entry else "-"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
