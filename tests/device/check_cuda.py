"""Checks a device against the CPU and prints one JSON: `python tests/device/check_cuda.py MODELS [--device cuda]`.

Needs numpy, onnxruntime(-gpu) and tokenizers, and the models of build_models.py. Takes under four minutes: a section
that no time is left for is skipped and says so. Exits with 1 when a section failed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUDGET_SECONDS = 220
LONGEST_SECTION = 45
CAPACITY = 320
NEW_TOKENS = 96
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)


def prepare() -> None:
    """Make the checkout importable without installing it, and keep measurements out of the user's cache."""
    sys.path.insert(0, str(ROOT / "tests"))
    from check import LINKS, link_type_roots

    link_type_roots()
    sys.path.insert(0, str(LINKS))
    os.environ["SPECDEC_CACHE"] = tempfile.mkdtemp()
    try:
        import jinja2  # noqa: F401
    except ImportError:
        _stand_in_for_jinja()


def _stand_in_for_jinja() -> None:
    """Prompts are token ids here, so no template is ever rendered."""
    names = {
        "jinja2": ("Template", "TemplateError"),
        "jinja2.ext": ("loopcontrols",),
        "jinja2.sandbox": ("ImmutableSandboxedEnvironment",),
    }
    for name, members in names.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member, type(member, (Exception,), {}))
        sys.modules[name] = module


def machine() -> dict[str, Any]:
    """Versions and providers."""
    import numpy as np
    import onnxruntime as ort

    return {
        "onnxruntime": ort.__version__,
        "numpy": np.__version__,
        "providers": ort.get_available_providers(),
        "cores": os.cpu_count(),
    }


def parity(folder: Path, device: str) -> dict[str, Any]:
    """Prefill, decode, verify and rollback of one model on the device and on the CPU; then the self-test."""
    import numpy as np

    from specdec_onnx.models.folder import open_model
    from specdec_onnx.runtime.machine.self_test import settle_padding, settle_width
    from specdec_onnx.runtime.model.decoder import Decoder
    from specdec_onnx.runtime.model.device import find_device

    model = open_model(folder)
    decoder = Decoder.open(model, device=find_device(device), capacity=CAPACITY, exact=True)
    settle_width(decoder)
    identity = settle_padding(decoder)
    found = _walk(decoder)
    expected = _walk(Decoder.open(model, capacity=CAPACITY, exact=True, half_cache=False))
    distance = float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())
    agreement = float(np.mean(found.argmax(-1) == expected.argmax(-1)))
    return {
        "rms_difference_over_spread": distance,
        "same_argmax": agreement,
        "identity": str(identity),
        "padding": {"multiple": decoder.padding.multiple, "tile": decoder.padding.tile},
        "widest_pass": decoder.widest,
        "nodes": decoder.placement(),
        "fallbacks": decoder.fallbacks(),
        "ok": distance < 0.1 and agreement > 0.9,
    }


def _walk(decoder: Any) -> Any:
    import numpy as np

    text = (np.arange(1, 121) * 7919 % min(decoder.vocab_size, 32_000)).tolist()
    decoder.rollback(0)
    rows = [decoder.forward(text[:100]).copy()]
    rows += [decoder.forward([token]).copy() for token in text[100:104]]
    rows.append(decoder.forward(text[104:112]).copy())
    decoder.rollback(108)
    rows.append(decoder.forward(text[108:120]).copy())
    return np.concatenate(rows)


def curve(folder: Path, device: str) -> dict[str, Any]:
    """Milliseconds of a pass by its width."""
    from specdec_onnx.models.folder import open_model
    from specdec_onnx.runtime.machine.costs import measure_curve
    from specdec_onnx.runtime.model.decoder import Decoder
    from specdec_onnx.runtime.model.device import find_device

    model = open_model(folder)
    decoder = Decoder.open(model, device=find_device(device), capacity=CAPACITY, exact=True)
    measured = measure_curve(decoder, WIDTHS)
    milliseconds = {width: round(1e3 * cost, 3) for width, cost in zip(WIDTHS, measured.seconds, strict=True)}
    return {"milliseconds": milliseconds, "verify_8_over_1": measured(8) / measured(1), "ok": True}


def speculation(folder: Path, device: str, draft_device: str) -> dict[str, Any]:
    """Every mode says what plain decoding says; how fast, also with a proposer that is mostly right."""
    from support.scripted_proposer import ScriptedProposer

    from specdec_onnx.runtime.engine import load

    engine = load(folder, device=device, draft_device=draft_device, context=256)
    prompt = [(7 * index) % 300 for index in range(40)]
    plain, speed = _answer(engine, prompt, "plain")
    results: dict[str, Any] = {"identity": str(engine.identity), "plain_tokens_per_second": speed}
    for mode in engine.modes[1:]:
        tokens, faster = _answer(engine, prompt, mode)
        results[mode] = {"same_as_plain": tokens == plain, "speedup": faster / speed}
    tokens, faster = _answer(engine, prompt, "suffix", suffix=ScriptedProposer(plain, 7, 4))
    results["replayed"] = {"same_as_plain": tokens == plain, "speedup": faster / speed}
    same = all(part["same_as_plain"] for part in results.values() if isinstance(part, dict))
    return results | {"ok": same or not engine.identity.bit_identical}


def _answer(engine: Any, prompt: list[int], mode: str, **ask: Any) -> tuple[list[int], float]:
    engine.generate(prompt, mode=mode, max_new_tokens=NEW_TOKENS, **ask)
    return engine.last.tokens, engine.last.statistics.decode_tokens_per_second


def sections(models: Path, device: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is checked, in the order of its weight."""
    target, pair = models / "pair" / "target", models / "pair"
    checks: dict[str, Callable[[], dict[str, Any]]] = {"parity middle": lambda: parity(target, device)}
    checks["curve"] = lambda: curve(target, device)
    for both in dict.fromkeys(((device, device), (device, "cpu"), ("cpu", device))):
        checks["speculation target on {}, draft on {}".format(*both)] = partial(speculation, pair, *both)
    for folder in sorted(models.glob("tiny-*")):
        checks[f"parity {folder.name}"] = partial(parity, folder, device)
    return checks


def run(models: Path, device: str) -> dict[str, Any]:
    """Every section's findings, errors among them."""
    start = time.perf_counter()
    report: dict[str, Any] = {"device": device, "machine": machine()}
    for name, check in sections(models, device).items():
        began = time.perf_counter()
        if began - start > BUDGET_SECONDS - LONGEST_SECTION:
            report[name] = {"skipped": "no time left"}
            continue
        try:
            report[name] = check()
        except Exception as error:  # noqa: BLE001 - one failure must not hide the other findings
            report[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        report[name]["seconds"] = round(time.perf_counter() - began, 2)
    report["complete"] = not any("skipped" in part for part in report.values() if isinstance(part, dict))
    report["ok"] = all(part.get("ok", True) for part in report.values() if isinstance(part, dict))
    return report


def main() -> int:
    """Print the report; 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="the folder that build_models.py made")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    prepare()
    report = run(args.models.resolve(), args.device)
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
