"""`specdec doctor`: what this machine offers, and what a pair costs, needs and guarantees on it."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import locate, open_pair
from specdec_onnx.models.system import available_memory
from specdec_onnx.models.text import gigabytes
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import footprints
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import PROVIDERS, lacks, remedy
from specdec_onnx.tui.bench.figures import node_counts
from specdec_onnx.tui.bench.machine import describe_machine
from specdec_onnx.tui.cli.engine import load_engine
from specdec_onnx.tui.cli.output import TableConsole
from specdec_onnx.tui.cli.streams import as_json, printable_all


def run(args: argparse.Namespace) -> int:
    """Examine the machine, then load the pair and examine it."""
    findings: dict[str, Any] = {"machine": describe_machine(), "devices": _devices()}
    if args.pair is not None:
        findings["memory"] = _memory(args)
        print(f"needs about {findings['memory']['text']}", file=sys.stderr)
        print("loading", file=sys.stderr)
        findings["pair"] = _pair(load_engine(args), args.threads)
    if args.json:
        print(as_json(findings, indent=2))
    else:
        TableConsole().print(tables(findings))
    return 0


def _devices() -> dict[str, dict[str, str]]:
    """For each device why it cannot be used, and the remedy; both empty where it can."""
    missing = {name: lacks(name) for name in PROVIDERS}
    return {name: {"lacks": why, "remedy": remedy(name) if why else ""} for name, why in missing.items()}


def _memory(args: argparse.Namespace) -> dict[str, Any]:
    """What the pair will take, predicted from its files, and what is available."""
    pair = open_pair(locate(args.pair), args.draft)
    models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft else {})
    needs = footprints(models, args.context)
    total, available = sum(need.total for need in needs.values()), available_memory()
    return {
        "text": gigabytes(total) + (f" of memory, {gigabytes(available)} are available" if available else ""),
        "needed_bytes": total,
        "available_bytes": available,
        "models": {role: asdict(need) for role, need in needs.items()},
    }


def _pair(engine: Engine, threads: int) -> dict[str, Any]:
    draft = engine.speculation.draft
    models = {"target": _model(engine.pair.target, engine.target)}
    if engine.pair.draft and draft:
        models["draft"] = _model(engine.pair.draft, draft.tape.decoder)
    return {
        "name": engine.pair.path.resolve().name,
        "device": str(engine.placements["target"]),
        "draft_device": str(engine.placements.get("draft", "")),
        "threads": threads or "physical cores",
        "context": engine.context,
        "modes": list(engine.modes),
        "identity": str(engine.identity),
        "forward_cost_ms": _milliseconds(engine.profile.curve),
        "draft_cost_ms": _milliseconds(engine.draft_cost) if engine.draft_cost else {},
        "models": models,
    }


def _model(model: ModelFolder, decoder: Decoder) -> dict[str, Any]:
    return {
        "name": model.name,
        "format": model.facts.get("format"),
        "weight_bytes": model.weight_bytes,
        "cache_bytes": decoder.cache.nbytes,
        "nodes": decoder.placement(),
        "device": decoder.device.name,
        "kernels": str(decoder.kernels),
        "slow_zero_points": model.facts.get("zero_points") == "float" and not decoder.kernels.name,
        "fallbacks": decoder.fallbacks(),
    }


def _milliseconds(curve: Curve) -> dict[str, float]:
    return {str(width): round(1e3 * cost, 2) for width, cost in zip(curve.widths, curve.seconds, strict=True)}


def tables(findings: Mapping[str, Any]) -> RenderableType:
    """The machine, its devices and, if one was loaded, the pair."""
    findings = printable_all(findings, escape)
    parts: list[RenderableType] = [_machine(findings["machine"]), _device_table(findings["devices"])]
    if memory := findings.get("memory"):
        parts.append(_memory_table(memory))
    if pair := findings.get("pair"):
        ours = findings["machine"]["kernels"]["name"]
        parts += [_pair_table(pair), _models(pair["models"], ours), _costs(pair)]
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


def _device_table(devices: Mapping[str, Mapping[str, str]]) -> Table:
    table = _table("devices")
    for name, finding in devices.items():
        state = f"[yellow]no[/]: {finding['lacks']}" if finding["lacks"] else "[green]ready[/]"
        table.add_row(name, state)
        if finding["remedy"]:
            table.add_row("", finding["remedy"])
    return table


def _memory_table(memory: Mapping[str, Any]) -> Table:
    table = _table("memory, predicted", "", "weights", "KV cache, full", "working memory")
    for role, need in memory["models"].items():
        table.add_row(role, *(gigabytes(need[part]) for part in ("weights", "cache", "working")))
    table.add_row("total", memory["text"])
    if left := sum(need["left_in_file"] for need in memory["models"].values()):
        table.add_row("not counted", f"embedding table, {gigabytes(left)}: it stays in the file")
    return table


def _pair_table(pair: Mapping[str, Any]) -> Table:
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
        nodes = node_counts(model["nodes"])
        if model["fallbacks"]:
            nodes = f"{nodes} (the device lacks {node_counts(model['fallbacks'])})"
        if kernels and model["device"] == "cpu" and model["kernels"] != kernels:
            nodes = f"{nodes}; int4 kernels: {model['kernels']}"
        if model.get("slow_zero_points"):
            nodes = f"{nodes}; [yellow]many times slower without specdec's kernels[/]: export it here as int4 or w8a8"
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
