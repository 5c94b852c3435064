"""report.json: what an export weighs, costs and loses; the same as a table and as a picture for people."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from specdec_onnx.export.staging import write_json, write_text
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import read_json

REPORT_FILE, PICTURE_FILE = "report.json", "report.svg"

_PARTS = {
    "embedding": ("embedding.",),
    "attention": (".qkv.", ".output."),
    "feed_forward": (".gate_up.", ".down."),
    "head": ("logits.",),
}

_WIDTH, _ROW, _LEFT, _BAR = 720, 24, 190, 400
_COLOURS = {"target": "#3366aa", "draft": "#dd8833", "model": "#3366aa", "all": "#667788"}

Entry = Mapping[str, Any]

Bar = tuple[str, float, str, str]
"""Label, value, the value's text, and the role, which gives the colour."""


def size_by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of a data file by part of the model; norms and rotary tables are `other`."""
    parts = dict.fromkeys([*_PARTS, "other"], 0)
    for tensor, size in sizes.items():
        named = (part for part, marks in _PARTS.items() if any(mark in tensor for mark in marks))
        parts[next(named, "other")] += size
    return parts


def read_report(folder: Path) -> Mapping[str, Any]:
    """The report of an export, {} if it has none."""
    return read_json(folder / REPORT_FILE)


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Write `report` and its picture into the folder, each in one step."""
    write_json(folder / REPORT_FILE, report)
    write_text(folder / PICTURE_FILE, _draw(report))


def describe_report(folder: Path) -> str:
    """The report of the export in `folder` and what it decided, as text. Raises SpecdecError without a sound report."""
    report = read_report(folder)
    whole = folder.absolute().parent
    if not report and folder.name in read_report(whole):
        raise SpecdecError(
            f"{folder} has no {REPORT_FILE} of its own",
            f"it is the {folder.name} of a pair, and the report is the pair's",
            f"specdec-export inspect {whole}",
        )
    if not report:
        raise SpecdecError(
            f"{folder} has no {REPORT_FILE}", "no export wrote it", "give a folder that specdec-export made"
        )
    try:
        return "\n".join([render(report), *decisions(report)])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SpecdecError(
            f"{folder / REPORT_FILE} is damaged",
            "it lacks what an export writes, or holds something else",
            "export the model again; the model itself may be whole",
        ) from error


def render(report: Mapping[str, Any]) -> str:
    """The report as text, with a column for each model."""
    entries = _entries(report)
    rows = [("", list(entries)), *_rows(list(entries.values()))]
    label = max(len(name) for name, _ in rows)
    width = max(len(cell) for _, cells in rows for cell in cells)
    lines = [f"{name:{label}}  " + "  ".join(f"{cell:>{width}}" for cell in cells) for name, cells in rows]
    peak = report.get("peak_memory_bytes")
    memory = f", peak memory {_bytes(peak)}" if peak else ""
    seconds = f"exported in {report['export_seconds']:.0f} s"
    if "whole_seconds" in report:
        seconds += f", {report['whole_seconds']:.0f} s with measurements"
    return "\n".join([*lines, *_notes(report, entries), seconds + memory])


def _entries(report: Mapping[str, Any]) -> dict[str, Entry]:
    """The report of each model by role; "model" for a model without a draft."""
    return {role: report[role] for role in ("target", "draft") if role in report} or {"model": report}


def decisions(report: Mapping[str, Any]) -> Iterator[str]:
    """What the export chose by measuring, and why, a line each."""
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


def _notes(report: Mapping[str, Any], entries: Mapping[str, Entry]) -> Iterator[str]:
    """Lines below the table."""
    for role, entry in entries.items():
        yield from (f"{role}: {note}" for note in entry.get("notes", ()))
    if "memory_bytes" in report:
        needs = ", ".join(f"{_bytes(need)} at {context}" for context, need in report["memory_bytes"].items())
        yield f"memory by context length: {needs}"
    if "speculation" in report:
        results = report["speculation"]
        yield (
            f"the draft on {results['prompts']} prompts: {results['acceptance_rate']:.0%} accepted, "
            f"{results['tokens_per_round']:.2f} tokens a round"
        )
        measured = [f"{mode} {speedup:.2f}×" for mode, speedup in results["measured_speedup"].items()]
        if "predicted_speedup" in results:
            measured = [f"predicted {results['predicted_speedup']:.2f}×", *measured]
        yield f"speed against plain decoding: {', '.join(measured)}"


def _rows(entries: list[Entry]) -> Iterator[tuple[str, list[str]]]:
    yield "format", [entry["format"] for entry in entries]
    yield "size", [_bytes(sum(entry["size_bytes"].values())) for entry in entries]
    for part in entries[0]["size_bytes"]:
        yield f"  {part.replace('_', ' ')}", [_bytes(entry["size_bytes"].get(part, 0)) for entry in entries]
    if any(entry.get("copied_tensors") for entry in entries):
        yield "copied as stored", [f"{entry.get('copied_tensors', 0)} tensors" for entry in entries]
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
    yield f"top-1 same as {finer}", [_cell(entry, "top1_agreement", ".1%") for entry in entries]
    if any("perplexity" in entry for entry in entries):
        yield "perplexity", [_cell(entry, "perplexity", ".2f") for entry in entries]
        yield f"perplexity in {finer}", [_cell(entry, "source_perplexity", ".2f") for entry in entries]
    if any("kept_probability" in entry for entry in entries):
        yield "kept by the trimmed head", [f"{entry.get('kept_probability', 1.0):.1%}" for entry in entries]


def _cell(entry: Entry, key: str, form: str) -> str:
    return format(entry[key], form) if key in entry else "-"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _draw(report: Mapping[str, Any]) -> str:
    """SVG of the report: a block of bars for each measurement."""
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
    entries = _entries(report)
    yield (
        "Size by part, MB",
        [
            (f"{role} {part.replace('_', ' ')}", size / 1e6, f"{size / 1e6:.1f}", role)
            for role, entry in entries.items()
            for part, size in entry["size_bytes"].items()
        ],
    )
    for role, entry in entries.items():
        if costs := entry.get("forward_cost_ms"):
            bars = [(f"S = {width}", cost, f"{cost:.1f}", role) for width, cost in costs.items()]
            yield f"{role}: forward pass over S tokens, ms", bars
    measured = {role: entry for role, entry in entries.items() if "kl_mean" in entry}
    if bars := [
        (f"{role}, {entry['format']}", entry["kl_mean"], f"{entry['kl_mean']:.4f}", role)
        for role, entry in measured.items()
    ]:
        yield "KL to the float source, nats", bars
    if needs := report.get("memory_bytes"):
        bars = [
            (f"{context} tokens", need / 1e6, f"{need / 1e6:.0f}", "all") for context, need in needs.items()
        ]
        yield "Memory by context length, MB", bars
    if results := report.get("speculation"):
        speedups = [("plain", 1.0, "all")]
        if speedup := results.get("predicted_speedup"):
            speedups.append(("draft, predicted", speedup, "draft"))
        speedups += [
            (f"{mode}, measured", speedup, "target") for mode, speedup in results["measured_speedup"].items()
        ]
        yield (
            "Speed against plain decoding",
            [(name, value, f"{value:.2f}", role) for name, value, role in speedups],
        )


def _bar(y: int, label: str, share: float, text: str, role: str) -> list[str]:
    width = max(1.0, _BAR * share)
    bar = f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 6}" fill="{_COLOURS[role]}"/>'
    return [_text(24, y + 14, label), bar, _text(_LEFT + width + 8, y + 14, text)]


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
