"""What `specdec doctor` found, as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from specdec_onnx.tui.inventory import gigabytes
from specdec_onnx.tui.streams import printable_all


def tables(findings: Mapping[str, Any]) -> RenderableType:
    """The machine, its devices and, if one was loaded, the pair."""
    findings = printable_all(findings, escape)
    parts: list[RenderableType] = [_machine(findings["machine"]), _devices(findings["devices"])]
    if memory := findings.get("memory"):
        parts.append(_memory(memory))
    if pair := findings.get("pair"):
        ours = findings["machine"]["kernels"]["name"]
        parts += [_pair(pair), _models(pair["models"], ours), _costs(pair)]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        *columns, title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    table.show_header = bool(columns)
    return table


def _machine(machine: Mapping[str, Any]) -> Table:
    table = _table("machine")
    table.add_row("processor", f"{machine['processor']}, {machine['cores']} cores")
    table.add_row("int8 features", ", ".join(machine["features"]) or "none known")
    if machine["memory_bytes"]:
        table.add_row("memory", gigabytes(machine["memory_bytes"]))
    table.add_row("onnxruntime", machine["onnxruntime"])
    ours = machine["kernels"]
    table.add_row(
        "int4 kernels", ours["name"] or f"[yellow]ONNX Runtime's[/], up to twice as slow: {ours['absent']}"
    )
    return table


def _devices(devices: Mapping[str, Mapping[str, str]]) -> Table:
    table = _table("devices")
    for name, finding in devices.items():
        state = f"[yellow]no[/]: {finding['lacks']}" if finding["lacks"] else "[green]ready[/]"
        table.add_row(name, state)
        if finding["remedy"]:
            table.add_row("", finding["remedy"])
    return table


def _memory(memory: Mapping[str, Any]) -> Table:
    table = _table("memory, predicted", "", "weights", "KV cache, full", "working")
    for role, need in memory["models"].items():
        table.add_row(role, *(gigabytes(need[part]) for part in ("weights", "cache", "working")))
    table.add_row("together", memory["text"])
    if left := sum(need["left_in_file"] for need in memory["models"].values()):
        table.add_row("not counted", f"embedding table, {gigabytes(left)}: it stays in the file")
    return table


def _pair(pair: Mapping[str, Any]) -> Table:
    table = _table(pair["name"])
    exact = pair["identity"] == "bit-identical"
    table.add_row("speculative output", f"[{'green' if exact else 'yellow'}]{pair['identity']}[/]")
    table.add_row("runs on", f"{pair['device']}, threads: {pair['threads']}")
    if pair["draft_device"]:
        table.add_row("draft runs on", pair["draft_device"])
    table.add_row("context", f"{pair['context']} tokens")
    table.add_row("modes", ", ".join(pair["modes"]))
    return table


def _models(models: Mapping[str, Mapping[str, Any]], kernels: str) -> Table:
    table = _table("models", "", "format", "weights", "KV cache, full", "nodes")
    for role, model in models.items():
        nodes = ", ".join(
            f"{count} {name.removesuffix('ExecutionProvider')}" for name, count in model["nodes"].items()
        )
        if model["fallbacks"]:
            lacking = ", ".join(f"{count} {name}" for name, count in model["fallbacks"].items())
            nodes = f"{nodes} (the device lacks {lacking})"
        if kernels and model["device"] == "cpu" and model["kernels"] != kernels:
            nodes = f"{nodes}; int4 kernels: {model['kernels']}"
        table.add_row(
            role,
            str(model["format"] or "–"),
            gigabytes(model["weight_bytes"]),
            gigabytes(model["cache_bytes"]),
            nodes,
        )
    return table


def _costs(pair: Mapping[str, Any]) -> Table:
    costs, draft = pair["forward_cost_ms"], pair["draft_cost_ms"]
    table = _table("ms for a pass over S tokens", "S", *costs)
    table.add_row("target", *(f"{cost:.1f}" for cost in costs.values()))
    if draft:
        table.add_row("draft", *(f"{draft[width]:.1f}" if width in draft else "" for width in costs))
    return table
