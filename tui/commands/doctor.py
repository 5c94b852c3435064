"""`specdec doctor`: what this machine offers, and what a pair costs, weighs and promises on it."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from specdec_onnx.tui.options import add_engine_arguments
from specdec_onnx.tui.streams import as_json

if TYPE_CHECKING:
    from specdec_onnx.models.folder import ModelFolder
    from specdec_onnx.runtime.decoder import Decoder
    from specdec_onnx.runtime.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, if one is to be looked at, and how to run it."""
    add_engine_arguments(parser, pair_optional=True)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Look at the machine, then load the pair and look at it."""
    from specdec_onnx.tui.bench.machine import machine

    findings: dict[str, Any] = {"machine": machine(), "devices": _devices()}
    if args.pair is not None:
        from specdec_onnx.tui.options import load_engine

        findings["memory"] = _memory(args)
        print(f"needs about {findings['memory']['text']}", file=sys.stderr)
        print("loading", file=sys.stderr)
        findings["pair"] = _pair(load_engine(args), args.threads)
    if args.json:
        print(as_json(findings, indent=2))
        return 0
    from rich.console import Console

    from specdec_onnx.tui.findings import tables

    Console().print(tables(findings))
    return 0


def _devices() -> dict[str, dict[str, str]]:
    """For each device why it cannot be used, and the remedy; both empty where it can."""
    from specdec_onnx.runtime.device import PROVIDERS, lacks, remedy

    missing = {name: lacks(name) for name in PROVIDERS}
    return {name: {"lacks": why, "remedy": remedy(name) if why else ""} for name, why in missing.items()}


def _memory(args: argparse.Namespace) -> dict[str, Any]:
    """What the pair will take, predicted from its files, and what there is."""
    from dataclasses import asdict

    from specdec_onnx.models.pair import open_pair
    from specdec_onnx.models.places import locate
    from specdec_onnx.runtime.footprint import footprints
    from specdec_onnx.runtime.memory import available_memory
    from specdec_onnx.tui.inventory import gigabytes

    pair = open_pair(locate(args.pair), args.draft)
    models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft else {})
    needs = footprints(models, args.context)
    total, available = sum(need.total for need in needs.values()), available_memory()
    text = gigabytes(total) + (f" of memory, {gigabytes(available)} are available" if available else "")
    found = {role: asdict(need) for role, need in needs.items()}
    return {"text": text, "needed_bytes": total, "available_bytes": available, "models": found}


def _pair(engine: "Engine", threads: int) -> dict[str, Any]:
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
        "forward_cost_ms": _milliseconds(engine.profile.curve.widths, engine.profile.curve.seconds),
        "draft_cost_ms": _milliseconds(engine.draft_cost.widths, engine.draft_cost.seconds)
        if engine.draft_cost
        else {},
        "models": models,
    }


def _model(model: "ModelFolder", decoder: "Decoder") -> dict[str, Any]:
    return {
        "name": model.name,
        "format": model.facts.get("format"),
        "weight_bytes": model.weight_bytes,
        "cache_bytes": decoder.cache.nbytes,
        "nodes": decoder.placement(),
        "device": decoder.device.name,
        "kernels": str(decoder.kernels),
        "fallbacks": decoder.fallbacks(),
    }


def _milliseconds(widths: tuple[int, ...], seconds: tuple[float, ...]) -> dict[str, float]:
    return {str(width): round(1e3 * cost, 2) for width, cost in zip(widths, seconds, strict=True)}
