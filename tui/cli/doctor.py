"""`specdec doctor`: what this machine offers, and what a pair costs, needs and guarantees on it."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import locate, open_pair
from specdec_onnx.models.system import available_memory
from specdec_onnx.models.text import gigabytes
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.machine.footprint import footprints
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.model.device import PROVIDERS, lacks, remedy
from specdec_onnx.tui.bench.figures import node_counts, titled
from specdec_onnx.tui.bench.machine import describe_machine
from specdec_onnx.tui.cli.engine import load_engine
from specdec_onnx.tui.cli.output import TableConsole
from specdec_onnx.tui.cli.streams import as_json, printable_all

Rows = Iterator[Sequence[RenderableType]]


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
    needs = footprints(pair.models, args.context, half_cache=args.cache == "auto")
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
    findings = printable_all(findings)
    parts = [titled("machine", [], _machine(findings["machine"]))]
    parts.append(titled("devices", [], _device_rows(findings["devices"])))
    if memory := findings.get("memory"):
        columns = ["weights", "KV cache, full", "working memory"]
        parts.append(titled("memory, predicted", [""], _memory_rows(memory), words=columns))
    if pair := findings.get("pair"):
        ours = findings["machine"]["kernels"]["name"]
        rows = (_model_row(role, model, ours) for role, model in pair["models"].items())
        columns = ["format", "weights", "KV cache, full", "nodes"]
        costs = pair["forward_cost_ms"]
        parts += [
            titled(pair["name"], [], _pair_rows(pair)),
            titled("models", [""], rows, words=columns),
            titled("ms for a pass over S tokens", ["S", *costs], _cost_rows(costs, pair["draft_cost_ms"])),
        ]
    return Group(*parts)


def _machine(machine: Mapping[str, Any]) -> Rows:
    yield "processor", f"{machine['processor']}, {machine['cores']} cores"
    yield "int8 features", ", ".join(machine["features"]) or "none known"
    if machine["memory_bytes"]:
        yield "memory", gigabytes(machine["memory_bytes"])
    yield "onnxruntime", machine["onnxruntime"]
    ours = machine["kernels"]
    absent = _marked("ONNX Runtime's", f", up to twice as slow: {ours['absent']}")
    yield "int4 kernels", ours["name"] or absent


def _device_rows(devices: Mapping[str, Mapping[str, str]]) -> Rows:
    for name, finding in devices.items():
        lacks = finding["lacks"]
        yield name, _marked("no", f": {lacks}") if lacks else _marked("ready", style="green")
        if finding["remedy"]:
            yield "", finding["remedy"]


def _memory_rows(memory: Mapping[str, Any]) -> Rows:
    for role, need in memory["models"].items():
        yield role, *(gigabytes(need[part]) for part in ("weights", "cache", "working"))
    yield "total", memory["text"]
    if left := sum(need["left_in_file"] for need in memory["models"].values()):
        yield "not counted", f"embedding table, {gigabytes(left)}: it stays in the file"


def _pair_rows(pair: Mapping[str, Any]) -> Rows:
    identity = pair["identity"]
    yield "speculative output", Text(identity, "green" if identity == "bit-identical" else "yellow")
    yield "runs on", f"{pair['device']}, threads: {pair['threads']}"
    if pair["draft_device"]:
        yield "draft runs on", pair["draft_device"]
    yield "context", f"{pair['context']} tokens"
    yield "modes", ", ".join(pair["modes"])


def _model_row(role: str, model: Mapping[str, Any], kernels: str) -> Sequence[RenderableType]:
    nodes = Text(node_counts(model["nodes"]))
    if model["fallbacks"]:
        nodes.append(f" (the device lacks {node_counts(model['fallbacks'])})")
    if kernels and model["device"] == "cpu" and model["kernels"] != kernels:
        nodes.append(f"; int4 kernels: {model['kernels']}")
    if model.get("slow_zero_points"):
        nodes.append("; ").append("many times slower without specdec's kernels", "yellow")
        nodes.append(": export it again on this machine")
    sizes = gigabytes(model["weight_bytes"]), gigabytes(model["cache_bytes"])
    return role, str(model["format"] or "–"), *sizes, nodes


def _cost_rows(costs: Mapping[str, float], draft: Mapping[str, float]) -> Rows:
    yield "target", *(f"{cost:.1f}" for cost in costs.values())
    if draft:
        yield "draft", *(f"{draft[width]:.1f}" if width in draft else "" for width in costs)


def _marked(text: str, rest: str = "", style: str = "yellow") -> Text:
    return Text.assemble((text, style), rest)
